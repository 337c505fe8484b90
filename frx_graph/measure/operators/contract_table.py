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


def _make_vector(length: int) -> Operand:
    return Operand((length,), varied=False)


def _make_indices(*shape: int) -> Operand:
    return Operand(shape, torch.int64, varied=False)


def _make_convolution(
    name: str,
    source: tuple[int, ...],
    weight: tuple[int, ...],
    *,
    padding: int = 1,
    groups: int = 1,
    transposed: bool = False,
) -> Case:
    axes = len(source) - 2
    settings: tuple[CaseArgument, ...] = ((1,) * axes, (padding,) * axes, (1,) * axes, transposed, (0,) * axes, groups)
    return Case("aten.convolution.default", name, (Operand(source), Operand(weight), None, *settings))


def _make_convolution_backward(
    name: str, gradient: tuple[int, ...], source: tuple[int, ...], weight: tuple[int, ...], *, groups: int = 1
) -> Case:
    axes = len(source) - 2
    settings: tuple[CaseArgument, ...] = ((1,) * axes, (1,) * axes, (1,) * axes, False, (0,) * axes, groups)
    operands = (Operand(gradient), Operand(source), Operand(weight), None)
    return Case("aten.convolution_backward.default", name, (*operands, *settings, (True, True, False)))


_PRODUCTS = (
    Case("aten.mm.default", "matrices", (_MATRIX, Operand((96, 48)))),
    Case("aten.bmm.default", "batched", (_BATCH, Operand((8, 48, 40)))),
    Case("aten.addmm.default", "with bias", (_make_vector(48), _MATRIX, Operand((96, 48)))),
    Case("aten.baddbmm.default", "batched", (Operand((8, 32, 40)), _BATCH, Operand((8, 48, 40)))),
    Case("aten.mv.default", "matrix and vector", (_MATRIX, Operand((96,)))),
    Case("aten.dot.default", "vectors", (Operand((96,)), Operand((96,)))),
    Case("aten.addmv.default", "with bias", (_make_vector(64), _MATRIX, Operand((96,)))),
    Case(
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        "attention heads",
        (_HEADS, _HEADS, _HEADS, 0.0, False),
    ),
    Case(
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
        "attention heads",
        (_HEADS, _HEADS, _HEADS, _HEADS, _HEADS, Operand((2, 4, 64), torch.float32, varied=False), 0.0, False),
    ),
    Case("aten._cdist_forward.default", "points", (_BATCH, Operand((8, 40, 48)), 2.0, None)),
)

_CONVOLUTIONS = (
    _make_convolution("1-D", (4, 64, 128), (64, 64, 3)),
    _make_convolution("2-D, 3x3", (2, 32, 28, 30), (64, 32, 3, 3)),
    _make_convolution("2-D, 1x1", (2, 32, 28, 30), (64, 32, 1, 1), padding=0),
    _make_convolution("2-D, grouped", (2, 32, 28, 30), (64, 8, 3, 3), groups=4),
    _make_convolution("2-D, depthwise", (2, 32, 28, 30), (32, 1, 3, 3), groups=32),
    _make_convolution("2-D, transposed", (2, 32, 28, 30), (32, 16, 3, 3), transposed=True),
    _make_convolution("3-D", (2, 16, 6, 14, 16), (32, 16, 3, 3, 3)),
    _make_convolution("3-D, transposed", (2, 16, 6, 14, 16), (16, 32, 3, 3, 3), transposed=True),
    _make_convolution_backward("1-D", (4, 64, 128), (4, 64, 128), (64, 64, 3)),
    _make_convolution_backward("2-D, 3x3", (2, 64, 28, 30), (2, 32, 28, 30), (64, 32, 3, 3)),
    _make_convolution_backward("2-D, depthwise", (2, 32, 28, 30), (2, 32, 28, 30), (32, 1, 3, 3), groups=32),
    _make_convolution_backward("3-D", (2, 32, 6, 14, 16), (2, 16, 6, 14, 16), (32, 16, 3, 3, 3)),
)

_NORMALISATIONS = (
    Case(
        "aten.native_layer_norm.default", "over features", (_SEQUENCE, (64,), _make_vector(64), _make_vector(64), 1e-5)
    ),
    Case(
        "aten.native_layer_norm_backward.default",
        "over features",
        (
            _SEQUENCE,
            _SEQUENCE,
            (64,),
            Operand((4, 32, 1), varied=False),
            Operand((4, 32, 1), varied=False),
            _make_vector(64),
            _make_vector(64),
            (True, True, True),
        ),
    ),
    Case("aten.native_group_norm.default", "images", (_IMAGE, _make_vector(32), _make_vector(32), 2, 32, 840, 4, 1e-5)),
    Case(
        "aten.native_group_norm_backward.default",
        "images",
        (
            _IMAGE,
            _IMAGE,
            Operand((2, 4), varied=False),
            Operand((2, 4), varied=False),
            _make_vector(32),
            2,
            32,
            840,
            4,
            (True, True, True),
        ),
    ),
    Case(
        "aten.native_batch_norm.default",
        "images, training",
        (_IMAGE, _make_vector(32), _make_vector(32), _make_vector(32), _make_vector(32), True, 0.1, 1e-5),
    ),
    Case(
        "aten.native_batch_norm.default",
        "images, inference",
        (_IMAGE, _make_vector(32), _make_vector(32), _make_vector(32), _make_vector(32), False, 0.1, 1e-5),
    ),
    Case(
        "aten.native_batch_norm_backward.default",
        "images, training",
        (
            _IMAGE,
            _IMAGE,
            _make_vector(32),
            _make_vector(32),
            _make_vector(32),
            _make_vector(32),
            _make_vector(32),
            True,
            1e-5,
            (True, True, True),
        ),
    ),
    Case("aten._fused_rms_norm.default", "over features", (_SEQUENCE, (64,), _make_vector(64), 1e-5)),
    Case("aten._softmax.default", "over the last dimension", (_SEQUENCE, -1, False)),
    Case("aten._log_softmax.default", "over the last dimension", (_SEQUENCE, -1, False)),
    Case("aten._softmax_backward_data.default", "over the last dimension", (_SEQUENCE, _SEQUENCE, -1, torch.float32)),
)

_POOLINGS = (
    Case("aten.max_pool2d_with_indices.default", "2-D", (_IMAGE, (3, 3), (2, 2), (1, 1))),
    Case("aten.avg_pool2d.default", "2-D", (_IMAGE, (2, 2), (2, 2))),
    Case("aten._adaptive_avg_pool2d.default", "2-D", (_IMAGE, (7, 7))),
    Case("aten.adaptive_max_pool2d.default", "2-D", (_IMAGE, (7, 7))),
    Case("aten.max_pool3d_with_indices.default", "3-D", (_VOLUME, (2, 2, 2), (2, 2, 2))),
    Case("aten.avg_pool3d.default", "3-D", (_VOLUME, (2, 2, 2), (2, 2, 2))),
    Case("aten._adaptive_avg_pool3d.default", "3-D", (_VOLUME, (2, 2, 2))),
    Case(
        "aten.avg_pool2d_backward.default",
        "2-D",
        (Operand((2, 32, 14, 15)), _IMAGE, (2, 2), (2, 2), (0, 0), False, True, None),
    ),
    Case(
        "aten.max_pool2d_with_indices_backward.default",
        "2-D",
        (Operand((2, 32, 14, 15)), _IMAGE, (2, 2), (2, 2), (0, 0), (1, 1), False, _make_indices(2, 32, 14, 15)),
    ),
    Case("aten._adaptive_avg_pool2d_backward.default", "2-D", (Operand((2, 32, 7, 7)), _IMAGE)),
    Case("aten.upsample_nearest2d.default", "2-D", (_IMAGE, (56, 60), None, None)),
    Case("aten.upsample_bilinear2d.default", "2-D", (_IMAGE, (56, 60), False, None, None)),
    Case("aten.upsample_bicubic2d.default", "2-D", (_IMAGE, (56, 60), False, None, None)),
    Case("aten.upsample_nearest3d.default", "3-D", (_VOLUME, (12, 28, 32), None, None, None)),
    Case("aten.upsample_trilinear3d.default", "3-D", (_VOLUME, (12, 28, 32), False, None, None, None)),
    Case(
        "aten.upsample_nearest2d_backward.default",
        "2-D",
        (Operand((2, 32, 56, 60)), (56, 60), (2, 32, 28, 30), None, None),
    ),
    Case(
        "aten.upsample_bilinear2d_backward.default",
        "2-D",
        (Operand((2, 32, 56, 60)), (56, 60), (2, 32, 28, 30), False, None, None),
    ),
    Case("aten.grid_sampler_2d.default", "2-D", (_IMAGE, Operand((2, 14, 14, 2)), 0, 0, False)),
    Case("aten.im2col.default", "2-D", (_IMAGE, (3, 3), (1, 1), (1, 1), (1, 1))),
    Case("aten.pixel_shuffle.default", "2-D", (_IMAGE, 2)),
    Case("aten.pixel_unshuffle.default", "2-D", (_IMAGE, 2)),
)

_MOVEMENTS = (
    Case("aten.cat.default", "along features", ((_SEQUENCE, _SEQUENCE), -1)),
    Case("aten.cat.default", "along channels", ((_IMAGE, _IMAGE), 1)),
    Case("aten.stack.default", "new dimension", ((_SEQUENCE, _SEQUENCE), 0)),
    Case("aten.roll.default", "windows", (_IMAGE, (3, 3), (2, 3))),
    Case("aten.flip.default", "last dimension", (_SEQUENCE, (-1,))),
    Case("aten.constant_pad_nd.default", "2-D", (_IMAGE, (1, 1, 1, 1), 0.0)),
    Case("aten.reflection_pad2d.default", "2-D", (_IMAGE, (1, 1, 1, 1))),
    Case("aten.replication_pad2d.default", "2-D", (_IMAGE, (1, 1, 1, 1))),
    Case("aten.repeat.default", "batch", (_SEQUENCE, (2, 1, 1))),
    Case("aten.tril.default", "matrices", (_BATCH,)),
    Case("aten.embedding.default", "table", (Operand((1000, 64)), _make_indices(8, 32))),
    Case(
        "aten.embedding_dense_backward.default", "table", (Operand((8, 32, 64)), _make_indices(8, 32), 1000, -1, False)
    ),
    Case("aten.gather.default", "last dimension", (_SEQUENCE, -1, _make_indices(4, 32, 16))),
    Case("aten.index_select.default", "rows", (_SEQUENCE, 1, _make_indices(16))),
    Case("aten.index.Tensor", "rows", (_SEQUENCE, (_make_indices(16),))),
    Case("aten.slice_backward.default", "rows", (_SEQUENCE, (4, 64, 64), 1, 0, 32, 1)),
    Case("aten.select_backward.default", "rows", (_MATRIX, (4, 64, 96), 0, 1)),
    Case("aten.masked_fill.Scalar", "mask", (_SEQUENCE, Operand((4, 32, 64), torch.bool, varied=False), 0.0)),
    Case("aten.where.self", "mask", (Operand((4, 32, 64), torch.bool, varied=False), _SEQUENCE, _SEQUENCE)),
    Case("aten.topk.default", "last dimension", (_SEQUENCE, 8, -1, True, True)),
    Case("aten.sort.default", "last dimension", (_SEQUENCE, -1, False)),
    Case("aten.cumsum.default", "last dimension", (_SEQUENCE, -1)),
    Case("aten._fft_r2c.default", "2-D", (_IMAGE, (2, 3), 0, True)),
    Case("aten.native_dropout.default", "training", (_SEQUENCE, 0.5, True)),
)

_REDUCTIONS = (
    Case("aten.sum.dim_IntList", "last dimension", (_SEQUENCE, (-1,), False)),
    Case("aten.mean.dim", "over pixels", (_IMAGE, (2, 3), True)),
    Case("aten.amax.default", "last dimension", (_SEQUENCE, (-1,), False)),
    Case("aten.argmax.default", "last dimension", (_SEQUENCE, -1, False)),
    Case("aten.var_mean.correction", "last dimension", (_SEQUENCE, (-1,))),
    Case("aten.logsumexp.default", "last dimension", (_SEQUENCE, (-1,), False)),
    Case("aten.linalg_vector_norm.default", "last dimension", (_SEQUENCE, 2.0, (-1,), False)),
)

_POINTWISE = (
    Case("aten.add.Tensor", "same shapes", (_SEQUENCE, _SEQUENCE)),
    Case("aten.mul.Tensor", "same shapes", (_SEQUENCE, _SEQUENCE)),
    Case("aten.relu.default", "any", (_SEQUENCE,)),
    Case("aten.gelu.default", "any", (_SEQUENCE,)),
    Case("aten.silu.default", "any", (_SEQUENCE,)),
    Case("aten.glu.default", "last dimension", (_SEQUENCE, -1)),
)

CASES: tuple[Case, ...] = (
    *_PRODUCTS,
    *_CONVOLUTIONS,
    *_NORMALISATIONS,
    *_POOLINGS,
    *_MOVEMENTS,
    *_REDUCTIONS,
    *_POINTWISE,
)
