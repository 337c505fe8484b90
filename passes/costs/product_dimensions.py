"""Find the dimensions of matrix products and convolutions that do not fit the device's vectors or tiles."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.layout import Layout
from frx_graph.facts.operator_families import CONVOLUTIONS, MATRIX_PRODUCTS
from frx_graph.passes.analysis import PrecisionSettings
from frx_graph.passes.layouts.operator_layout import classify_memory_order

_FP32_BYTES = 4
_IMAGE_CHANNELS = 4
"""Grey, RGB, RGBA: libraries have dedicated kernels for a first layer, whose channels the data decides."""
_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of an operator, as the program knows it, and the nearest sizes that fit."""

    name: str
    size: int
    below: int
    above: int


@dataclass(frozen=True, slots=True)
class Convolution:
    """The sizes of a convolution, forward and backward alike. `groups` divides both channel counts."""

    image: ValueFacts
    in_channels: int
    out_channels: int
    kernel: tuple[int, ...]
    groups: int


def find_convolution(op: OpFacts, facts: GraphFacts) -> Convolution | None:
    """Return the convolution that `op` computes or differentiates; None for another operator."""
    if op.operator not in CONVOLUTIONS:
        return None
    backward = op.operator == "aten.convolution_backward"
    image, weight = (facts.values[name] for name in op.inputs[int(backward) : int(backward) + 2])
    groups = op.args[9 if backward else 8]
    transposed = op.args[7 if backward else 6]
    if not isinstance(groups, int):
        return None
    first, second = (weight.shape[0], weight.shape[1] * groups)
    out_channels, in_channels = (second, first) if transposed else (first, second)
    return Convolution(image, in_channels, out_channels, weight.shape[2:], groups)


def find_misaligned_on_cpu(op: OpFacts, facts: GraphFacts, alignment_bytes: int) -> tuple[Dimension, ...]:
    """Return channels that oneDNN pads to whole vectors of fp32, in bf16 too.

    Measured on one core with AVX-512, torch 2.15: a convolution with 65 output channels takes as long as with 80, in
    either layout; input channels are padded likewise in plain layout. 1x1 convolutions in plain layout, channels-last
    inputs, grouped convolutions and matrix products lose at most a few percent and are left out.
    """
    convolution = find_convolution(op, facts)
    if convolution is None or convolution.groups != 1:
        return ()
    lanes = alignment_bytes // _FP32_BYTES
    plain = classify_memory_order(convolution.image) is not Layout.CHANNELS_LAST
    if plain and all(size == 1 for size in convolution.kernel):
        return ()
    dimensions = [("output channels", convolution.out_channels)]
    if plain:
        dimensions.append(("input channels", convolution.in_channels))
    return _find_misaligned(dimensions, lanes, least=lanes)


def find_misaligned_on_cuda(
    op: OpFacts, facts: GraphFacts, alignment_bytes: int, precision: PrecisionSettings | None
) -> tuple[Dimension, ...]:
    """Return the misaligned dimensions of operators that run on tensor cores: half precision, and fp32 with TF32.

    Source: NVIDIA's "Matrix Multiplication Background User's Guide".
    """
    values = facts.get_input_values(op)
    if not values or not uses_tensor_cores(op, values[-1].dtype, precision):
        return ()
    elements = alignment_bytes // values[-1].dtype.itemsize
    convolution = find_convolution(op, facts)
    if convolution is not None:
        channels = [
            ("output channels", convolution.out_channels // convolution.groups),
            ("input channels", convolution.in_channels // convolution.groups),
        ]
        return _find_misaligned(channels, elements, least=_IMAGE_CHANNELS + 1)
    left, right = values[-2:]
    rows, inner, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    if min(rows, inner, columns) <= 1:
        return ()
    contiguous = {
        "inner dimension": inner if left.strides[-1] == 1 or right.strides[-2] == 1 else 0,
        "rows": rows if left.strides[-2] == 1 else 0,
        "columns": columns,
    }
    return _find_misaligned([(name, size) for name, size in contiguous.items() if size], elements, least=elements)


def uses_tensor_cores(op: OpFacts, dtype: torch.dtype, precision: PrecisionSettings | None) -> bool:
    """Return True for a product or convolution that a CUDA device runs on its tensor cores."""
    if op.operator not in CONVOLUTIONS | MATRIX_PRODUCTS:
        return False
    if dtype in _HALF:
        return True
    if dtype is not torch.float32 or precision is None:
        return False
    return precision.cudnn_tf32 if op.operator in CONVOLUTIONS else precision.matmul_tf32


def _find_misaligned(dimensions: list[tuple[str, int]], multiple: int, *, least: int) -> tuple[Dimension, ...]:
    """Return the sizes of at least `least` that are not a multiple."""
    return tuple(
        Dimension(name, size, size // multiple * multiple, -(-size // multiple) * multiple)
        for name, size in dimensions
        if size >= least and size % multiple
    )
