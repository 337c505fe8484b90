"""A convolution that sees one pixel at a time, as one matrix product of views: rows of pixels, columns of channels.

An image in channels-last is that matrix already, and so is a weight of size 1x1; a gradient is one of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from frx_graph.facts.layout import is_channels_last, strides_for_order
from frx_graph.facts.operator_signature import TensorSpec
from frx_graph.passes.rewrites.layout.conversion import inductor_conversion
from frx_graph.support.torch_internals import OpOverload

_NHWC, _NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


def lies_by_pixels(tensor: TensorSpec) -> bool:
    """True for four dimensions whose memory is a matrix of pixels and channels: channels-last without gaps."""
    return len(tensor.shape) == 4 and is_channels_last(tensor.shape, tensor.strides)


def pixels_of(tensor: TensorSpec) -> TensorSpec:
    """The matrix that a tensor which `lies_by_pixels` is."""
    batch, channels, height, width = tensor.shape
    return TensorSpec((batch * height * width, channels), (channels, 1), tensor.dtype, tensor.device)


def as_pixels(image: fx.Node, *, generated: bool) -> fx.Node:
    """Adds the view of an image, or of a 1x1 weight, as the matrix of its pixels, at the graph's insertion point. With
    `generated`, Inductor is made to lay the image out as it was traced: it would take the view for a copy's order."""
    batch, channels, height, width = image.meta["val"].shape
    if generated and height * width > 1:
        image = inductor_conversion(image.graph, image, _NHWC)
    stored = _call(image, torch.ops.aten.permute.default, _NHWC)
    return _call(stored, torch.ops.aten.view.default, (batch * height * width, channels))


def as_columns(matrix: fx.Node) -> fx.Node:
    """Adds the transposed view of a matrix."""
    return _call(matrix, torch.ops.aten.permute.default, (1, 0))


def as_image(pixels: fx.Node, image: TensorSpec) -> fx.Node:
    """Adds the view of a contiguous matrix of pixels that has the shape and the strides of `image`, which
    `lies_by_pixels`."""
    batch, channels, height, width = image.shape
    if 1 in (channels, height * width) and image.strides == strides_for_order(image.shape, range(4)):
        return _call(pixels, torch.ops.aten.view.default, image.shape)
    stored = _call(pixels, torch.ops.aten.view.default, (batch, height, width, channels))
    return _call(stored, torch.ops.aten.permute.default, _NCHW)


def _call(source: fx.Node, target: OpOverload, argument: Sequence[int]) -> fx.Node:
    node = source.graph.call_function(target, (source, list(argument)))
    node.meta["val"] = target(source.meta["val"], list(argument))
    return node
