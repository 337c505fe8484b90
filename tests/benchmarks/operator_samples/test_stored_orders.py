"""Predicted orders of results, by hand where the prediction is subtle."""

from typing import Any

from operator_samples.stored_orders import carried_orders, stored_orders

from frx_graph.capture.call_site import UNKNOWN_SITE
from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import OpFacts, ValueRef
from frx_graph.passes.layouts.dimension_map import canonicalize_order, make_plain_order
from frx_graph.rules.layout_operator import POINTWISE, UNKNOWN, load_layout_operators

NHWC = (0, 2, 3, 1)


def call(target: str, *args: Any, mutates: tuple[str, ...] = (), **kwargs: Any) -> OpFacts:
    return OpFacts(
        node="node",
        target=f"aten.{target}",
        operator=f"aten.{target.partition('.')[0]}",
        args=(ValueRef("x"), *args),
        kwargs=kwargs,
        inputs=("x",),
        outputs=("out",),
        mutates=mutates,
        phase=Phase.FORWARD,
        site=UNKNOWN_SITE,
    )


def carried(op: OpFacts, shape: tuple[int, ...], order: tuple[int, ...], result: tuple[int, ...], **where: str) -> Any:
    (found,) = carried_orders(load_layout_operators()[op.operator], op, shape, order, (result,), **where)
    return found


def test_a_mean_over_the_image_under_a_compiler_and_in_eager() -> None:
    op = call("mean.dim", (1,), True)
    assert carried(op, (2, 8, 5, 6), (0, 3, 2, 1), (2, 1, 5, 6), inner="inductor") == canonicalize_order(
        (2, 1, 5, 6), (0, 3, 2, 1)
    )
    assert carried(op, (2, 8, 5, 6), (0, 3, 2, 1), (2, 1, 5, 6)) is None
    assert carried(op, (2, 8, 5, 6), NHWC, (2, 1, 5, 6)) == (0, 1, 2, 3)  # of one channel, plain is channels-last
    everything = call("mean.default")
    assert carried(everything, (2, 8, 5, 6), NHWC, ()) == ()


def test_a_kernel_that_keeps_channels_last_makes_anything_else_plain() -> None:
    op, row = call("avg_pool2d.default", (2, 2)), load_layout_operators()["aten.avg_pool2d"]
    shape, result = (2, 8, 6, 4), (2, 8, 3, 2)
    assert carried(op, shape, NHWC, result) == NHWC
    assert carried(op, shape, (1, 0, 2, 3), result) is None
    assert stored_orders(row, op, shape, (1, 0, 2, 3), (result,)) == ((0, 1, 2, 3),)
    assert carried(op, shape, (1, 0, 2, 3), result, inner="inductor") == (1, 0, 2, 3)


def test_single_channel_does_not_determine_the_layout_of_many() -> None:
    op, row = call("convolution.default"), load_layout_operators()["aten.convolution"]
    for order in ((0, 1, 2, 3), NHWC):
        assert carried(op, (2, 1, 5, 6), order, (2, 8, 5, 6)) is None
        assert stored_orders(row, op, (2, 1, 5, 6), order, ((2, 8, 5, 6),)) == (None,)
        assert carried(op, (2, 1, 5, 6), order, (2, 1, 5, 6)) == (0, 1, 2, 3)


def test_a_dimension_that_grew_from_one_has_no_place() -> None:
    add = call("add.Tensor")
    assert carried_orders(POINTWISE, add, (2, 8, 1, 6), (0, 3, 1, 2), ((2, 8, 5, 6),)) == (None,)
    assert carried_orders(POINTWISE, add, (2, 8, 1, 6), (0, 3, 1, 2), ((2, 8, 1, 6),)) == ((0, 3, 1, 2),)
    assert carried_orders(POINTWISE, add, (6,), (0,), ((2, 6),)) == (None,)


def test_an_in_place_result_is_its_operand_whatever_the_kernel_makes_out_of_place() -> None:
    row = load_layout_operators()["aten.masked_fill"]
    out_of_place, in_place = call("masked_fill.Scalar"), call("masked_fill_.Scalar", mutates=("x",))
    assert carried_orders(row, out_of_place, (2, 8, 5, 6), NHWC, ((2, 8, 5, 6),)) == (None,)
    assert stored_orders(row, out_of_place, (2, 8, 5, 6), NHWC, ((2, 8, 5, 6),)) == ((0, 1, 2, 3),)
    assert carried_orders(row, in_place, (2, 8, 5, 6), NHWC, ((2, 8, 5, 6),)) == (NHWC,)
    turned, transpose = call("transpose_.default", 1, 2, mutates=("x",)), load_layout_operators()["aten.transpose"]
    assert carried_orders(transpose, turned, (2, 3, 4), (0, 1, 2), ((2, 4, 3),)) == ((0, 2, 1),)


def test_orders_not_measured_on_a_device_are_unknown_there() -> None:
    op, row = call("native_layer_norm.default"), load_layout_operators()["aten.native_layer_norm"]
    plain = make_plain_order((2, 8, 6))
    assert stored_orders(row, op, (2, 8, 6), (0, 2, 1), ((2, 8, 6),)) == (plain,)
    assert stored_orders(row, op, (2, 8, 6), (0, 2, 1), ((2, 8, 6),), device="cuda") == (None,)
    assert carried(op, (2, 8, 6), plain, (2, 8, 6)) == plain
    assert carried(op, (2, 8, 6), (0, 2, 1), (2, 8, 6), device="cuda", inner="inductor") == (0, 2, 1)


def test_attention_takes_rows_only() -> None:
    op, shape = call("_scaled_dot_product_flash_attention_for_cpu.default"), (2, 3, 8, 16)
    assert carried(op, shape, (0, 2, 1, 3), shape) == (0, 2, 1, 3)
    assert carried(op, shape, (0, 1, 3, 2), shape) is None


def test_inductor_keeps_any_order_where_the_kernel_needs_a_memory_format() -> None:
    op = call("native_group_norm.default")
    assert carried(op, (2, 8, 5, 6), (1, 0, 2, 3), (2, 8, 5, 6), inner="inductor") == (1, 0, 2, 3)


def test_unknown_operator_has_unknown_orders() -> None:
    assert carried_orders(UNKNOWN, call("nonzero.default"), (2, 3), (0, 1), ((4, 2),)) == (None,)
