"""Find the layout-conversion kernels of GPU convolution libraries, and the tensors that they convert.

cuDNN and MIOpen convert inside one call, and only the kernel's name shows it. The name does not identify the tensor,
which is inferred from the order in which a convolution needs its operands. A kernel whose tensor cannot be identified
is left out: its bytes are not guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from frx_graph.measure.operators.operator_measurement import Mechanism, ObservedRole, SeenCopy

_CONVERSION = re.compile(r"(nchw|nhwc|ncdhw|ndhwc)to(nchw|nhwc|ncdhw|ndhwc)")
_CHANNELS_LAST = frozenset({"nhwc", "ndhwc"})
_Operands = tuple[tuple[int, ObservedRole], ...]
"""Argument positions, `_RESULT` for the result, with their roles."""
_FORWARD_READS: _Operands = ((0, "input"), (1, "weight"))
"""Argument positions of `convolution(input, weight)`; the order was read off cuDNN 8 traces (input, weight, result)."""
_BACKWARD_READS: _Operands = ((0, "input"), (2, "weight"), (1, "input"), (0, "input"))
"""Argument positions of `convolution_backward(grad_output, input, weight)`: gradient and weight for the input's
gradient, then input and gradient for the weight's. No trace at hand confirms this order."""
_RESULT, _UNKNOWN = -1, -2
_FORWARD_WRITES: _Operands = ((_RESULT, "output"),)
_BACKWARD_WRITES: _Operands = ((1, "output"), (2, "weight"))


@dataclass(frozen=True, slots=True)
class ConvolutionOperands:
    """The shapes of a convolution call's operands, in the order of arguments, and of the result (None if unknown)."""

    operator: str
    shapes: tuple[tuple[int, ...], ...]
    itemsize: int
    output: tuple[int, ...] | None


def is_conversion(name: str) -> bool:
    """Return True for a kernel that converts between channels-first and channels-last."""
    found = _CONVERSION.search(name.lower())
    return found is not None and (found[1] in _CHANNELS_LAST) != (found[2] in _CHANNELS_LAST)


def find_conversions(kernels: Sequence[str], call: ConvolutionOperands) -> tuple[SeenCopy, ...]:
    """Return the conversions among the kernels of one convolution call, which are given by name, in order."""
    backward = call.operator.endswith("convolution_backward")
    shapes = dict(enumerate(call.shapes)) | {_RESULT: call.output}
    reads = iter(_BACKWARD_READS if backward else _FORWARD_READS)
    writes = iter(_BACKWARD_WRITES if backward else _FORWARD_WRITES)
    seen: list[SeenCopy] = []
    for kernel in filter(is_conversion, kernels):
        source, target = _CONVERSION.findall(kernel.lower())[0]
        reading = target in _CHANNELS_LAST
        place, role = next(reads if reading else writes, (_UNKNOWN, "input"))
        shape, operand = shapes.get(place), place if reading else None
        if shape is not None and math.prod(shape) > 0:
            seen.append(SeenCopy(Mechanism.KERNEL, shape, call.itemsize, source, target, role, operand))
    return tuple(seen)


def compute_convolution_output(shapes: Sequence[Sequence[int]], arguments: Sequence[Any]) -> tuple[int, ...] | None:
    """Return the shape of `aten::convolution`'s result; `arguments` are its concrete arguments as the profiler records
    them (tensors None). None if they were not recorded."""
    if len(shapes) < 2 or len(arguments) < 9 or not all(isinstance(a, (list, tuple)) for a in arguments[3:6]):
        return None
    source, weight = shapes[0], shapes[1]
    stride, padding, dilation, transposed, extra, groups = arguments[3:9]
    rank = len(source) - 2
    if rank < 1 or len(weight) != rank + 2:
        return None

    # One number may stand for all axes.
    by_axis = (
        [*values] if len(values) > 1 else [*values, 0][:1] * rank for values in (stride, padding, dilation, extra)
    )
    sizes = [
        (size - 1) * step - 2 * pad + apart * (window - 1) + more + 1
        if transposed
        else (size + 2 * pad - apart * (window - 1) - 1) // step + 1
        for size, window, step, pad, apart, more in zip(source[2:], weight[2:], *by_axis, strict=True)
    ]
    channels = weight[1] * int(groups) if transposed else weight[0]
    return (source[0], channels, *sizes)
