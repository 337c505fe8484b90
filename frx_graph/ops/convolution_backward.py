"""A convolution's gradients by torch's own kernel, on operands that lie as the graph says:
`torch.ops.frx_graph.convolution_gradients`.

Inductor's lowering of `aten.convolution_backward` orders the image and the gradient as the weight's gradient lies. Of a
weight that has one memory in both orders, as that of a depthwise convolution has, that is neither plain nor
channels-last, and it copies both (torch 2.15, CPU). What it knows nothing about it gives the strides of the trace.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from frx_graph.ops.onednn_linear import LIBRARY

LIBRARY.define(
    "convolution_gradients(Tensor g, Tensor x, Tensor w, int[]? bias, int[] stride, int[] padding, int[] dilation,"
    " bool transposed, int[] output_padding, int groups, bool[3] mask) -> Tensor[]",
    tags=(torch.Tag.needs_exact_strides, torch.Tag.pt2_compliant_tag),
)


def _gradients(
    g: Tensor,
    x: Tensor,
    w: Tensor,
    bias: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> list[Tensor]:
    """Those of `aten.convolution_backward`'s results that `mask` asks for: the image's, the weight's, the bias's."""
    found = torch.ops.aten.convolution_backward.default(
        g, x, w, bias, stride, padding, dilation, transposed, output_padding, groups, list(mask)
    )
    return [gradient for gradient, asked in zip(found, mask, strict=True) if asked]


LIBRARY.impl("convolution_gradients", _gradients, "CPU")
torch.library.register_fake("frx_graph::convolution_gradients", _gradients, lib=LIBRARY)
