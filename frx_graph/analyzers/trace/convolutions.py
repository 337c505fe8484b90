"""Find the tensors that a convolution of a trace converts between plain and channels-last, by shapes and order."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from frx_graph.analyzers.trace.kernel_names import KernelClass, classify_kernel
from frx_graph.evidence.trace.events import DeviceActivity, Operand
from frx_graph.evidence.trace.tree import NONE, TraceTree
from frx_graph.facts.layout import is_channels_last
from frx_graph.records import OperandRole

_FORWARD = re.compile(r"aten::(?:(?:_|cudnn_|miopen_|mkldnn_)?convolution|conv[123]d)")
_BACKWARD = "aten::convolution_backward"
_INTEGERS = re.compile(r"-?\d{1,9}")
_SIMILAR = 1.5
"""Relative size difference below which conversion times may have any order."""


@dataclass(frozen=True, slots=True)
class Converted:
    """The tensor that one conversion kernel reads or writes; None for facts missing from the trace."""

    role: OperandRole | None = None
    operand: Operand | None = None


def find_converted_tensors(tree: TraceTree, operator: int, kernels: Sequence[DeviceActivity]) -> list[Converted]:
    """Return the tensors that `kernels`, the ordered conversions that `operator` launched, convert.

    cuDNN converts the operands in order, then the results. A tensor is identified only if the kernels of a direction
    are as many as the tensors that need it.
    """
    found = [Converted() for _ in kernels]
    reads, writes = _list_convertible(tree, operator)
    for kind, tensors in ((KernelClass.TO_CHANNELS_LAST, reads), (KernelClass.FROM_CHANNELS_LAST, writes)):
        positions = [i for i, kernel in enumerate(kernels) if classify_kernel(kernel.name) is kind]
        if len(positions) != len(tensors):
            continue
        durations = [kernels[i].duration_ns for i in positions]
        certain = _is_time_plausible([tensor.operand for tensor in tensors], durations)
        for position, tensor in zip(positions, tensors, strict=True):
            found[position] = tensor if certain else replace(tensor, role=None)
    return found


def _list_convertible(tree: TraceTree, operator: int) -> tuple[list[Converted], list[Converted]]:
    """Return the tensors that a convolution in plain layout converts to channels-last, and back."""
    call = tree.operators[operator]
    operands = [operand for operand in call.operands or () if operand is not None and len(operand.shape) >= 3]
    if call.name == _BACKWARD and len(operands) == 3:
        gradient, image, weight = operands
        reads = [Converted(OperandRole.INPUT, gradient), Converted(OperandRole.INPUT, image)]
        reads.append(Converted(OperandRole.WEIGHT, weight))
        writes = [Converted(OperandRole.OUTPUT, image), Converted(OperandRole.OUTPUT, weight)]
    elif _FORWARD.fullmatch(call.name) and len(operands) == 2:
        image, weight = operands
        reads = [Converted(OperandRole.INPUT, image), Converted(OperandRole.WEIGHT, weight)]
        result = infer_convolution_output(tree, operator)
        writes = [Converted(OperandRole.OUTPUT, result)] if result is not None else []
    else:
        return [], []
    return (
        [tensor for tensor in reads if tensor.operand is not None and _is_convertible(tensor.operand)],
        [tensor for tensor in writes if tensor.operand is not None and _is_convertible(tensor.operand)],
    )


def _is_convertible(operand: Operand) -> bool:
    """Return False if plain and channels-last are the same memory, or the strides already say channels-last."""
    if operand.shape[1] == 1 or math.prod(operand.shape[2:]) == 1:
        return False
    return operand.strides is None or not is_channels_last(operand.shape, operand.strides)


def _is_time_plausible(operands: Sequence[Operand | None], durations: Sequence[int]) -> bool:
    """Return False if a clearly larger tensor would have been converted in less time than a smaller one."""
    sizes = [math.prod(operand.shape) if operand is not None else 0 for operand in operands]
    return all(
        not (size > _SIMILAR * other and time < other_time)
        for size, time in zip(sizes, durations, strict=True)
        for other, other_time in zip(sizes, durations, strict=True)
    )


def infer_convolution_output(tree: TraceTree, operator: int) -> Operand | None:
    """Return the result of the forward convolution at an index, without strides; None if its shape is unknown.

    The matching backward node received a gradient of the same shape. Without a backward it follows from stride, padding
    and dilation, which `aten::convolution` carries as text.
    """
    call = tree.operators[operator]
    tensors = [operand for operand in call.operands or () if operand is not None]
    if len(tensors) < 2:
        return None
    image, weight = tensors[0], tensors[1]
    gradient = _find_gradient(tree, operator)
    if gradient is not None:
        return replace(image, shape=gradient.shape, strides=None)
    above = operator
    while above != NONE and tree.operators[above].name != "aten::convolution":
        above = tree.parents[above]
    concrete = tree.operators[above].concrete if above != NONE else ()
    if len(concrete) < 7 or concrete[6] != "False":
        return None
    stride, padding, dilation = (tuple(int(n) for n in _INTEGERS.findall(text)) for text in concrete[3:6])
    spatial = image.shape[2:]
    if not len(spatial) == len(weight.shape) - 2 == len(stride) == len(padding) == len(dilation) or 0 in stride:
        return None
    sizes = tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(spatial, weight.shape[2:], stride, padding, dilation, strict=True)
    )
    return Operand((image.shape[0], weight.shape[0], *sizes), image.dtype) if all(n > 0 for n in sizes) else None


def _find_gradient(tree: TraceTree, operator: int) -> Operand | None:
    """Return the gradient of a convolution's result, from the autograd node that the convolution recorded."""
    above = operator
    while above != NONE and tree.operators[above].sequence is None and _FORWARD.fullmatch(tree.operators[above].name):
        above = tree.parents[above]
    sequence = tree.operators[above].sequence if above != NONE else None
    backward = tree.backward_node.get(sequence) if sequence is not None else None
    if backward is None or "Convolution" not in tree.operators[backward].name:
        return None
    operands = tree.operators[backward].operands
    return operands[0] if operands and operands[0] is not None and len(operands[0].shape) >= 3 else None
