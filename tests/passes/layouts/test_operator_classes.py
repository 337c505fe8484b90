"""Every row of the table is run on a channels-last tensor: what it promises is what torch does on the CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from frx_graph.passes.layouts.operator_classes import (
    OPERATOR_CLASSES,
    LayoutRole,
    follows_operand,
    layout_operands,
    layout_results,
    operator_class,
)
from torch import Tensor

from frx_graph.capture.call_site import UNKNOWN_SITE
from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import OpFacts, ValueRef

aten = torch.ops.aten
NOT_ON_THE_CPU = ("aten.cudnn", "aten.miopen")


def image(rank: int, channels: int = 8, size: int = 6) -> Tensor:
    made = torch.randn(2, channels, *[size] * (rank - 2))
    return made.contiguous(memory_format=torch.channels_last if rank == 4 else torch.channels_last_3d)


X, G, BIG = image(4), image(4), image(4, size=12)
X3, BIG3 = image(5), image(5, size=12)
W, V = torch.randn(8), torch.rand(8) + 1.0
BN = aten.native_batch_norm(X, W, W, V.clone(), V.clone(), True, 0.1, 1e-5)
GN = aten.native_group_norm(X, W, W, 2, 8, 36, 2, 1e-5)
POOL = aten.max_pool2d_with_indices(X, [2, 2])
POOL3 = aten.max_pool3d_with_indices(X3, [2, 2, 2])
AMAX = aten.adaptive_max_pool2d(X, [3, 3])
SLOPE = W.view(1, 8, 1, 1)
K, K3 = torch.randn(8, 8, 3, 3), torch.randn(8, 8, 3, 3, 3)
MASK3 = [True, True, True]
PAD, PAD3 = [1, 1, 1, 1], [1, 1, 1, 1, 1, 1]

CASES: dict[str, Callable[[], Any]] = {
    "aten.convolution": lambda: aten.convolution(X, K, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    "aten.convolution_backward": lambda: aten.convolution_backward(
        image(4, size=4), X, K, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False]
    ),
    "aten.max_pool2d_with_indices": lambda: POOL,
    "aten.max_pool2d_with_indices_backward": lambda: aten.max_pool2d_with_indices_backward(
        POOL[0], X, [2, 2], [2, 2], [0, 0], [1, 1], False, POOL[1]
    ),
    "aten.max_pool3d_with_indices": lambda: POOL3,
    "aten.max_pool3d_with_indices_backward": lambda: aten.max_pool3d_with_indices_backward(
        POOL3[0], X3, [2] * 3, [2] * 3, [0] * 3, [1] * 3, False, POOL3[1]
    ),
    "aten.avg_pool2d": lambda: aten.avg_pool2d(X, [2, 2]),
    "aten.avg_pool2d_backward": lambda: aten.avg_pool2d_backward(
        image(4, size=3), X, [2, 2], [2, 2], [0, 0], False, True, None
    ),
    "aten._adaptive_avg_pool2d": lambda: aten._adaptive_avg_pool2d(X, [3, 3]),
    "aten._adaptive_avg_pool2d_backward": lambda: aten._adaptive_avg_pool2d_backward(image(4, size=3), X),
    "aten.adaptive_max_pool2d": lambda: AMAX,
    "aten.adaptive_max_pool2d_backward": lambda: aten.adaptive_max_pool2d_backward(AMAX[0], X, AMAX[1]),
    "aten.native_batch_norm": lambda: BN,
    "aten.native_batch_norm_backward": lambda: aten.native_batch_norm_backward(
        G, X, W, V, V, BN[1], BN[2], True, 1e-5, MASK3
    ),
    "aten._native_batch_norm_legit": lambda: aten._native_batch_norm_legit.no_stats(X, W, W, True, 0.1, 1e-5),
    "aten._native_batch_norm_legit_no_training": lambda: aten._native_batch_norm_legit_no_training(
        X, W, W, V, V, 0.1, 1e-5
    ),
    "aten._batch_norm_with_update": lambda: aten._batch_norm_with_update(X, W, W, V.clone(), V.clone(), 0.1, 1e-5),
    "aten.batch_norm_backward": lambda: aten.batch_norm_backward(
        G, X, W, V, V, BN[1], BN[2], True, 1e-5, MASK3, torch.empty(0, dtype=torch.uint8)
    ),
    "aten.native_group_norm": lambda: GN,
    "aten.native_group_norm_backward": lambda: aten.native_group_norm_backward(
        G, X, GN[1], GN[2], W, 2, 8, 36, 2, MASK3
    ),
    "aten.cat": lambda: aten.cat([X, G], 1),
    "aten.constant_pad_nd": lambda: aten.constant_pad_nd(X, PAD),
    "aten.reflection_pad2d": lambda: aten.reflection_pad2d(X, PAD),
    "aten.reflection_pad2d_backward": lambda: aten.reflection_pad2d_backward(image(4, size=8), X, PAD),
    "aten.reflection_pad3d": lambda: aten.reflection_pad3d(X3, PAD3),
    "aten.reflection_pad3d_backward": lambda: aten.reflection_pad3d_backward(image(5, size=8), X3, PAD3),
    "aten.replication_pad2d": lambda: aten.replication_pad2d(X, PAD),
    "aten.replication_pad2d_backward": lambda: aten.replication_pad2d_backward(image(4, size=8), X, PAD),
    "aten.replication_pad3d": lambda: aten.replication_pad3d(X3, PAD3),
    "aten.replication_pad3d_backward": lambda: aten.replication_pad3d_backward(image(5, size=8), X3, PAD3),
    "aten.upsample_nearest2d": lambda: aten.upsample_nearest2d(X, [12, 12]),
    "aten.upsample_nearest2d_backward": lambda: aten.upsample_nearest2d_backward(BIG, [12, 12], list(X.shape)),
    "aten._upsample_nearest_exact2d": lambda: aten._upsample_nearest_exact2d(X, [12, 12]),
    "aten._upsample_nearest_exact2d_backward": lambda: aten._upsample_nearest_exact2d_backward(
        BIG, [12, 12], list(X.shape)
    ),
    "aten.upsample_bilinear2d": lambda: aten.upsample_bilinear2d(X, [12, 12], False),
    "aten.upsample_bilinear2d_backward": lambda: aten.upsample_bilinear2d_backward(BIG, [12, 12], list(X.shape), False),
    "aten._upsample_bilinear2d_aa": lambda: aten._upsample_bilinear2d_aa(X, [12, 12], False),
    "aten._upsample_bilinear2d_aa_backward": lambda: aten._upsample_bilinear2d_aa_backward(
        BIG, [12, 12], list(X.shape), False
    ),
    "aten.upsample_bicubic2d": lambda: aten.upsample_bicubic2d(X, [12, 12], False),
    "aten.upsample_nearest3d": lambda: aten.upsample_nearest3d(X3, [12] * 3),
    "aten._upsample_nearest_exact3d": lambda: aten._upsample_nearest_exact3d(X3, [12] * 3),
    "aten.upsample_trilinear3d": lambda: aten.upsample_trilinear3d(X3, [12] * 3, False),
    "aten.upsample_trilinear3d_backward": lambda: aten.upsample_trilinear3d_backward(
        BIG3, [12] * 3, list(X3.shape), False
    ),
    "aten.pixel_shuffle": lambda: aten.pixel_shuffle(X, 2),
    "aten.pixel_unshuffle": lambda: aten.pixel_unshuffle(X, 2),
    "aten.channel_shuffle": lambda: aten.channel_shuffle(X, 2),
    "aten.flip": lambda: aten.flip(X, [2]),
    "aten.native_dropout": lambda: aten.native_dropout(X, 0.5, True),
    "aten.native_dropout_backward": lambda: aten.native_dropout_backward(G, X > 0, 2.0),
    "aten.bernoulli_": lambda: aten.bernoulli_(torch.empty_like(X), 0.5),
    "aten._to_copy": lambda: aten._to_copy(X, dtype=torch.float64),
    "aten.copy": lambda: aten.copy(X, G),
    "aten.fill": lambda: aten.fill(X, 1.0),
    "aten.zero": lambda: aten.zero(X),
    "aten.empty_like": lambda: aten.empty_like(X),
    "aten.zeros_like": lambda: aten.zeros_like(X),
    "aten.ones_like": lambda: aten.ones_like(X),
    "aten.full_like": lambda: aten.full_like(X, 1.0),
    "aten.rand_like": lambda: aten.rand_like(X),
    "aten.randn_like": lambda: aten.randn_like(X),
    "aten.glu": lambda: aten.glu(X, 1),
    "aten.hardswish": lambda: aten.hardswish(X),
    "aten.hardswish_backward": lambda: aten.hardswish_backward(G, X),
    "aten.hardtanh_backward": lambda: aten.hardtanh_backward(G, X, -1.0, 1.0),
    "aten.hardsigmoid_backward": lambda: aten.hardsigmoid_backward(G, X),
    "aten.leaky_relu_backward": lambda: aten.leaky_relu_backward(G, X, 0.1, False),
    "aten.elu_backward": lambda: aten.elu_backward(G, 1.0, 1.0, 1.0, False, X),
    "aten.softplus_backward": lambda: aten.softplus_backward(G, X, 1.0, 20.0),
    "aten.mish_backward": lambda: aten.mish_backward(G, X),
    "aten._prelu_kernel": lambda: aten._prelu_kernel(X, SLOPE),
    "aten._prelu_kernel_backward": lambda: aten._prelu_kernel_backward(G, X, SLOPE),
    "aten.alias": lambda: aten.alias(X),
    "aten.detach": lambda: aten.detach(X),
    "aten.slice": lambda: aten.slice(X, 0, 0, 1),
    "aten.split": lambda: aten.split(X, 1, 0),
    "aten.split_with_sizes": lambda: aten.split_with_sizes(X, [1, 1], 0),
    "aten.unsafe_split": lambda: aten.unsafe_split(X, 1, 0),
}

JOINING = [row for row in OPERATOR_CLASSES if row.joins("cpu", "eager")]


def call(operator: str, *names: str, mutates: tuple[str, ...] = (), **fields: Any) -> OpFacts:
    made: dict[str, Any] = {
        "node": "node",
        "target": f"{operator}.default",
        "operator": operator,
        "args": tuple(ValueRef(name) for name in names),
        "kwargs": {},
        "inputs": names,
        "outputs": ("out",),
        "mutates": mutates,
        "phase": Phase.FORWARD,
        "site": UNKNOWN_SITE,
    }
    return OpFacts(**(made | fields))


@pytest.mark.parametrize("row", JOINING, ids=lambda row: row.operator)
def test_a_row_that_joins_keeps_channels_last_on_the_cpu(row: Any) -> None:
    if row.operator.startswith(NOT_ON_THE_CPU):
        pytest.skip("not a CPU operator")
    result = CASES[row.operator]()
    result = result[0] if isinstance(result, (tuple, list)) else result
    wanted = torch.channels_last if result.dim() == 4 else torch.channels_last_3d
    assert result.is_contiguous(memory_format=wanted)
    assert not result.is_contiguous()


def test_every_operator_has_one_row() -> None:
    names = [row.operator for row in OPERATOR_CLASSES]
    assert len(set(names)) == len(names)


def test_masked_fill_is_a_barrier_though_torch_calls_it_pointwise() -> None:
    assert torch.Tag.pointwise in aten.masked_fill.Scalar.tags
    assert aten.masked_fill(X, X > 0, 0.0).is_contiguous()
    assert operator_class(call("aten.masked_fill", "x", pointwise=True)).role is LayoutRole.BARRIER


def test_pointwise_operators_need_no_row() -> None:
    assert operator_class(call("aten.gelu", "x", pointwise=True)).role is LayoutRole.AGNOSTIC
    assert operator_class(call("aten.bmm", "x")).role is LayoutRole.BARRIER


def test_an_in_place_operator_has_the_row_of_its_out_of_place_form() -> None:
    row = operator_class(call("aten.hardswish_", "x", mutates=("x",)))
    assert row.operator == "aten.hardswish"


def test_an_operator_that_is_told_its_memory_format_is_a_barrier() -> None:
    asked = call("aten.clone", "x", pointwise=True, kwargs={"memory_format": torch.contiguous_format})
    kept = call("aten.clone", "x", pointwise=True, kwargs={"memory_format": torch.preserve_format})
    assert operator_class(asked).role is LayoutRole.BARRIER
    assert operator_class(kept).role is LayoutRole.AGNOSTIC


def test_group_norm_keeps_channels_last_on_the_cpu_and_wherever_inductor_writes_the_loops() -> None:
    row = operator_class(call("aten.native_group_norm", "x"))
    assert row.joins("cpu", "eager")
    assert not row.joins("cuda", "eager")
    assert row.joins("cuda", "inductor")


def test_only_the_image_of_a_convolution_counts() -> None:
    op = call("aten.convolution", "x", "weight", "bias")
    assert layout_operands(op, operator_class(op)) == ("x",)


@pytest.mark.parametrize(("mask", "counted"), [((True, True, False), ("gx",)), ((False, True, False), ())])
def test_the_gradient_of_a_weight_does_not_count(mask: tuple[bool, ...], counted: tuple[str, ...]) -> None:
    op = call("aten.convolution_backward", "g", "x", "weight")
    outputs = ("gx", "gw") if mask[0] else ("gw",)
    op = call("aten.convolution_backward", "g", "x", "weight", args=(*op.args, *[None] * 7, mask), outputs=outputs)
    assert layout_operands(op, operator_class(op)) == ("g", "x")
    assert layout_results(op) == counted


def test_views_and_in_place_results_lie_where_their_operand_lies() -> None:
    assert follows_operand(call("aten.alias", "x", view=True))
    assert follows_operand(call("aten.relu_", "x", mutates=("x",), pointwise=True))
    assert not follows_operand(call("aten.relu", "x", pointwise=True))
    running_statistics = call("aten._native_batch_norm_legit", "x", "mean", mutates=("mean",))
    assert not follows_operand(running_statistics)
