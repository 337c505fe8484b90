"""Compute a region by torch's operators: where oneDNN cannot, and to compare with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from frx_graph.ops.onednn.steps import (
    Concatenation,
    Convolution,
    Elementwise,
    Following,
    Pooling,
    Product,
    Region,
    Reshape,
    Step,
)


def compute_region(region: Region, inputs: Sequence[Tensor], constants: Sequence[Tensor]) -> list[Tensor]:
    """Return the region's results, in the strides that it describes."""
    values = list(inputs)
    for step in region.steps:
        values.append(_compute_step(step, values, constants))
    pairs = zip(region.outputs, region.results, strict=True)
    return [described.allocate().copy_(values[number]) for number, described in pairs]


def _compute_step(step: Step, values: Sequence[Tensor], constants: Sequence[Tensor]) -> Tensor:
    match step:
        case Convolution():
            result = _convolve(step, values[step.image], constants)
        case Product():
            bias = None if step.bias is None else constants[step.bias].reshape(-1)
            result = functional.linear(values[step.rows], constants[step.weight].t(), bias)
        case Pooling():
            return _pool(step, values[step.image])
        case Elementwise():
            result = values[step.value]
        case Concatenation():
            return torch.cat([values[number] for number in step.values], step.dimension)
        case Reshape():
            return values[step.value].reshape(step.shape)
    for one in step.following:
        result = _follow(one, result, values, constants)
    return result


def _convolve(step: Convolution, image: Tensor, constants: Sequence[Tensor]) -> Tensor:
    margins = [size for pair in zip(reversed(step.before), reversed(step.behind), strict=True) for size in pair]
    bias = None if step.bias is None else constants[step.bias].reshape(-1)
    padded = functional.pad(image, margins) if any(margins) else image
    zeros = [0] * len(step.stride)
    return torch.convolution(
        padded, constants[step.weight], bias, step.stride, zeros, step.dilation, False, zeros, step.groups
    )


def _pool(step: Pooling, image: Tensor) -> Tensor:
    margins = [size for pair in zip(reversed(step.before), reversed(step.behind), strict=True) for size in pair]
    padded = functional.pad(image, margins, value=float("-inf") if step.algorithm == "max" else 0.0)
    windows = padded
    for dimension, (size, stride) in enumerate(zip(step.window, step.stride, strict=True)):
        windows = windows.unfold(2 + dimension, size, stride)
    windows = windows.flatten(image.dim())
    match step.algorithm:
        case "max":
            return windows.amax(-1)
        case "average":
            return windows.mean(-1)
        case "average_inside":
            inside = _pool(_replace_algorithm(step), torch.ones_like(image))
            return windows.mean(-1) / inside
    raise AssertionError(step.algorithm)


def _replace_algorithm(step: Pooling) -> Pooling:
    return Pooling(step.image, "average", step.window, step.stride, step.before, step.behind, step.shape)


def _follow(one: Following, value: Tensor, values: Sequence[Tensor], constants: Sequence[Tensor]) -> Tensor:
    if one.operand is not None:
        other = (constants if one.operand.constant else values)[one.operand.number]
        match one.algorithm:
            case "add":
                return value + other
            case "sub":
                return value - other
            case "mul":
                return value * other
    match one.algorithm:
        case "relu":
            return torch.where(value > 0, value, one.alpha * value)
        case "tanh":
            return value.tanh()
        case "linear":
            return value * one.alpha + one.beta
        case "sigmoid":
            return value.sigmoid()
        case "gelu":
            return functional.gelu(value)
        case "swish":
            return value * (value * one.alpha).sigmoid()
        case "clip":
            return value.clamp(one.alpha, one.beta)
        case "hardswish":
            return value * (value * one.alpha + one.beta).clamp(0, 1)
    raise AssertionError(one.algorithm)
