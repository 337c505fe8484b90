"""Calls of oneDNN's matrix product that stand for calls of torch's own operators, as they are timed."""

from __future__ import annotations

import torch

from frx_graph.facts.graph_facts import GraphFacts, OpFacts
from frx_graph.facts.operator_signature import OperatorSignature, TensorSpec
from frx_graph.matrix_product import TARGET, has_onednn

_PIXEL_BY_PIXEL = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
"""Stride, padding, dilation, transposed, output padding and groups."""


def product_call(call: OperatorSignature) -> OperatorSignature | None:
    """The product that computes what this call of `mm` or `addmm` does; None where oneDNN's cannot, or where torch uses
    it already, as it does for all types but single precision."""
    match call.target, call.args, call.kwargs:
        case "aten.mm.default", (TensorSpec() as x, TensorSpec() as w), ():
            return _product(x, w, None)
        case "aten.addmm.default", (TensorSpec() as bias, TensorSpec() as x, TensorSpec() as w), () if (
            bias.shape == w.shape[1:] and bias.strides == (1,)
        ):
            return _product(x, w, bias)
    return None


def pixel_product_call(op: OpFacts, facts: GraphFacts) -> OperatorSignature | None:
    """The product that a convolution of single pixels is, its image stored in channels-last; None for others."""
    if op.operator != "aten.convolution" or op.args[3:] != _PIXEL_BY_PIXEL:
        return None
    image, weight, *bias = facts.input_values(op)
    if weight.shape[2:] != (1, 1) or any(value.dynamic_dims for value in (image, weight)):
        return None
    batch, channels, height, width = image.shape
    device = image.device.type
    return _product(
        TensorSpec((batch * height * width, channels), (channels, 1), image.dtype, device),
        TensorSpec((channels, weight.shape[0]), (1, channels), weight.dtype, weight.device.type),
        TensorSpec(bias[0].shape, bias[0].strides, bias[0].dtype, device) if bias else None,
    )


def _product(x: TensorSpec, w: TensorSpec, bias: TensorSpec | None) -> OperatorSignature | None:
    operands = (x, w) if bias is None else (x, w, bias)
    if not has_onednn() or any((tensor.dtype, tensor.device) != (torch.float32, "cpu") for tensor in operands):
        return None
    if 0 in (*x.shape, *w.shape):
        return None
    return OperatorSignature(TARGET, (x, w, bias))
