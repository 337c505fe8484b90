"""Find the tensors that a convolution of a trace converts between plain and channels-last, by shapes and order."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from frx_graph.analyzers.trace.kernel_names import KernelClass, classify_kernel
from frx_graph.analyzers.trace.operators import iterate_upwards
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
    """Return the tensors that `kernels`, the ordered conversions that `operator` (or `NONE`) launched, convert.

    cuDNN converts the operands in order, then the results. A tensor is identified only if the kernels of a direction
    are as many as the tensors that need it.
    """
    found = [Converted()] * len(kernels)
    reads, writes = _list_convertible(tree, operator)
    for kind, tensors in ((KernelClass.TO_CHANNELS_LAST, reads), (KernelClass.FROM_CHANNELS_LAST, writes)):
        positions = [i for i, kernel in enumerate(kernels) if classify_kernel(kernel.name) is kind]
        if len(positions) != len(tensors):
            continue
        sizes = [math.prod(tensor.operand.shape) for tensor in tensors if tensor.operand is not None]
        times = list(zip(sizes, (kernels[i].duration_ns for i in positions), strict=True))
        # A clearly larger tensor is not converted in less time than a smaller one.
        certain = not any(size > _SIMILAR * other and time < less for size, time in times for other, less in times)
        for position, tensor in zip(positions, tensors, strict=True):
            found[position] = tensor if certain else replace(tensor, role=None)
    return found


def _list_convertible(tree: TraceTree, operator: int) -> tuple[list[Converted], list[Converted]]:
    """Return the tensors that a convolution in plain layout converts to channels-last, and back."""
    if operator == NONE:
        return [], []
    call = tree.operators[operator]
    operands = [operand for operand in call.operands or () if operand is not None and len(operand.shape) >= 3]
    results: list[Operand | None] = []
    if call.name == _BACKWARD and len(operands) == 3:
        results = [*operands[1:]]
    elif _FORWARD.fullmatch(call.name) and len(operands) == 2:
        results = [infer_convolution_output(tree, operator)]
    else:
        operands = []
    roles = [*[OperandRole.INPUT] * (len(operands) - 1), OperandRole.WEIGHT]
    return (
        [Converted(role, one) for role, one in zip(roles, operands, strict=False) if _is_convertible(one)],
        [Converted(OperandRole.OUTPUT, one) for one in results if one is not None and _is_convertible(one)],
    )


def _is_convertible(operand: Operand) -> bool:
    """Return False if plain and channels-last are the same memory, or the strides already say channels-last."""
    if operand.shape[1] == 1 or math.prod(operand.shape[2:]) == 1:
        return False
    return operand.strides is None or not is_channels_last(operand.shape, operand.strides)


def infer_convolution_output(tree: TraceTree, operator: int) -> Operand | None:
    """Return the result of the forward convolution at an index, without strides; None if its shape is unknown.

    The matching backward node received a gradient of the same shape. Without a backward it follows from stride, padding
    and dilation, which `aten::convolution` carries as text.
    """
    call = tree.operators[operator]
    tensors = [operand for operand in call.operands or () if operand is not None]
    if len(tensors) < 2:
        return None
    image, weight = tensors[:2]
    gradient = _find_gradient(tree, operator)
    if gradient is not None:
        return replace(image, shape=gradient.shape, strides=None)
    callers = (tree.operators[index] for index in iterate_upwards(tree, operator))
    concrete = next((caller.concrete for caller in callers if caller.name == "aten::convolution"), ())
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
    callers = (tree.operators[index] for index in iterate_upwards(tree, operator))
    owner = next((one for one in callers if one.sequence is not None or not _FORWARD.fullmatch(one.name)), None)
    backward = tree.backward_node.get(owner.sequence) if owner is not None and owner.sequence is not None else None
    if backward is None or "Convolution" not in tree.operators[backward].name:
        return None
    operands = tree.operators[backward].operands
    return operands[0] if operands and operands[0] is not None and len(operands[0].shape) >= 3 else None
