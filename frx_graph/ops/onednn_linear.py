"""Register operators that oneDNN computes on operands as they are: a matrix product and a convolution's gradients.

Torch computes products of single precision with MKL, which reaches less than half of some processors' speed. It uses
oneDNN only for weights that were packed beforehand. oneDNN takes plain and transposed weights as well; torch reaches it
by `mkldnn::_linear_pointwise`, but Inductor hands that only contiguous weights. This operator is the same with the
arguments of `addmm`, in the graph's order and strides.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from frx_graph.support.torch_internals import is_onednn_enabled, torch_check

TARGET = "frx_graph.product.default"
"""Name of the operator in records."""

# Operators live as long as the library object.
LIBRARY = torch.library.Library("frx_graph", "DEF")
EXACT_STRIDES = (torch.Tag.needs_exact_strides, torch.Tag.pt2_compliant_tag)
LIBRARY.define("product(Tensor x, Tensor w, Tensor? bias) -> Tensor", tags=EXACT_STRIDES)


def _compute_product(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """Return `x @ w + bias`. Shapes (m, k), (k, n), (n,); the result is (m, n), contiguous."""
    if x.shape[1] == 0:
        # oneDNN has no product of nothing, to which symbolic sizes may come.
        return torch.mm(x, w) if bias is None else torch.addmm(bias, x, w)
    if _overlaps(w):
        w = w.contiguous()
    if bias is not None:
        # oneDNN reads it as if it had no gaps, for any stride (torch 2.15).
        bias = bias.contiguous()
    result: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, w.t(), bias, "none", [], "")
    return result


def _overlaps(w: Tensor) -> bool:
    """Return True if rows or columns share memory, as windows of an image do: oneDNN describes no such weights."""
    (inner, size), (outer, count) = sorted(zip(w.stride(), w.shape, strict=True))
    return count > 1 and size > 1 and inner * size > outer


def _infer_product(x: Tensor, w: Tensor, _bias: Tensor | None) -> Tensor:
    torch_check(x.dim() == 2 and w.dim() == 2 and x.shape[1] == w.shape[0])
    return x.new_empty((x.shape[0], w.shape[1]))


LIBRARY.impl("product", _compute_product, "CPU")
torch.library.register_fake("frx_graph::product", _infer_product, lib=LIBRARY)


def has_onednn() -> bool:
    """Return True if this build of torch has oneDNN, and the program lets it be used."""
    return bool(torch.backends.mkldnn.is_available() and is_onednn_enabled())


LIBRARY.define(
    "convolution_gradients(Tensor g, Tensor x, Tensor w, int[]? bias, int[] stride, int[] padding, int[] dilation,"
    " bool transposed, int[] output_padding, int groups, bool[3] mask) -> Tensor[]",
    tags=EXACT_STRIDES,
)


def _compute_gradients(*arguments: Any) -> list[Tensor]:
    """Return the gradients that the mask, the last argument, asks for: the image's, the weight's, the bias's.

    Inductor's lowering of `aten.convolution_backward` orders image and gradient as the weight's gradient. If the weight
    has one memory in both orders, as for depthwise convolutions, that is neither plain nor channels-last, and it copies
    both (torch 2.15, CPU). An unknown operator gets the strides of the trace.
    """
    *others, mask = arguments
    found = torch.ops.aten.convolution_backward.default(*others, list(mask))
    return [gradient for gradient, asked in zip(found, mask, strict=True) if asked]


LIBRARY.impl("convolution_gradients", _compute_gradients, "CPU")
torch.library.register_fake("frx_graph::convolution_gradients", _compute_gradients, lib=LIBRARY)
