"""Orders of results: by hand for what is subtle, and against torch's own views for what hypothesis thinks of."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.capture.call_site import UNKNOWN_SITE
from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import OpFacts, ValueRef
from frx_graph.facts.layout import dimension_order, is_channels_last, is_contiguous, strides_for_order
from frx_graph.passes.layouts.dimension_map import (
    canonical,
    carried_orders,
    computes_right,
    mapped_order,
    plain_order,
    stored_orders,
    strides_in_order,
    view_strides,
)
from frx_graph.rules.layout_operator import POINTWISE, UNKNOWN, DimensionMap
from frx_graph.rules.operator_table import layout_operators

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
    (found,) = carried_orders(layout_operators()[op.operator], op, shape, order, (result,), **where)
    return found


def test_a_permuted_stream_is_channels_last_when_permuted_back() -> None:
    op = call("permute.default", (0, 3, 1, 2))
    assert carried(op, (2, 5, 6, 8), (0, 1, 2, 3), (2, 8, 5, 6)) == NHWC
    assert carried(call("permute.default", (0, 2, 3, 1)), (2, 8, 5, 6), NHWC, (2, 5, 6, 8)) == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("size", "order", "result"),
    [
        ((2, 8, 30), NHWC, (0, 2, 1)),  # rows and columns lie side by side
        ((2, 240), NHWC, None),  # channels and rows do not
        ((2, 240), (0, 1, 2, 3), (0, 1)),
        ((2, 2, 4, 5, 6), NHWC, (0, 3, 4, 1, 2)),  # groups of channels
        ((16, 5, 6), (1, 0, 2, 3), None),
    ],
)
def test_a_view_carries_an_order_if_what_merges_lies_side_by_side(
    size: tuple[int, ...], order: tuple[int, ...], result: tuple[int, ...] | None
) -> None:
    assert carried(call("view.default", size), (2, 8, 5, 6), order, size) == result


def test_a_mean_over_the_image_under_a_compiler_and_in_eager() -> None:
    op = call("mean.dim", (1,), True)
    assert carried(op, (2, 8, 5, 6), (0, 3, 2, 1), (2, 1, 5, 6), inner="inductor") == canonical(
        (2, 1, 5, 6), (0, 3, 2, 1)
    )
    assert carried(op, (2, 8, 5, 6), (0, 3, 2, 1), (2, 1, 5, 6)) is None
    assert carried(op, (2, 8, 5, 6), NHWC, (2, 1, 5, 6)) == (0, 1, 2, 3)  # of one channel, plain is channels-last
    everything = call("mean.default")
    assert carried(everything, (2, 8, 5, 6), NHWC, ()) == ()


def test_a_kernel_that_keeps_channels_last_makes_anything_else_plain() -> None:
    op, row = call("avg_pool2d.default", (2, 2)), layout_operators()["aten.avg_pool2d"]
    shape, result = (2, 8, 6, 4), (2, 8, 3, 2)
    assert carried(op, shape, NHWC, result) == NHWC
    assert carried(op, shape, (1, 0, 2, 3), result) is None
    assert stored_orders(row, op, shape, (1, 0, 2, 3), (result,)) == ((0, 1, 2, 3),)
    assert carried(op, shape, (1, 0, 2, 3), result, inner="inductor") == (1, 0, 2, 3)


def test_one_channel_tells_a_kernel_nothing_about_the_layout_of_many() -> None:
    op, row = call("convolution.default"), layout_operators()["aten.convolution"]
    for order in ((0, 1, 2, 3), NHWC):
        assert carried(op, (2, 1, 5, 6), order, (2, 8, 5, 6)) is None
        assert stored_orders(row, op, (2, 1, 5, 6), order, ((2, 8, 5, 6),)) == (None,)
        assert carried(op, (2, 1, 5, 6), order, (2, 1, 5, 6)) == (0, 1, 2, 3)


def test_a_dimension_that_grew_from_one_has_no_place() -> None:
    add = call("add.Tensor")
    assert carried_orders(POINTWISE, add, (2, 8, 1, 6), (0, 3, 1, 2), ((2, 8, 5, 6),)) == (None,)
    assert carried_orders(POINTWISE, add, (2, 8, 1, 6), (0, 3, 1, 2), ((2, 8, 1, 6),)) == ((0, 3, 1, 2),)
    assert carried_orders(POINTWISE, add, (6,), (0,), ((2, 6),)) == (None,)


def test_an_expanded_result_has_no_order_and_one_that_is_not_keeps_its_own() -> None:
    assert carried(call("expand.default", (2, 8, 5, 6)), (2, 8, 1, 1), (0, 1, 2, 3), (2, 8, 5, 6)) is None
    assert carried(call("expand.default", (1, 2, 8, 5, 6)), (2, 8, 5, 6), NHWC, (1, 2, 8, 5, 6)) == (0, 1, 3, 4, 2)


def test_an_in_place_result_is_its_operand_whatever_the_kernel_makes_out_of_place() -> None:
    row = layout_operators()["aten.masked_fill"]
    out_of_place, in_place = call("masked_fill.Scalar"), call("masked_fill_.Scalar", mutates=("x",))
    assert carried_orders(row, out_of_place, (2, 8, 5, 6), NHWC, ((2, 8, 5, 6),)) == (None,)
    assert stored_orders(row, out_of_place, (2, 8, 5, 6), NHWC, ((2, 8, 5, 6),)) == ((0, 1, 2, 3),)
    assert carried_orders(row, in_place, (2, 8, 5, 6), NHWC, ((2, 8, 5, 6),)) == (NHWC,)
    turned, transpose = call("transpose_.default", 1, 2, mutates=("x",)), layout_operators()["aten.transpose"]
    assert carried_orders(transpose, turned, (2, 3, 4), (0, 1, 2), ((2, 4, 3),)) == ((0, 2, 1),)


def test_what_was_not_measured_on_a_device_is_not_said_there() -> None:
    op, row = call("native_layer_norm.default"), layout_operators()["aten.native_layer_norm"]
    plain = plain_order((2, 8, 6))
    assert stored_orders(row, op, (2, 8, 6), (0, 2, 1), ((2, 8, 6),)) == (plain,)
    assert stored_orders(row, op, (2, 8, 6), (0, 2, 1), ((2, 8, 6),), device="cuda") == (None,)
    assert carried(op, (2, 8, 6), plain, (2, 8, 6)) == plain
    assert carried(op, (2, 8, 6), (0, 2, 1), (2, 8, 6), device="cuda", inner="inductor") == (0, 2, 1)


def test_attention_takes_rows_only() -> None:
    row = layout_operators()["aten._scaled_dot_product_flash_attention_for_cpu"]
    op, shape = call("_scaled_dot_product_flash_attention_for_cpu.default"), (2, 3, 8, 16)
    assert computes_right(row, shape, (0, 2, 1, 3))
    assert carried(op, shape, (0, 2, 1, 3), shape) == (0, 2, 1, 3)
    assert not computes_right(row, shape, (0, 1, 3, 2))
    assert carried(op, shape, (0, 1, 3, 2), shape) is None


def test_a_kernel_that_needs_a_memory_format() -> None:
    row = layout_operators()["aten.native_group_norm"]
    assert computes_right(row, (2, 8, 5, 6), NHWC)
    assert not computes_right(row, (2, 8, 5, 6), (1, 0, 2, 3))
    op = call("native_group_norm.default")
    assert carried(op, (2, 8, 5, 6), (1, 0, 2, 3), (2, 8, 5, 6), inner="inductor") == (1, 0, 2, 3)


def test_nothing_is_said_of_what_is_unknown() -> None:
    assert carried_orders(UNKNOWN, call("nonzero.default"), (2, 3), (0, 1), ((4, 2),)) == (None,)


@pytest.mark.parametrize("order", [(0, 1), (0, 1, 1), (1, 2, 3)])
def test_an_order_that_is_none_is_refused(order: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="no order"):
        carried_orders(POINTWISE, call("relu.default"), (2, 3, 4), order, ((2, 3, 4),))


SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(tuple)


@st.composite
def stored(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = draw(SHAPES)
    return shape, tuple(draw(st.permutations(range(len(shape)))))


@given(stored())
def test_the_canonical_order_is_the_one_that_strides_are_read_back_as(given_: Any) -> None:
    shape, order = given_
    own = canonical(shape, order)
    long = [dim for dim in order if shape[dim] > 1]
    assert [dim for dim in own if shape[dim] > 1] == long
    assert canonical(shape, own) == own
    assert dimension_order(shape, strides_in_order(shape, order)) == own


@given(stored())
def test_strides_in_an_order_are_what_torch_calls_by_its_name(given_: Any) -> None:
    shape, order = given_
    tensor = torch.empty_strided(shape, strides_in_order(shape, order))
    strides = tensor.stride()
    if canonical(shape, order) == plain_order(shape):
        assert strides == torch.empty(shape).stride()
    elif is_channels_last(shape, strides):
        wanted = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
        assert strides == torch.empty(shape).to(memory_format=wanted).stride()
    assert is_contiguous(shape, strides) == tensor.is_contiguous()


@given(stored(), st.data())
def test_a_view_maps_where_torch_makes_one(given_: Any, data: st.DataObject) -> None:
    shape, order = given_
    result = data.draw(factorised(math.prod(shape)))
    tensor = torch.empty_strided(shape, strides_for_order(shape, canonical(shape, order)))
    mapped = mapped_order(DimensionMap.REGROUP, call("view.default", result), shape, order, result)
    try:
        viewed = tensor.view(result)
    except RuntimeError:
        assert mapped is None
    else:
        assert mapped == dimension_order(result, viewed.stride())


@st.composite
def factorised(draw: st.DrawFn, count: int) -> tuple[int, ...]:
    """A shape of `count` elements."""
    sizes: list[int] = []
    left = count
    while left > 1:
        size = draw(st.sampled_from([n for n in range(2, left + 1) if left % n == 0]))
        sizes.append(size)
        left //= size
    for _ in range(draw(st.integers(0, 2))):
        sizes.insert(draw(st.integers(0, len(sizes))), 1)
    return tuple(sizes)


@given(stored(), st.data())
def test_views_that_move_dimensions_map_as_torch_moves_them(given_: Any, data: st.DataObject) -> None:
    shape, order = given_
    rank = len(shape)
    tensor = torch.empty_strided(shape, strides_in_order(shape, order))
    dim, other = (data.draw(st.integers(-rank, rank - 1)) for _ in range(2))
    dims = tuple(data.draw(st.permutations(range(rank))))
    for op, viewed in (
        (call("permute.default", dims), tensor.permute(dims)),
        (call("transpose.int", dim, other), tensor.transpose(dim, other)),
        (call("unsqueeze.default", dim), tensor.unsqueeze(dim)),
        (call("squeeze.default"), tensor.squeeze()),
        (call("squeeze.dim", dim), tensor.squeeze(dim)),
        (call("squeeze.dims", (dim,)), tensor.squeeze((dim,))),
        (call("select.int", dim, 0), tensor.select(dim, 0)),
        (call("unbind.int", dim), tensor.unbind(dim)[0]),
    ):
        result = tuple(viewed.shape)
        mapped = mapped_order(layout_operators()[op.operator].dimensions, op, shape, order, result)
        assert mapped == dimension_order(result, viewed.stride()), op.target


def test_every_permutation_of_an_image_through_a_permute() -> None:
    for order, dims in itertools.product(itertools.permutations(range(4)), repeat=2):
        viewed = torch.empty_strided((2, 3, 4, 5), strides_for_order((2, 3, 4, 5), order)).permute(dims)
        op = call("permute.default", dims)
        assert carried(op, (2, 3, 4, 5), order, tuple(viewed.shape)) == dimension_order(viewed.shape, viewed.stride())


@pytest.mark.parametrize("shape", [(6, 1, 6), (1, 4, 2, 6, 6), (4, 1, 3, 1), (2, 3, 4), (1, 1, 6), (12,)])
def test_strides_of_views_are_those_of_torch(shape: tuple[int, ...]) -> None:
    total = math.prod(shape)
    results = [
        (a, b, total // a // b) for a in range(1, total + 1) for b in range(1, total + 1) if total % (a * b) == 0
    ]
    refused = 0
    for order in itertools.permutations(range(len(shape))):
        value = torch.empty([shape[dim] for dim in order]).permute(torch.tensor(order).argsort().tolist())
        for result in results:
            found = view_strides(shape, value.stride(), result)
            refused += found is None
            if found is None:
                with pytest.raises(RuntimeError):
                    value.view(result)
            else:
                assert value.view(result).stride() == found
    assert (refused > 0) is (sum(n > 1 for n in shape) > 1)
