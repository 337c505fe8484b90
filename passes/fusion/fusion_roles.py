"""Classify operators by their part in loop fusion: those that share a kernel, and those that end it.

The roles describe Inductor in torch 2.15, as seen in its CPU kernels:

- Reductions along the innermost dimensions share a kernel with what follows (`softmax`, `layer_norm`). Others end the
  kernel (`x / x.sum()`, batch norm in training).
- Gathers, pooling and interpolation are indexed loads.
- Scatters, sorts and scans are not fused with their consumers.
- Matrix products and convolutions are library calls.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.operator_families import LAYOUT_COPIES
from frx_graph.passes.costs.operator_traffic import is_allocation


class FusionRole(enum.StrEnum):
    """Part of an operator in a fused kernel."""

    TRANSPARENT = "transparent"
    """Moves nothing: a view, an allocation, or a layout copy, which the copy rules cover."""
    POINTWISE = "pointwise"
    """Each element of the result needs only elements of the operands: fuses on both sides."""
    ROW_REDUCTION = "row reduction"
    """Reduces along the innermost dimensions, one row at a time: fuses on both sides."""
    REDUCTION = "reduction"
    """Reduces across rows: fuses with its producers; what needs its result runs after it."""
    STATISTICS = "statistics"
    """Normalises by statistics of the whole operand: runs after its producers, fuses with its consumers."""
    BARRIER = "barrier"
    """A library call, or an operator that fuses with nothing."""


_STRIDE_ORDER = "prims.inductor_force_stride_order"
"""Inductor's own copy to an order, which rewrites insert."""

FUSIBLE = frozenset({FusionRole.POINTWISE, FusionRole.ROW_REDUCTION, FusionRole.REDUCTION, FusionRole.STATISTICS})

_POINTWISE_IN_EFFECT = frozenset(
    {
        "_to_copy", "cat", "stack", "constant_pad_nd", "reflection_pad2d", "replication_pad2d", "roll", "flip",
        "repeat", "hardtanh_backward", "hardswish", "hardswish_backward", "leaky_relu_backward", "elu_backward",
        "glu", "_prelu_kernel", "_prelu_kernel_backward", "native_dropout", "native_dropout_backward",
        "mse_loss", "mse_loss_backward", "bernoulli", "rand", "randn", "rand_like", "randn_like", "zeros",
        "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "fill",
        "zero", "copy", "arange", "scalar_tensor", "tril", "triu", "embedding", "gather", "index",
        "_unsafe_index", "index_select", "slice_backward", "select_backward", "slice_scatter", "select_scatter",
        "avg_pool1d", "avg_pool2d", "avg_pool2d_backward", "max_pool2d_with_indices",
        "max_pool2d_with_indices_backward", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
        "upsample_bilinear2d", "upsample_nearest2d_backward", "pixel_shuffle", "pixel_unshuffle",
        "channel_shuffle",
    }
)  # fmt: skip
"""Operators that torch does not tag as pointwise but Inductor lowers to a loop over the result."""
_REDUCTIONS = frozenset(
    {
        "sum", "nansum", "mean", "prod", "amax", "amin", "max", "min", "any", "all", "argmax", "argmin",
        "count_nonzero", "linalg_vector_norm", "norm", "var", "var_mean", "std", "std_mean", "logsumexp",
        "_adaptive_avg_pool2d",
    }
)  # fmt: skip
_SOFTMAXES = {
    "_softmax": 1, "_safe_softmax": 1, "_log_softmax": 1, "_softmax_backward_data": 2, "_log_softmax_backward_data": 2,
}  # fmt: skip
"""Operator → position of the dimension argument."""
_ROW_NORMS = frozenset(
    {"native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward"}
)
_STATISTICS_NORMS = frozenset(
    {
        "native_batch_norm", "native_batch_norm_backward", "_native_batch_norm_legit", "_batch_norm_with_update",
        "batch_norm_backward", "cudnn_batch_norm", "cudnn_batch_norm_backward", "native_group_norm",
        "native_group_norm_backward",
    }
)  # fmt: skip
_BATCH_NORM_TRAINING = 5
"""Position of `training` in the forward batch norms."""


def classify_fusion_role(op: OpFacts, facts: GraphFacts) -> FusionRole:
    """Return the role of one call."""
    if op.opaque:
        return FusionRole.BARRIER
    name = op.operator.rpartition(".")[2].removesuffix("_")
    if op.view or name == "_unsafe_view" or is_allocation(op) or is_layout_copy(op, facts):
        return FusionRole.TRANSPARENT
    if is_device_transfer(op, facts):
        return FusionRole.BARRIER
    if name in _STATISTICS_NORMS:
        stored = name.endswith("batch_norm") and op.args[_BATCH_NORM_TRAINING : _BATCH_NORM_TRAINING + 1] == (False,)
        return FusionRole.POINTWISE if stored else FusionRole.STATISTICS
    if name in _ROW_NORMS:
        return FusionRole.ROW_REDUCTION
    if name in _SOFTMAXES:
        dims = op.args[_SOFTMAXES[name]]
        return _classify_reduction(facts.values[op.inputs[0]], (dims,) if isinstance(dims, int) else None, after=True)
    if name in _REDUCTIONS and len(op.inputs) == 1:
        return _classify_reduction(facts.values[op.inputs[0]], _get_reduced_dims(op, name), after=False)
    return FusionRole.POINTWISE if op.pointwise or name in _POINTWISE_IN_EFFECT else FusionRole.BARRIER


def is_layout_copy(op: OpFacts, facts: GraphFacts) -> bool:
    """Return True for a node that only changes the strides of a tensor."""
    if op.operator not in LAYOUT_COPIES | {_STRIDE_ORDER} or not op.inputs or not op.outputs:
        return False
    source, result = facts.values[op.inputs[0]], facts.values[op.outputs[0]]
    return source.dtype is result.dtype and source.device == result.device


def is_device_transfer(op: OpFacts, facts: GraphFacts) -> bool:
    """Return True if tensors of rank 1 and more are on several devices, so that the operator moves data."""
    values = (*facts.get_input_values(op), *facts.get_output_values(op))
    return len({value.device for value in values if value.shape}) > 1


def _classify_reduction(value: ValueFacts, dims: Iterable[int] | None, *, after: bool) -> FusionRole:
    """Return the role of a reduction. `after`: it reads its operand again once it has reduced it, as softmax does."""
    rank = len(value.shape)
    reduced = set(range(rank)) if dims is None else {dim % rank for dim in dims} if rank else set()
    kept = [dim for dim in value.order if value.shape[dim] != 1]
    inner = set(kept[len(kept) - len(reduced & set(kept)) :])
    rows = inner == reduced & set(kept) and len(inner) < len(kept)
    if rows:
        return FusionRole.ROW_REDUCTION
    return FusionRole.STATISTICS if after else FusionRole.REDUCTION


def _get_reduced_dims(op: OpFacts, name: str) -> tuple[int, ...] | None:
    """Return the dimensions that a reduction removes; None for all."""
    if name == "_adaptive_avg_pool2d":
        return (-2, -1)
    position = 2 if name in ("linalg_vector_norm", "norm") else 1
    dims = op.args[position] if len(op.args) > position else op.kwargs.get("dim")
    listed = dims if isinstance(dims, tuple) else (dims,)
    known = tuple(dim for dim in listed if isinstance(dim, int) and not isinstance(dim, bool))
    return known if known and len(known) == len(listed) else None
