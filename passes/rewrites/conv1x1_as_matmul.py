"""Compute a convolution that sees one pixel at a time as one matrix product of views: pixels by channels.

An image in channels-last is already such a matrix, and so is a weight of size 1x1. Each gradient is a separate product.
"""

from __future__ import annotations

import torch
from torch import fx

from frx_graph.facts.layout import is_channels_last, make_ordered_strides
from frx_graph.facts.operator_signature import TensorSpec
from frx_graph.passes.rewrites.layout.conversion import convert_in_inductor
from frx_graph.passes.rewrites.meta_strides.fake_values import call_op

_NHWC, _NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


def is_pixel_matrix(tensor: TensorSpec) -> bool:
    """Return True for four dimensions whose memory is a matrix of pixels and channels: channels-last without gaps."""
    return len(tensor.shape) == 4 and is_channels_last(tensor.shape, tensor.strides)


def flatten_spec(tensor: TensorSpec) -> TensorSpec:
    """Return the matrix that a tensor which `is_pixel_matrix` is."""
    batch, channels, height, width = tensor.shape
    return TensorSpec((batch * height * width, channels), (channels, 1), tensor.dtype, tensor.device)


def view_as_pixels(image: fx.Node, *, generated: bool) -> fx.Node:
    """Add the view of an image, or of a 1x1 weight, as a matrix of pixels, at the graph's insertion point.

    With `generated`, Inductor lays the image out as it was traced: it would take the view for a copy's order.
    """
    batch, channels, height, width = image.meta["val"].shape
    if generated and height * width > 1:
        image = convert_in_inductor(image.graph, image, _NHWC)
    stored = call_op(image.graph, torch.ops.aten.permute.default, image, list(_NHWC))
    return call_op(stored.graph, torch.ops.aten.view.default, stored, [batch * height * width, channels])


def view_as_columns(matrix: fx.Node) -> fx.Node:
    """Add the transposed view of a matrix."""
    return call_op(matrix.graph, torch.ops.aten.permute.default, matrix, [1, 0])


def view_as_image(pixels: fx.Node, image: TensorSpec) -> fx.Node:
    """Add the view of a contiguous matrix of pixels with the shape and strides of `image`, which `is_pixel_matrix`."""
    batch, channels, height, width = image.shape
    if 1 in (channels, height * width) and image.strides == make_ordered_strides(image.shape, range(4)):
        return call_op(pixels.graph, torch.ops.aten.view.default, pixels, list(image.shape))
    stored = call_op(pixels.graph, torch.ops.aten.view.default, pixels, [batch, height, width, channels])
    return call_op(stored.graph, torch.ops.aten.permute.default, stored, list(_NCHW))
