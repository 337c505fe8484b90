"""List the operator calls that layout contracts cover: the hot operators of ordinary networks, forward and backward.

Their sizes are small enough to run quickly, and take the same code paths as real ones.
"""

from __future__ import annotations

import torch

from frx_graph.measure.operators.contract_cases import Case, CaseArgument, Operand

_IMAGE = Operand((2, 32, 28, 30))
_VOLUME = Operand((2, 16, 6, 14, 16))
_SEQUENCE = Operand((4, 32, 64))
_MATRIX = Operand((64, 96))
_BATCH = Operand((8, 32, 48))
_HEADS = Operand((2, 4, 64, 32))
_CHANNELS = Operand((32,), varied=False)
_FEATURES = Operand((64,), varied=False)
_ROWS = Operand((4, 32, 1), varied=False)
_MASK = Operand((4, 32, 64), torch.bool, varied=False)
_ALL_GRADIENTS = (True, True, True)


def _make_fixed(*shape: int) -> Operand:
    return Operand(shape, varied=False)


def _make_indices(*shape: int) -> Operand:
    return Operand(shape, torch.int64, varied=False)


def _make_case(operator: str, name: str, args: tuple[CaseArgument, ...]) -> Case:
    """Return a case of ATen's `operator`: of the default overload, unless it names another."""
    return Case(f"aten.{operator}" if "." in operator else f"aten.{operator}.default", name, args)


def _make_convolution(
    name: str, *shapes: tuple[int, ...], padding: int = 1, groups: int = 1, transposed: bool = False
) -> Case:
    """Return the case of an image and a weight, or of the backward with the gradient before them."""
    axes = len(shapes[0]) - 2
    ones, zeros = (1,) * axes, (0,) * axes
    args = (*map(Operand, shapes), None, ones, (padding,) * axes, ones, transposed, zeros, groups)
    if len(shapes) == 2:
        return _make_case("convolution", name, args)
    return _make_case("convolution_backward", name, (*args, (True, True, False)))


CASES: tuple[Case, ...] = (
    # Products
    _make_case("mm", "matrices", (_MATRIX, Operand((96, 48)))),
    _make_case("bmm", "batched", (_BATCH, Operand((8, 48, 40)))),
    _make_case("addmm", "with bias", (_make_fixed(48), _MATRIX, Operand((96, 48)))),
    _make_case("baddbmm", "batched", (Operand((8, 32, 40)), _BATCH, Operand((8, 48, 40)))),
    _make_case("mv", "matrix and vector", (_MATRIX, Operand((96,)))),
    _make_case("dot", "vectors", (Operand((96,)), Operand((96,)))),
    _make_case("addmv", "with bias", (_FEATURES, _MATRIX, Operand((96,)))),
    _make_case("_scaled_dot_product_flash_attention_for_cpu", "attention heads", (_HEADS, _HEADS, _HEADS, 0.0, False)),
    _make_case(
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        "attention heads",
        (_HEADS, _HEADS, _HEADS, _HEADS, _HEADS, Operand((2, 4, 64), torch.float32, varied=False), 0.0, False),
    ),
    _make_case("_cdist_forward", "points", (_BATCH, Operand((8, 40, 48)), 2.0, None)),
    # Convolutions
    _make_convolution("1-D", (4, 64, 128), (64, 64, 3)),
    _make_convolution("2-D, 3x3", (2, 32, 28, 30), (64, 32, 3, 3)),
    _make_convolution("2-D, 1x1", (2, 32, 28, 30), (64, 32, 1, 1), padding=0),
    _make_convolution("2-D, grouped", (2, 32, 28, 30), (64, 8, 3, 3), groups=4),
    _make_convolution("2-D, depthwise", (2, 32, 28, 30), (32, 1, 3, 3), groups=32),
    _make_convolution("2-D, transposed", (2, 32, 28, 30), (32, 16, 3, 3), transposed=True),
    _make_convolution("3-D", (2, 16, 6, 14, 16), (32, 16, 3, 3, 3)),
    _make_convolution("3-D, transposed", (2, 16, 6, 14, 16), (16, 32, 3, 3, 3), transposed=True),
    _make_convolution("1-D", (4, 64, 128), (4, 64, 128), (64, 64, 3)),
    _make_convolution("2-D, 3x3", (2, 64, 28, 30), (2, 32, 28, 30), (64, 32, 3, 3)),
    _make_convolution("2-D, depthwise", (2, 32, 28, 30), (2, 32, 28, 30), (32, 1, 3, 3), groups=32),
    _make_convolution("3-D", (2, 32, 6, 14, 16), (2, 16, 6, 14, 16), (32, 16, 3, 3, 3)),
    # Normalisations
    _make_case("native_layer_norm", "over features", (_SEQUENCE, (64,), _FEATURES, _FEATURES, 1e-5)),
    _make_case(
        "native_layer_norm_backward",
        "over features",
        (_SEQUENCE, _SEQUENCE, (64,), _ROWS, _ROWS, _FEATURES, _FEATURES, _ALL_GRADIENTS),
    ),
    _make_case("native_group_norm", "images", (_IMAGE, _CHANNELS, _CHANNELS, 2, 32, 840, 4, 1e-5)),
    _make_case(
        "native_group_norm_backward",
        "images",
        (_IMAGE, _IMAGE, _make_fixed(2, 4), _make_fixed(2, 4), _CHANNELS, 2, 32, 840, 4, _ALL_GRADIENTS),
    ),
    _make_case(
        "native_batch_norm", "images, training", (_IMAGE, _CHANNELS, _CHANNELS, _CHANNELS, _CHANNELS, True, 0.1, 1e-5)
    ),
    _make_case(
        "native_batch_norm", "images, inference", (_IMAGE, _CHANNELS, _CHANNELS, _CHANNELS, _CHANNELS, False, 0.1, 1e-5)
    ),
    _make_case(
        "native_batch_norm_backward",
        "images, training",
        (_IMAGE, _IMAGE, _CHANNELS, _CHANNELS, _CHANNELS, _CHANNELS, _CHANNELS, True, 1e-5, _ALL_GRADIENTS),
    ),
    _make_case("_fused_rms_norm", "over features", (_SEQUENCE, (64,), _FEATURES, 1e-5)),
    _make_case("_softmax", "over the last dimension", (_SEQUENCE, -1, False)),
    _make_case("_log_softmax", "over the last dimension", (_SEQUENCE, -1, False)),
    _make_case("_softmax_backward_data", "over the last dimension", (_SEQUENCE, _SEQUENCE, -1, torch.float32)),
    # Poolings and resizing
    _make_case("max_pool2d_with_indices", "2-D", (_IMAGE, (3, 3), (2, 2), (1, 1))),
    _make_case("avg_pool2d", "2-D", (_IMAGE, (2, 2), (2, 2))),
    _make_case("_adaptive_avg_pool2d", "2-D", (_IMAGE, (7, 7))),
    _make_case("adaptive_max_pool2d", "2-D", (_IMAGE, (7, 7))),
    _make_case("max_pool3d_with_indices", "3-D", (_VOLUME, (2, 2, 2), (2, 2, 2))),
    _make_case("avg_pool3d", "3-D", (_VOLUME, (2, 2, 2), (2, 2, 2))),
    _make_case("_adaptive_avg_pool3d", "3-D", (_VOLUME, (2, 2, 2))),
    _make_case(
        "avg_pool2d_backward", "2-D", (Operand((2, 32, 14, 15)), _IMAGE, (2, 2), (2, 2), (0, 0), False, True, None)
    ),
    _make_case(
        "max_pool2d_with_indices_backward",
        "2-D",
        (Operand((2, 32, 14, 15)), _IMAGE, (2, 2), (2, 2), (0, 0), (1, 1), False, _make_indices(2, 32, 14, 15)),
    ),
    _make_case("_adaptive_avg_pool2d_backward", "2-D", (Operand((2, 32, 7, 7)), _IMAGE)),
    _make_case("upsample_nearest2d", "2-D", (_IMAGE, (56, 60), None, None)),
    _make_case("upsample_bilinear2d", "2-D", (_IMAGE, (56, 60), False, None, None)),
    _make_case("upsample_bicubic2d", "2-D", (_IMAGE, (56, 60), False, None, None)),
    _make_case("upsample_nearest3d", "3-D", (_VOLUME, (12, 28, 32), None, None, None)),
    _make_case("upsample_trilinear3d", "3-D", (_VOLUME, (12, 28, 32), False, None, None, None)),
    _make_case("upsample_nearest2d_backward", "2-D", (Operand((2, 32, 56, 60)), (56, 60), (2, 32, 28, 30), None, None)),
    _make_case(
        "upsample_bilinear2d_backward", "2-D", (Operand((2, 32, 56, 60)), (56, 60), (2, 32, 28, 30), False, None, None)
    ),
    _make_case("grid_sampler_2d", "2-D", (_IMAGE, Operand((2, 14, 14, 2)), 0, 0, False)),
    _make_case("im2col", "2-D", (_IMAGE, (3, 3), (1, 1), (1, 1), (1, 1))),
    _make_case("pixel_shuffle", "2-D", (_IMAGE, 2)),
    _make_case("pixel_unshuffle", "2-D", (_IMAGE, 2)),
    # Movements
    _make_case("cat", "along features", ((_SEQUENCE, _SEQUENCE), -1)),
    _make_case("cat", "along channels", ((_IMAGE, _IMAGE), 1)),
    _make_case("stack", "new dimension", ((_SEQUENCE, _SEQUENCE), 0)),
    _make_case("roll", "windows", (_IMAGE, (3, 3), (2, 3))),
    _make_case("flip", "last dimension", (_SEQUENCE, (-1,))),
    _make_case("constant_pad_nd", "2-D", (_IMAGE, (1, 1, 1, 1), 0.0)),
    _make_case("reflection_pad2d", "2-D", (_IMAGE, (1, 1, 1, 1))),
    _make_case("replication_pad2d", "2-D", (_IMAGE, (1, 1, 1, 1))),
    _make_case("repeat", "batch", (_SEQUENCE, (2, 1, 1))),
    _make_case("tril", "matrices", (_BATCH,)),
    _make_case("embedding", "table", (Operand((1000, 64)), _make_indices(8, 32))),
    _make_case("embedding_dense_backward", "table", (Operand((8, 32, 64)), _make_indices(8, 32), 1000, -1, False)),
    _make_case("gather", "last dimension", (_SEQUENCE, -1, _make_indices(4, 32, 16))),
    _make_case("index_select", "rows", (_SEQUENCE, 1, _make_indices(16))),
    _make_case("index.Tensor", "rows", (_SEQUENCE, (_make_indices(16),))),
    _make_case("slice_backward", "rows", (_SEQUENCE, (4, 64, 64), 1, 0, 32, 1)),
    _make_case("select_backward", "rows", (_MATRIX, (4, 64, 96), 0, 1)),
    _make_case("masked_fill.Scalar", "mask", (_SEQUENCE, _MASK, 0.0)),
    _make_case("where.self", "mask", (_MASK, _SEQUENCE, _SEQUENCE)),
    _make_case("topk", "last dimension", (_SEQUENCE, 8, -1, True, True)),
    _make_case("sort", "last dimension", (_SEQUENCE, -1, False)),
    _make_case("cumsum", "last dimension", (_SEQUENCE, -1)),
    _make_case("_fft_r2c", "2-D", (_IMAGE, (2, 3), 0, True)),
    _make_case("native_dropout", "training", (_SEQUENCE, 0.5, True)),
    # Reductions
    _make_case("sum.dim_IntList", "last dimension", (_SEQUENCE, (-1,), False)),
    _make_case("mean.dim", "over pixels", (_IMAGE, (2, 3), True)),
    _make_case("amax", "last dimension", (_SEQUENCE, (-1,), False)),
    _make_case("argmax", "last dimension", (_SEQUENCE, -1, False)),
    _make_case("var_mean.correction", "last dimension", (_SEQUENCE, (-1,))),
    _make_case("logsumexp", "last dimension", (_SEQUENCE, (-1,), False)),
    _make_case("linalg_vector_norm", "last dimension", (_SEQUENCE, 2.0, (-1,), False)),
    # Pointwise operators
    _make_case("add.Tensor", "same shapes", (_SEQUENCE, _SEQUENCE)),
    _make_case("mul.Tensor", "same shapes", (_SEQUENCE, _SEQUENCE)),
    _make_case("relu", "any", (_SEQUENCE,)),
    _make_case("gelu", "any", (_SEQUENCE,)),
    _make_case("silu", "any", (_SEQUENCE,)),
    _make_case("glu", "last dimension", (_SEQUENCE, -1)),
)

_VECTOR, _SQUARE = _make_fixed(64), _make_fixed(64, 64)
_STATISTICS = (_CHANNELS, _CHANNELS, _CHANNELS, _CHANNELS)
STRIDE_CASES: tuple[Case, ...] = (
    *CASES,
    _make_case("_native_batch_norm_legit", "images", (_IMAGE, *_STATISTICS, True, 0.1, 1e-5)),
    _make_case("_native_batch_norm_legit_no_training", "images", (_IMAGE, *_STATISTICS, 0.1, 1e-5)),
    _make_case("_native_batch_norm_legit_functional", "images", (_IMAGE, *_STATISTICS, True, 0.1, 1e-5)),
    _make_case("_batch_norm_with_update", "images", (_IMAGE, *_STATISTICS, 0.1, 1e-5)),
    _make_case("_batch_norm_with_update_functional", "images", (_IMAGE, *_STATISTICS, 0.1, 1e-5)),
    _make_case("_batch_norm_no_update", "images", (_IMAGE, *_STATISTICS, 0.1, 1e-5)),
    _make_case("native_channel_shuffle", "images", (_IMAGE, 4)),
    _make_case("_unsafe_index.Tensor", "rows", (_SEQUENCE, (_make_indices(16),))),
    _make_case("copy", "images", (_IMAGE, Operand((2, 32, 28, 30)))),
    _make_case("_upsample_bicubic2d_aa", "2-D", (_IMAGE, (56, 60), False, None, None)),
    _make_case(
        "_upsample_bicubic2d_aa_backward",
        "2-D",
        (Operand((2, 32, 56, 60)), (56, 60), (2, 32, 28, 30), False, None, None),
    ),
    _make_case(
        "_upsample_nearest_exact3d_backward",
        "3-D",
        (Operand((2, 16, 12, 28, 32)), (12, 28, 32), (2, 16, 6, 14, 16), None, None, None),
    ),
    _make_case(
        "_transformer_encoder_layer_fwd",
        "sequences",
        (
            *(_SEQUENCE, 64, 4, _make_fixed(192, 64), _make_fixed(192), _SQUARE, _VECTOR, False, False, 1e-5),
            *(_VECTOR, _VECTOR, _VECTOR, _VECTOR, _SQUARE, _VECTOR, _SQUARE, _VECTOR),
        ),
    ),
)
"""Calls whose results' strides are compared with those of fakes, besides those of torch's operator database."""
