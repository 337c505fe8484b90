"""Sample calls on images: convolutions, poolings, normalisations, padding and resizing."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import torch

from operator_samples.sample import OperatorSample, SampleTensors, call

aten = torch.ops.aten
_IMAGES = ((2, 8, 5, 6), (1, 8, 5, 6), (2, 8, 6, 1), (2, 1, 5, 6), (2, 8, 6), (2, 8, 3, 4, 5))
_THREE = (True, True, True)


def convolution_samples(tensors: SampleTensors) -> Iterator[OperatorSample]:
    """Convolutions of one, two and three dimensions, transposed, grouped, depthwise, on one image; and backward."""
    for shape, groups, transposed in (
        ((2, 8, 5, 6), 1, False),
        ((1, 8, 5, 6), 1, False),
        ((2, 8, 5, 6), 8, False),
        ((2, 8, 5, 6), 1, True),
        ((2, 8, 3, 4, 5), 1, False),
        ((2, 8, 6), 1, False),
    ):
        axes = len(shape) - 2
        image = tensors.normal(*shape)
        weight = tensors.normal(8, 8 // groups, *(3,) * axes)
        settings = ((1,) * axes, (1,) * axes, (1,) * axes, transposed, (0,) * axes, groups)
        yield call("convolution", image, weight, None, *settings)
        yield call("convolution_backward", tensors.normal(*shape), image, weight, None, *settings, (True, True, False))


def pooling_samples(tensors: SampleTensors) -> Iterator[OperatorSample]:
    """Maximum and average poolings of two and three dimensions, fixed and adaptive, forward and backward."""
    # Registers what Inductor makes of a maximum pooling.
    importlib.import_module("torch._inductor.inductor_prims")
    for shape in ((2, 8, 6, 4), (1, 8, 6, 4), (2, 8, 6, 2), (2, 8, 4, 6, 3), (1, 8, 4, 6, 3)):
        axes = len(shape) - 2
        x = tensors.normal(*shape)
        for window, stride, padding in ((2, 2, 0), (1, 1, 0)):
            maximum = ((window,) * axes, (stride,) * axes, (padding,) * axes, (1,) * axes, False)
            name = f"max_pool{axes}d_with_indices"
            result, indices = getattr(aten, name)(x, *maximum)
            pooled = tuple(result.shape)
            gradient = tensors.normal(*pooled)
            yield call(name, x, *maximum)
            yield call(f"{name}_backward", gradient, x, *maximum, indices)
            yield OperatorSample("prims._low_memory_max_pool_with_offsets.default", (x, *maximum))
            average = ((window,) * axes, (stride,) * axes, (padding,) * axes, False, True)
            yield call(f"avg_pool{axes}d", x, *average)
            yield call(f"avg_pool{axes}d_backward", gradient, x, *average, None)
            yield call(f"_adaptive_avg_pool{axes}d", x, pooled[2:])
            yield call(f"_adaptive_avg_pool{axes}d_backward", gradient, x)
            yield call(f"adaptive_max_pool{axes}d", x, pooled[2:])
            indices = getattr(aten, f"adaptive_max_pool{axes}d")(x, pooled[2:])[1]
            yield call(f"adaptive_max_pool{axes}d_backward", gradient, x, indices)


def batch_norm_samples(tensors: SampleTensors) -> Iterator[OperatorSample]:
    """Every spelling of batch normalisation, training and inference, forward and backward."""
    for shape in _IMAGES:
        x, gradient, channels = tensors.normal(*shape), tensors.normal(*shape), shape[1]
        weight, bias, mean = (tensors.normal(channels) for _ in range(3))
        variance = tensors.positive(channels)
        for training in (True, False):
            yield call("native_batch_norm", x, weight, bias, mean, variance, training, 0.1, 1e-5)
            yield call("_native_batch_norm_legit", x, weight, bias, mean, variance, training, 0.1, 1e-5)
            yield call("_native_batch_norm_legit_functional", x, weight, bias, mean, variance, training, 0.1, 1e-5)
            _, saved_mean, saved_scale = aten.native_batch_norm(
                x, weight, bias, mean.clone(), variance.clone(), training, 0.1, 1e-5
            )
            saved = (mean, variance, saved_mean, saved_scale, training, 1e-5, _THREE)
            yield call("native_batch_norm_backward", gradient, x, weight, *saved)
            reserve = torch.empty(0, dtype=torch.uint8, device=tensors.device)
            yield call("batch_norm_backward", gradient, x, weight, *saved, reserve)
        yield call("_native_batch_norm_legit.no_stats", x, weight, bias, True, 0.1, 1e-5)
        yield call("_native_batch_norm_legit_no_training", x, weight, bias, mean, variance, 0.1, 1e-5)
        yield call("_batch_norm_with_update", x, weight, bias, mean, variance, 0.1, 1e-5)
        yield call("_batch_norm_with_update_functional", x, weight, bias, mean, variance, 0.1, 1e-5)
        yield call("_batch_norm_no_update", x, weight, bias, mean, variance, 0.1, 1e-5)
        if tensors.device.startswith("cuda") and torch.version.hip is None:
            yield call("cudnn_batch_norm", x, weight, bias, mean, variance, True, 0.1, 1e-5, only_strides=True)


def other_norm_samples(tensors: SampleTensors) -> Iterator[OperatorSample]:
    """Group, layer and root-mean-square normalisation."""
    for shape in ((2, 8, 5, 6), (1, 8, 5, 6), (2, 8, 6, 1), (2, 8, 6), (2, 8, 3, 4, 5)):
        x, gradient = tensors.normal(*shape), tensors.normal(*shape)
        weight, bias = tensors.normal(8), tensors.normal(8)
        images, positions = shape[0], x[0, 0].numel()
        yield call("native_group_norm", x, weight, bias, images, 8, positions, 2, 1e-5)
        _, mean, scale = aten.native_group_norm(x, weight, bias, images, 8, positions, 2, 1e-5)
        yield call("native_group_norm_backward", gradient, x, mean, scale, weight, images, 8, positions, 2, _THREE)
        features = shape[-1:]
        weight, bias = tensors.normal(*features), tensors.normal(*features)
        yield call("native_layer_norm", x, features, weight, bias, 1e-5)
        _, mean, scale = aten.native_layer_norm(x, features, weight, bias, 1e-5)
        yield call("native_layer_norm_backward", gradient, x, features, mean, scale, weight, bias, _THREE)
        yield call("_fused_rms_norm", x, features, weight, 1e-5)


def padding_samples(tensors: SampleTensors) -> Iterator[OperatorSample]:
    """Constant, reflected and replicated padding."""
    for shape in ((2, 8, 5, 6), (1, 8, 5, 6), (2, 8, 3, 4, 5), (2, 8, 6)):
        axes = len(shape) - 2
        x = tensors.normal(*shape)
        for axis in range(axes + 1):
            yield call("constant_pad_nd", x, (*(0, 0) * axis, 1, 2))
        for width in (1, 0):
            pad = (width, width) * axes
            padded = tensors.normal(*shape[:2], *(size + 2 * width for size in shape[2:]))
            for kind in ("reflection", "replication"):
                yield call(f"{kind}_pad{axes}d", x, pad)
                yield call(f"{kind}_pad{axes}d_backward", padded, x, pad)


def resizing_samples(tensors: SampleTensors) -> Iterator[OperatorSample]:
    """Upsampling, to twice the size and to the same, forward and backward."""
    for shape in ((2, 8, 6), (1, 8, 6), (2, 8, 5, 6), (1, 8, 5, 6), (2, 8, 3, 4, 5), (1, 8, 3, 4, 5)):
        axes = len(shape) - 2
        x = tensors.normal(*shape)
        for factor in (2, 1):
            size = tuple(factor * n for n in shape[2:])
            large = tensors.normal(*shape[:2], *size)
            for name in (f"upsample_nearest{axes}d", f"_upsample_nearest_exact{axes}d"):
                yield call(name, x, size)
                yield call(f"{name}_backward", large, size, shape)
            for name in _INTERPOLATIONS[axes]:
                yield call(name, x, size, False)
                yield call(f"{name}_backward", large, size, shape, False)


_INTERPOLATIONS = {
    1: ("upsample_linear1d",),
    2: ("upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
    3: ("upsample_trilinear3d",),
}


def shuffling_samples(tensors: SampleTensors) -> Iterator[OperatorSample]:
    """Channels to positions, positions to channels, and channels among each other."""
    for images in (1, 2):
        x = tensors.normal(images, 8, 4, 6)
        for factor in (2, 1):
            yield call("pixel_shuffle", x, factor)
            yield call("pixel_unshuffle", x, factor)
            yield call("channel_shuffle", x, factor)
            yield call("native_channel_shuffle", x, factor)


IMAGE_SAMPLES = (
    convolution_samples,
    pooling_samples,
    batch_norm_samples,
    other_norm_samples,
    padding_samples,
    resizing_samples,
    shuffling_samples,
)
