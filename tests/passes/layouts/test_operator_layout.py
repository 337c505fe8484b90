"""The row of a call, and which values of the call it speaks of."""

from typing import Any

import pytest
import torch

from frx_graph.capture.call_site import UNKNOWN_SITE
from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import OpFacts, ValueRef
from frx_graph.passes.layouts.operator_layout import (
    find_layout_operator,
    follows_operand,
    is_in_place,
    list_layout_operands,
    list_layout_results,
    requires_one_layout,
)
from frx_graph.rules.layout_operator import POINTWISE, UNKNOWN, Keeps, LayoutRole


def call(operator: str, *names: str, mutates: tuple[str, ...] = (), **fields: Any) -> OpFacts:
    made: dict[str, Any] = {
        "node": "node",
        "target": f"{operator}.default",
        "operator": operator,
        "args": tuple(ValueRef(name) for name in names),
        "kwargs": {},
        "inputs": names,
        "outputs": ("out",),
        "mutates": mutates,
        "phase": Phase.FORWARD,
        "site": UNKNOWN_SITE,
    }
    return OpFacts(**(made | fields))


def test_masked_fill_is_a_barrier_though_torch_calls_it_pointwise() -> None:
    assert torch.Tag.pointwise in torch.ops.aten.masked_fill.Scalar.tags
    assert find_layout_operator(call("aten.masked_fill", "x", pointwise=True)).role is LayoutRole.BARRIER


def test_pointwise_operators_need_no_row() -> None:
    assert find_layout_operator(call("aten.gelu", "x", pointwise=True)) is POINTWISE
    assert find_layout_operator(call("aten.nonzero", "x")) is UNKNOWN


def test_the_maximum_of_two_tensors_is_pointwise_and_over_a_dimension_a_reduction() -> None:
    assert find_layout_operator(call("aten.max", "x", "y", target="aten.max.other", pointwise=True)) is POINTWISE
    assert find_layout_operator(call("aten.max", "x", target="aten.max.dim")).role is LayoutRole.REDUCTION


def test_an_in_place_operator_has_the_row_of_its_out_of_place_form() -> None:
    row = find_layout_operator(call("aten.hardswish_", "x", mutates=("x",)))
    assert row.operator == "aten.hardswish"


def test_operator_with_an_explicit_memory_format_is_a_barrier() -> None:
    asked = call("aten.clone", "x", pointwise=True, kwargs={"memory_format": torch.contiguous_format})
    kept = call("aten.clone", "x", pointwise=True, kwargs={"memory_format": torch.preserve_format})
    assert find_layout_operator(asked).role is LayoutRole.BARRIER
    assert find_layout_operator(kept).role is LayoutRole.AGNOSTIC


def test_group_norm_keeps_channels_last_on_the_cpu_and_wherever_inductor_writes_the_loops() -> None:
    row = find_layout_operator(call("aten.native_group_norm", "x"))
    assert row.is_region_member("cpu", "eager")
    assert not row.is_region_member("cuda", "eager")
    assert row.is_region_member("cuda", "inductor")
    assert [
        row.get_kept_orders("cpu", "eager"),
        row.get_kept_orders("cuda", "eager"),
        row.get_kept_orders("cuda", "inductor"),
    ] == [
        Keeps.CHANNELS_LAST,
        Keeps.UNKNOWN,
        Keeps.ANY,
    ]


def test_only_the_image_of_a_convolution_counts() -> None:
    op = call("aten.convolution", "x", "weight", "bias")
    assert list_layout_operands(op, find_layout_operator(op)) == ("x",)


def test_every_tensor_of_a_list_counts_once() -> None:
    op = call("aten.cat", args=((ValueRef("x"), ValueRef("y"), ValueRef("x")), 1), inputs=("x", "y", "x"))
    assert list_layout_operands(op, find_layout_operator(op)) == ("x", "y")
    pointwise = call("aten.add", "x", "x", pointwise=True)
    assert list_layout_operands(pointwise, POINTWISE) == ("x",)


@pytest.mark.parametrize(
    ("mask", "outputs", "counted"),
    [
        ((True, True, False), ("gx", "gw"), ("gx",)),
        ((False, True, False), ("gw",), ()),
        ((True, True, True), ("gx", "gw", "gb"), ("gx",)),
        ((False, True, True), ("gw", "gb"), ()),
    ],
)
def test_the_gradient_of_a_weight_does_not_count(
    mask: tuple[bool, ...], outputs: tuple[str, ...], counted: tuple[str, ...]
) -> None:
    op = call("aten.convolution_backward", "g", "x", "weight")
    op = call("aten.convolution_backward", "g", "x", "weight", args=(*op.args, *[None] * 7, mask), outputs=outputs)
    row = find_layout_operator(op)
    assert list_layout_operands(op, row) == ("g", "x")
    assert list_layout_results(op, row) == counted


def test_statistics_do_not_count_and_all_parts_of_a_split_do() -> None:
    norm = call("aten.native_layer_norm", "x", outputs=("y", "mean", "scale"))
    assert list_layout_results(norm, find_layout_operator(norm)) == ("y",)
    split = call("aten.split", "x", target="aten.split.Tensor", outputs=("a", "b"))
    assert list_layout_results(split, find_layout_operator(split)) == ("a", "b")


def test_views_and_in_place_results_follow_their_operand() -> None:
    assert follows_operand(call("aten.alias", "x", view=True))
    assert follows_operand(call("aten.relu_", "x", mutates=("x",), pointwise=True))
    assert not follows_operand(call("aten.relu", "x", pointwise=True))
    running_statistics = call("aten._native_batch_norm_legit", "x", "mean", mutates=("mean",))
    assert not follows_operand(running_statistics)
    assert not is_in_place(running_statistics)


def test_the_backward_of_a_pooling_wants_one_layout() -> None:
    assert requires_one_layout(call("aten.avg_pool2d_backward", "g", "x"))
    assert not requires_one_layout(call("aten.avg_pool2d", "x"))
    assert not requires_one_layout(call("aten.convolution_backward", "g", "x"))
