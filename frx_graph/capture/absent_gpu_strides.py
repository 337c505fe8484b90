"""Predict the strides that convolutions make on a GPU that is not there.

Whether cuDNN runs a convolution depends on the device and on its dtype, so that the fake of one in bfloat16 is plain
without a device (`use_cudnn`, torch 2.15).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from frx_graph.capture.absent_gpu import are_on_absent_gpu, get_absent_gpu
from frx_graph.support.size_hint import get_shape_hint, get_stride_hint
from frx_graph.support.torch_internals import OpOverload, pytree

_IMAGE_RANKS = (4, 5)


def is_absent_convolution(func: Any, args: Sequence[Any]) -> bool:
    """Return True for a convolution on a GPU that is not there."""
    convolutions = (torch.ops.aten.convolution, torch.ops.aten.convolution_backward)
    return getattr(func, "overloadpacket", None) in convolutions and are_on_absent_gpu(args[:1])


def predict_convolution_strides(
    func: OpOverload, args: Sequence[Any], result: Any
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]] | None, ...]:
    """Return shape and strides, in elements, of each image and weight in the convolution's result; None for others.
    These are channels-last if the image or the weight is, and plain in double precision and on AMD's GPUs
    (`ATen/native/ConvUtils.h`, `cudnn_conv_suggest_memory_format` and `miopen_conv_suggest_memory_format`)."""
    backward = func.overloadpacket is torch.ops.aten.convolution_backward
    operands = args[backward : backward + 2]
    gpu = get_absent_gpu()
    plain = operands[0].dtype is torch.float64 or (gpu is not None and gpu.plain_convolutions)
    last = not plain and any(map(_suggests_channels_last, operands))

    def predict(leaf: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        if not isinstance(leaf, Tensor) or leaf.dim() not in _IMAGE_RANKS:
            return None
        shape = get_shape_hint(leaf)
        strides, step = [0] * len(shape), 1
        for dim in reversed(_order_channels_last(len(shape)) if last else range(len(shape))):
            strides[dim] = step
            step *= max(shape[dim], 1)
        return shape, tuple(strides)

    return tuple(map(predict, pytree.tree_leaves(result)))


def _order_channels_last(rank: int) -> Sequence[int]:
    return (0, *range(2, rank), 1)


def _suggests_channels_last(tensor: Tensor) -> bool:
    """Return True if torch takes the strides for channels-last, also with gaps (`c10/core/MemoryFormat.h`,
    `is_channels_last_strides_2d_s4`)."""
    if tensor.dim() not in _IMAGE_RANKS:
        return False
    shape, strides = get_shape_hint(tensor), get_stride_hint(tensor)
    least = 0
    for dim in reversed(_order_channels_last(len(shape))):
        if shape[dim] == 0 or strides[dim] < least or strides[1] == 0 or (dim == 0 and least == strides[1]):
            return False
        least = strides[dim] * max(shape[dim], 1)
    return True
