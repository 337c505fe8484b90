"""Compute a 2-D convolution and its gradients as matrix products: `torch.ops.frx_graph.unfolded_*`.

The image's windows are copied into the rows of a matrix (im2col; Chellapilla et al. 2006), which is multiplied with the
weight in its present memory order. oneDNN's convolution reorders the weight in every call, and torch has no fast kernel
for the weight's gradient of small images. This can be faster if the weight is larger than the unfolded image, as in
deep networks with small batches. For 512 channels at 7x7, batch 1, single precision, two threads of an AMD CPU with
AVX-512, it is 1.5 times faster forward and 1.6 to 1.9 times backward.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from frx_graph.ops.onednn_linear import EXACT_STRIDES, LIBRARY

FORWARD = "frx_graph.unfolded_convolution.default"
INPUT_GRADIENT = "frx_graph.unfolded_input_gradient.default"
WEIGHT_GRADIENT = "frx_graph.unfolded_weight_gradient.default"
"""Names of the operators in records."""

_NHWC, _NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


def _compute_convolution(
    x: Tensor, w: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int], channels_last: bool
) -> Tensor:
    """Return `conv2d(x, w, bias, stride, padding)`. `x` is (n, c, h, w) in any order."""
    plain = _is_plain(w)
    windows, (batch, height, width) = _unfold_windows(x, w.shape[2:], stride, padding, channels_first=plain)
    pixels = torch.ops.frx_graph.product(windows, _flatten_weight(w, plain).t(), bias)
    return _copy_if_needed(pixels.view(batch, height, width, w.shape[0]).permute(_NCHW), channels_last)


def _compute_input_gradient(
    g: Tensor, w: Tensor, size: Sequence[int], stride: Sequence[int], padding: Sequence[int], channels_last: bool
) -> Tensor:
    """Return the gradient of `conv2d`'s input, which has `size`; `g` is the result's gradient."""
    plain = _is_plain(w)
    batch, channels, height, width = size
    kernel_height, kernel_width = w.shape[2:]
    windows = torch.ops.frx_graph.product(_flatten_pixels(g), _flatten_weight(w, plain), None)
    rows, columns = g.shape[2:]
    if plain:
        windows = windows.view(batch, rows, columns, channels, kernel_height, kernel_width).permute(0, 1, 2, 4, 5, 3)
    else:
        windows = windows.view(batch, rows, columns, kernel_height, kernel_width, channels)
    if (kernel_height, kernel_width, *stride, *padding) == (1, 1, 1, 1, 0, 0):
        return _copy_if_needed(windows.reshape(batch, height, width, channels).permute(_NCHW), channels_last)
    padded = g.new_zeros(batch, height + 2 * padding[0], width + 2 * padding[1], channels)
    for i in range(kernel_height):
        for j in range(kernel_width):
            lower, right = i + rows * stride[0], j + columns * stride[1]
            padded[:, i : lower : stride[0], j : right : stride[1]] += windows[:, :, :, i, j]
    image = padded[:, padding[0] : padding[0] + height, padding[1] : padding[1] + width]
    return _copy_if_needed(image.permute(_NCHW), channels_last)


def _compute_weight_gradient(
    g: Tensor, x: Tensor, size: Sequence[int], stride: Sequence[int], padding: Sequence[int], channels_last: bool
) -> Tensor:
    """Return the gradient of `conv2d`'s weight, which has `size`; `g` is the result's gradient."""
    outputs, channels, kernel_height, kernel_width = size
    windows, _ = _unfold_windows(x, size[2:], stride, padding, channels_first=not channels_last)
    weight: Tensor = torch.ops.frx_graph.product(_flatten_pixels(g).t(), windows, None)
    if channels_last:
        return weight.view(outputs, kernel_height, kernel_width, channels).permute(_NCHW)
    return weight.view(tuple(size))


def _unfold_windows(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], *, channels_first: bool
) -> tuple[Tensor, tuple[int, int, int]]:
    """Return the window of each result pixel as a row, channels first or last; and the result's batch and size."""
    image = x.permute(_NHWC)
    if any(padding):
        image = functional.pad(image, (0, 0, padding[1], padding[1], padding[0], padding[0]))
    batch, height, width, channels = image.shape
    rows, columns = ((n - k) // s + 1 for n, k, s in zip((height, width), kernel, stride, strict=True))
    # The image may have any order: unless padding has made it dense, a window has the image's strides.
    n, h, w, c = image.stride()
    inside, inside_strides = ((channels, *kernel), (c, h, w)) if channels_first else ((*kernel, channels), (h, w, c))
    seen = image.as_strided(
        (batch, rows, columns, *inside), (n, h * stride[0], w * stride[1], *inside_strides), image.storage_offset()
    )
    return seen.reshape(batch * rows * columns, -1), (batch, rows, columns)


def _flatten_pixels(image: Tensor) -> Tensor:
    """Return a row of channels for each pixel."""
    return image.permute(_NHWC).reshape(-1, image.shape[1])


def _flatten_weight(w: Tensor, plain: bool) -> Tensor:
    """Return a row for each output channel."""
    return (w if plain else w.permute(_NHWC)).reshape(w.shape[0], -1)


def _is_plain(w: Tensor) -> bool:
    return w.is_contiguous()


def _copy_if_needed(image: Tensor, channels_last: bool) -> Tensor:
    """Return the image if it has these strides and fills its memory; else a copy with the strides of a new tensor."""
    fresh = _allocate_image(image, image.shape, channels_last)
    fills = image.stride() == fresh.stride() and image.storage_offset() == 0
    return image if fills else fresh.copy_(image)


def _infer_convolution(
    x: Tensor, w: Tensor, _bias: Tensor | None, stride: Sequence[int], padding: Sequence[int], channels_last: bool
) -> Tensor:
    sizes = zip(x.shape[2:], w.shape[2:], stride, padding, strict=True)
    return _allocate_image(
        x, (x.shape[0], w.shape[0], *((n + 2 * p - k) // s + 1 for n, k, s, p in sizes)), channels_last
    )


def _infer_gradient(
    g: Tensor, _other: Tensor, size: Sequence[int], _stride: object, _padding: object, channels_last: bool
) -> Tensor:
    return _allocate_image(g, size, channels_last)


def _allocate_image(like: Tensor, size: Sequence[int], channels_last: bool) -> Tensor:
    order = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty(tuple(size), dtype=like.dtype, device=like.device, memory_format=order)


for _name, _operands, _kernel, _shape in (
    ("unfolded_convolution", "Tensor x, Tensor w, Tensor? bias", _compute_convolution, _infer_convolution),
    ("unfolded_input_gradient", "Tensor g, Tensor w, int[] size", _compute_input_gradient, _infer_gradient),
    ("unfolded_weight_gradient", "Tensor g, Tensor x, int[] size", _compute_weight_gradient, _infer_gradient),
):
    _schema = f"{_name}({_operands}, int[2] stride, int[2] padding, bool channels_last) -> Tensor"
    LIBRARY.define(_schema, tags=EXACT_STRIDES)
    LIBRARY.impl(_name, _kernel, "CPU")
    torch.library.register_fake(f"frx_graph::{_name}", _shape, lib=LIBRARY)
