from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from frx_graph.analyzers.trace.copies import TraceCopy, find_copies
from frx_graph.capture.captured_graph import Phase
from frx_graph.evidence.dtype import DType
from frx_graph.evidence.trace.events import ActivityKind, Operand
from frx_graph.evidence.trace.tree import build_tree
from frx_graph.records import CopyKind, OperandRole

COPY_KERNEL = "void at::native::elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda()>(int)"
TO_LAST, FROM_LAST = "void nchwToNhwcKernel<float>(int)", "void nhwcToNchwKernel<float>(int)"
Tensor = Callable[..., Operand]


def copies_of(sketch: Any) -> list[tuple[TraceCopy, str]]:
    tree = build_tree(sketch.build())
    return [(copy, tree.operators[copy.operator].name) for copy in find_copies(tree)]


def draw_contiguous(
    sketch: Any, target: Operand | None, source: Operand | None, asker: str = "aten::contiguous"
) -> None:
    sketch.op(asker, 10, 20)
    sketch.op("aten::clone", 11, 19)
    sketch.op("aten::copy_", 12, 18, target, source, None)


def test_a_copy_that_the_program_asks_for(sketch: Any, make_tensor: Tensor) -> None:
    source = make_tensor(2, 3, strides=(1, 2))
    draw_contiguous(sketch, make_tensor(2, 3, strides=(3, 1)), source)
    ((copy, name),) = copies_of(sketch)
    assert (copy.rule, copy.kind, name, copy.bytes) == ("FRX002", CopyKind.EXPLICIT, "aten::contiguous", 48)
    assert (copy.operand, copy.target, copy.phase) == (source, (3, 1), Phase.FORWARD)


def test_a_reshape_that_copies(sketch: Any, make_tensor: Tensor) -> None:
    draw_contiguous(sketch, make_tensor(2, 3), make_tensor(2, 3), asker="aten::reshape")
    ((copy, name),) = copies_of(sketch)
    assert (copy.rule, copy.kind, name) == ("FRX002", CopyKind.RESHAPE, "aten::reshape")


@pytest.mark.parametrize("hot", ["aten::matmul", "aten::conv2d", "aten::cat", "mylib::attention"])
def test_a_copy_inside_a_hot_operator_is_blamed_on_it(sketch: Any, make_tensor: Tensor, hot: str) -> None:
    sketch.op(hot, 5, 30)
    draw_contiguous(sketch, make_tensor(2, 3), make_tensor(2, 3))
    ((copy, name),) = copies_of(sketch)
    assert (copy.rule, copy.kind, name) == ("FRX001", CopyKind.OPERATOR, hot)


@pytest.mark.parametrize(
    "around", ["aten::masked_fill", "torch::autograd::AccumulateGrad", "torch.distributed.ddp.reducer::mul_out"]
)
def test_copies_by_design_are_ignored(sketch: Any, make_tensor: Tensor, around: str) -> None:
    sketch.op(around, 5, 30)
    draw_contiguous(sketch, make_tensor(2, 3), make_tensor(2, 3))
    assert copies_of(sketch) == []


def test_ranges_and_autograd_nodes_are_not_operators(sketch: Any, make_tensor: Tensor) -> None:
    sketch.op("## forward ##", 1, 40, annotation=True)
    sketch.op("autograd::engine::evaluate_function: ViewBackward0", 2, 39)
    sketch.op("ViewBackward0", 3, 38, sequence=7, forward_thread=1)
    draw_contiguous(sketch, make_tensor(2, 3), make_tensor(2, 3), asker="aten::reshape")
    ((copy, _),) = copies_of(sketch)
    assert (copy.rule, copy.phase) == ("FRX002", Phase.BACKWARD)


def test_a_bare_copy_fills_a_buffer(sketch: Any, make_tensor: Tensor) -> None:
    sketch.op("aten::linear", 5, 30)
    sketch.op("aten::addmm", 6, 29)
    sketch.op("aten::copy_", 12, 18, make_tensor(2, 3), make_tensor(2, 3, strides=(0, 1)), None)
    assert copies_of(sketch) == []


def test_dtype_change_is_not_a_layout_copy(sketch: Any, make_tensor: Tensor) -> None:
    draw_contiguous(sketch, make_tensor(2, 3), make_tensor(2, 3, dtype=DType.FLOAT16), asker="aten::to")
    assert copies_of(sketch) == []


def test_without_types_only_to_is_in_doubt(sketch: Any) -> None:
    draw_contiguous(sketch, None, None, asker="aten::to")
    assert copies_of(sketch) == []
    sketch.operators.clear()
    draw_contiguous(sketch, None, None)
    ((copy, _),) = copies_of(sketch)
    assert copy.bytes is None


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("Memcpy HtoD (Pageable -> Device)", 0),
        ("Memcpy PtoP (Device -> Device)", 0),
        ("CopyDeviceToHost", 0),
        ("Memcpy DtoD (Device -> Device)", 1),
    ],
)
def test_transfer_is_not_a_layout_copy(sketch: Any, make_tensor: Tensor, name: str, count: int) -> None:
    draw_contiguous(sketch, make_tensor(2, 3), make_tensor(2, 3), asker="aten::to")
    sketch.kernel(name, 13, 50, 5, kind=ActivityKind.MEMCPY)
    assert len(copies_of(sketch)) == count


def test_a_scalar_is_not_copied_for_its_layout(sketch: Any, make_tensor: Tensor) -> None:
    draw_contiguous(sketch, make_tensor(), make_tensor())
    assert copies_of(sketch) == []


def test_each_kernel_belongs_to_one_copy(sketch: Any, make_tensor: Tensor) -> None:
    sketch.op("aten::conv2d", 1, 60)
    draw_contiguous(sketch, make_tensor(2, 3), make_tensor(2, 3))
    sketch.kernel(COPY_KERNEL, 13, 100, 5)
    sketch.op("aten::cudnn_convolution", 30, 50)
    sketch.kernel(TO_LAST, 31, 110, 5)
    found = [copy for copy, _ in copies_of(sketch)]
    claimed = [activity for copy in found for activity in copy.activities]
    assert sorted(claimed) == [0, 1]
    assert sorted(copy.rule for copy in found) == ["FRX001", "FRX004"]


def draw_convolution(sketch: Any, image: Operand, weight: Operand, *kernels: tuple[str, int]) -> None:
    sketch.op("aten::conv2d", 1, 60, image, weight, sequence=3, forward_thread=0)
    sketch.op(
        "aten::convolution", 2, 59, image, weight, concrete=("", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "", "1")
    )
    sketch.op("aten::cudnn_convolution", 3, 58, image, weight, None, None)
    for position, (name, duration) in enumerate(kernels):
        sketch.kernel(name, 10 + position, 100 + 100 * position, duration)


def test_a_convolution_that_converts_operands_and_result(sketch: Any, make_tensor: Tensor) -> None:
    image, weight = make_tensor(32, 256, 28, 28), make_tensor(256, 256, 3, 3)
    draw_convolution(sketch, image, weight, (TO_LAST, 66), (TO_LAST, 9), ("volta_scudnn_nhwc", 90), (FROM_LAST, 18))
    found = copies_of(sketch)
    assert [(copy.rule, copy.role, copy.operand.shape) for copy, _ in found if copy.operand] == [
        ("FRX004", OperandRole.INPUT, (32, 256, 28, 28)),
        ("FRX007", OperandRole.WEIGHT, (256, 256, 3, 3)),
        ("FRX004", OperandRole.OUTPUT, (32, 256, 14, 14)),
    ]
    assert {name for _, name in found} == {"aten::conv2d"}
    assert [copy.bytes for copy, _ in found] == [51_380_224, 4_718_592, 12_845_056]


def test_a_pointwise_weight_needs_no_conversion(sketch: Any, make_tensor: Tensor) -> None:
    draw_convolution(sketch, make_tensor(8, 64, 28, 28), make_tensor(64, 64, 1, 1), (TO_LAST, 20))
    ((copy, _),) = copies_of(sketch)
    assert (copy.rule, copy.role) == ("FRX004", OperandRole.INPUT)


def test_an_operand_that_is_channels_last_needs_none_either(sketch: Any, make_tensor: Tensor) -> None:
    image = make_tensor(8, 64, 28, 28, strides=(50176, 1, 1792, 64))
    weight = make_tensor(64, 64, 3, 3, strides=(576, 9, 3, 1))
    draw_convolution(sketch, image, weight, (TO_LAST, 20))
    ((copy, _),) = copies_of(sketch)
    assert (copy.rule, copy.role) == ("FRX007", OperandRole.WEIGHT)


def test_times_that_contradict_the_sizes_leave_the_roles_open(sketch: Any, make_tensor: Tensor) -> None:
    image, weight = make_tensor(32, 256, 28, 28), make_tensor(256, 256, 3, 3)
    draw_convolution(sketch, image, weight, (TO_LAST, 9), (TO_LAST, 66))
    found = [copy for copy, _ in copies_of(sketch)]
    assert [(copy.rule, copy.role) for copy in found] == [("FRX004", None), ("FRX004", None)]
    assert all(copy.bytes is not None for copy in found)


def test_more_kernels_than_tensors_leave_them_unknown(sketch: Any, make_tensor: Tensor) -> None:
    image, weight = make_tensor(32, 256, 28, 28), make_tensor(256, 256, 3, 3)
    draw_convolution(sketch, image, weight, (TO_LAST, 66), (TO_LAST, 9), (TO_LAST, 9))
    assert [(copy.rule, copy.bytes) for copy, _ in copies_of(sketch)] == [("FRX004", None)] * 3


def test_conversions_without_shapes_or_operator_are_still_found(sketch: Any) -> None:
    sketch.op("aten::relu", 1, 5)
    sketch.kernel(TO_LAST, 50, 100, 5)
    ((copy, _),) = [(copy, "") for copy in find_copies(build_tree(sketch.build()))]
    assert (copy.rule, copy.operator, copy.bytes) == ("FRX004", -1, None)


def test_the_backward_of_a_convolution(sketch: Any, make_tensor: Tensor) -> None:
    gradient, image, weight = make_tensor(8, 32, 14, 14), make_tensor(8, 64, 28, 28), make_tensor(32, 64, 3, 3)
    sketch.op("ConvolutionBackward0", 1, 60, gradient, sequence=3, forward_thread=1)
    sketch.op("aten::convolution_backward", 2, 59, gradient, image, weight, None)
    for position, (name, duration) in enumerate(
        [(TO_LAST, 5), (TO_LAST, 30), (TO_LAST, 3), (FROM_LAST, 30), (FROM_LAST, 3)]
    ):
        sketch.kernel(name, 10 + position, 100 + 100 * position, duration)
    found = [copy for copy, _ in copies_of(sketch)]
    assert [copy.role for copy in found] == [
        OperandRole.INPUT,
        OperandRole.INPUT,
        OperandRole.WEIGHT,
        OperandRole.OUTPUT,
        OperandRole.OUTPUT,
    ]
    assert {copy.phase for copy in found} == {Phase.BACKWARD}


def test_a_compiled_copy(sketch: Any, make_tensor: Tensor) -> None:
    name = "triton_poi_fused_clone_0"
    sketch.op(name, 1, 5, make_tensor(4, 8, strides=(1, 4)), make_tensor(4, 8, strides=(8, 1)), None)
    sketch.kernel(name, 2, 10, 5)
    ((copy, operator),) = copies_of(sketch)
    assert (copy.rule, copy.bytes, copy.target, operator) == ("FRX002", 256, (8, 1), name)
