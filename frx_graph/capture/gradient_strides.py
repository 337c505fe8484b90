"""Correct the strides that fakes give to the weight gradients of convolutions.

If both orders of a weight have the same memory, as for a 1x1 kernel, fakes choose channels-last if the image is. The
kernels for single small images, and in double precision, follow the weight instead (torch 2.15 and 2.13, CPU), and
callers can see it.
"""

from __future__ import annotations

import operator

import torch
from torch import Tensor, fx

from frx_graph.support.torch_internals import ConvBackend, make_contiguous_strides_for, select_conv_backend


def correct_weight_gradients(graph: fx.Graph) -> None:
    """Set `meta["val"]` of each convolution's weight gradient to the strides that eager gives it."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.convolution_backward.default):
        results = node.meta["val"]
        gradient = results[1]
        weight = node.args[2].meta["val"]
        if isinstance(gradient, Tensor) and gradient.stride() != weight.stride() and _follows_the_weight(node):
            corrected = gradient.new_empty_strided(gradient.shape, weight.stride())
            node.meta["val"] = (results[0], corrected, *results[2:])
            for reader in node.users:
                if reader.target is operator.getitem and reader.args[1] == 1:
                    reader.meta["val"] = corrected


def _follows_the_weight(node: fx.Node) -> bool:
    image, weight = (node.args[place].meta["val"] for place in (1, 2))  # type: ignore[union-attr]
    if weight.dim() != 4 or not all(isinstance(n, int) for n in (*image.shape, *weight.shape)):
        return False
    one_memory = 1 in (weight.shape[1], weight.shape[2] * weight.shape[3])
    if not one_memory or weight.stride() != make_contiguous_strides_for(weight.shape):
        return False
    # Private: torch's own fakes ask it, and nothing public tells which kernel is taken.
    kernel = select_conv_backend(image, weight, None, *node.args[4:10], None)
    return kernel in (ConvBackend.Slow2d, ConvBackend.SlowTranspose2d)
