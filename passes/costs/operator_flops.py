"""Floating-point operations of one operator call, from shapes.

Matrix products, convolutions and attention follow torch's own formulas (`torch.utils.flop_counter`), a multiply-add
counted as 2. Everything else is counted by the operations in its defining formula per element, an elementary function
(exp, tanh, erf, sqrt) and a comparison counted as 1 each, as XLA's HloCostAnalysis does. Moving data is no operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from frx_graph.facts.graph_facts import Argument, GraphFacts, OpFacts, ValueFacts, ValueRef

FlopFormula = Callable[..., Any]

_MOVES_ONLY = frozenset(
    {
        "clone", "copy", "_to_copy", "cat", "stack", "repeat", "roll", "flip", "index", "_unsafe_index",
        "index_select", "index_copy", "index_fill", "gather", "scatter", "take", "embedding", "where",
        "masked_fill", "masked_scatter", "masked_select", "nonzero", "constant_pad_nd", "reflection_pad1d",
        "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d", "replication_pad3d",
        "slice_backward", "select_backward", "diagonal_backward", "unfold_backward", "slice_scatter",
        "select_scatter", "diagonal_scatter", "as_strided_scatter", "tril", "triu", "pixel_shuffle",
        "pixel_unshuffle", "channel_shuffle", "im2col", "_unsafe_view", "lift_fresh", "lift_fresh_copy",
        "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "hardtanh_backward", "fill", "zero",
        "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full",
        "arange", "linspace", "eye", "scalar_tensor", "rand", "randn", "randint", "randperm", "rand_like",
        "randn_like", "randint_like", "bernoulli", "normal", "uniform", "random", "exponential", "one_hot",
        "_local_scalar_dense", "as_strided", "t", "transpose", "squeeze", "unsqueeze", "detach", "set",
        "resize",
    }
)  # fmt: skip
"""Operators that move, select or make values without arithmetic on them; random numbers count as made."""

_PER_OUTPUT_ELEMENT = {
    "gelu": 5, "gelu_backward": 10, "silu": 4, "silu_backward": 8, "sigmoid": 3, "sigmoid_backward": 3,
    "tanh_backward": 3, "hardtanh": 2, "clamp": 2, "hardswish": 4, "hardswish_backward": 3, "hardsigmoid": 3, "elu": 3,
    "softplus": 3, "mish": 5, "leaky_relu": 2, "addcmul": 3, "addcdiv": 3, "lerp": 3, "_prelu_kernel": 1,
    "_prelu_kernel_backward": 3, "native_dropout": 2, "native_dropout_backward": 2, "mse_loss": 3,
    "mse_loss_backward": 3, "max_pool2d_with_indices_backward": 1, "max_pool3d_with_indices_backward": 1,
    "upsample_linear1d": 3, "upsample_bilinear2d": 7, "upsample_trilinear3d": 15, "upsample_bicubic2d": 31,
}  # fmt: skip
"""Operations per element of the first output. Pointwise operators that are not named count 1; interpolations count the
multiplications and additions of their weights (2, 4, 8 or 16 taps)."""

_PER_INPUT_ELEMENT = {
    "sum": 1, "nansum": 1, "mean": 1, "prod": 1, "amax": 1, "amin": 1, "max": 1, "min": 1, "aminmax": 2, "any": 1,
    "all": 1, "argmax": 1, "argmin": 1, "count_nonzero": 1, "cumsum": 1, "cumprod": 1, "cummax": 1, "cummin": 1,
    "norm": 2, "linalg_vector_norm": 2, "var": 4, "var_mean": 4, "std": 4, "std_mean": 4, "logsumexp": 4,
    "_softmax": 5, "_safe_softmax": 5, "_log_softmax": 5, "_softmax_backward_data": 4, "_log_softmax_backward_data": 4,
    "native_layer_norm": 7, "native_layer_norm_backward": 13, "native_group_norm": 7, "native_group_norm_backward": 13,
    "native_batch_norm": 7, "native_batch_norm_backward": 13, "cudnn_batch_norm": 7, "cudnn_batch_norm_backward": 13,
    "_native_batch_norm_legit": 7, "_batch_norm_with_update": 7, "batch_norm_backward": 13, "_fused_rms_norm": 4,
    "_native_batch_norm_legit_no_training": 2, "_adaptive_avg_pool2d": 1, "_adaptive_avg_pool3d": 1,
    "_adaptive_avg_pool2d_backward": 1, "nll_loss_forward": 0, "nll_loss_backward": 0, "nll_loss2d_forward": 0,
    "nll_loss2d_backward": 0, "embedding_dense_backward": 1, "upsample_nearest2d_backward": 1,
    "upsample_nearest3d_backward": 1, "upsample_bilinear2d_backward": 7, "upsample_trilinear3d_backward": 15,
}  # fmt: skip
"""Operations per element of the first tensor read. A normalisation takes 7: mean, difference, square, sum, scale,
weight, bias."""

_BATCH_NORMS = frozenset({"native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit"})
_TRAINING_POSITION = 5
"""Where batch norms take `training`; with stored statistics they are one multiply-add per element."""
_POOLS = {
    "avg_pool1d": (1, 1), "avg_pool2d": (1, 2), "avg_pool3d": (1, 3), "max_pool2d_with_indices": (1, 2),
    "max_pool3d_with_indices": (1, 3), "avg_pool2d_backward": (2, 2), "avg_pool3d_backward": (2, 3),
}  # fmt: skip
"""Operator → position of the window and spatial rank. One addition or comparison per element of the window."""
_ATTENTION = "aten._scaled_dot_product_"
_ACCUMULATES = {"index_add": 3, "scatter_add": 3, "scatter_reduce": 3, "index_put": 2}
"""Operator → position of the values, each of which is added once."""


def flops_of(op: OpFacts, facts: GraphFacts, formulas: Mapping[str, FlopFormula]) -> int | None:
    """FLOPs of `op`; None where no formula is known. `formulas` is `flop_formulas()`.

    Attention counts the dense product even where it is causal, as torch's formula does.
    """
    if op.view:
        return 0
    packet = op.operator.removesuffix("_")
    name = packet.rpartition(".")[2]
    if packet == "aten.convolution_backward":
        return _convolution_backward_flops(op, facts)
    formula = formulas.get(_as_registered(packet, formulas))
    if formula is not None:
        return _by_formula(formula, op, facts)
    if op.opaque:
        return None
    if name in _MOVES_ONLY or name.startswith(("empty", "new_empty")):
        return 0
    return _per_element(op, name, facts)


def flop_formulas() -> dict[str, FlopFormula]:
    """torch's registry by operator name, with whatever formulas the program registered for its own operators."""
    return {str(target): formula for target, formula in flop_registry.items()}


def _as_registered(packet: str, formulas: Mapping[str, FlopFormula]) -> str:
    """Attention kernels all do the same arithmetic; torch 2.13 has formulas for some of them only."""
    if packet in formulas or not packet.startswith(_ATTENTION):
        return packet
    return f"{_ATTENTION}flash_attention{'_backward' if packet.endswith('_backward') else ''}"


def _by_formula(formula: FlopFormula, op: OpFacts, facts: GraphFacts) -> int | None:
    """The formula on tensors without data: some read shapes, those registered with `get_raw` whole tensors."""
    outputs = tuple(_meta(value) for value in facts.output_values(op))
    args = (_with_tensors(argument, facts) for argument in op.args)
    kwargs = {key: _with_tensors(argument, facts) for key, argument in op.kwargs.items()}
    try:
        return int(formula(*args, **kwargs, out_val=outputs[0] if len(outputs) == 1 else outputs))
    except (AssertionError, AttributeError, IndexError, TypeError, ValueError):
        # A formula that does not fit this call, such as one of another torch version: the count is unknown.
        return None


def _convolution_backward_flops(op: OpFacts, facts: GraphFacts) -> int | None:
    """Each gradient costs what the forward costs. torch's formula says the same for one group, but counts the weight's
    gradient of a grouped convolution `groups` times over."""
    if not all(isinstance(argument, ValueRef) for argument in op.args[:3]) or not isinstance(op.args[10], tuple):
        return None
    grad, source, weight = (facts.values[ref.name] for ref in op.args[:3] if isinstance(ref, ValueRef))
    positions = (source if op.args[7] else grad).shape[2:]
    forward = 2 * source.shape[0] * math.prod(positions) * weight.numel
    return forward * sum(1 for wanted in op.args[10][:2] if wanted)


def _per_element(op: OpFacts, name: str, facts: GraphFacts) -> int | None:
    outputs, inputs = facts.output_values(op), facts.input_values(op)
    produced = outputs[0].numel if outputs else 0
    if name in _BATCH_NORMS and op.args[_TRAINING_POSITION : _TRAINING_POSITION + 1] == (False,):
        return 2 * produced
    if name in _PER_OUTPUT_ELEMENT:
        return _PER_OUTPUT_ELEMENT[name] * produced
    if name in _PER_INPUT_ELEMENT and inputs:
        return _PER_INPUT_ELEMENT[name] * inputs[0].numel
    if name in _POOLS:
        position, rank = _POOLS[name]
        window = op.args[position] if len(op.args) > position else None
        windows = facts.values[op.inputs[0]].numel if name.endswith("_backward") else produced
        return _volume(window, rank) * windows if window is not None else None
    if name == "index_put" and op.args[3:4] != (True,):
        return 0
    if name in _ACCUMULATES:
        source = op.args[_ACCUMULATES[name]] if len(op.args) > _ACCUMULATES[name] else None
        return facts.values[source.name].numel if isinstance(source, ValueRef) else None
    return produced if op.pointwise else None


def _volume(window: Argument, rank: int) -> int:
    """Elements of a pooling window, given one side for all dimensions or one for each."""
    sides = [side for side in (window if isinstance(window, tuple) else (window,)) if isinstance(side, int)]
    return math.prod(sides) if len(sides) == rank else sides[0] ** rank


def _with_tensors(argument: Argument, facts: GraphFacts) -> Any:
    if isinstance(argument, ValueRef):
        value = facts.values.get(argument.name)
        return None if value is None else _meta(value)
    if isinstance(argument, tuple):
        return [_with_tensors(item, facts) for item in argument]
    return argument


def _meta(value: ValueFacts) -> torch.Tensor:
    return torch.empty(value.shape, dtype=value.dtype, device="meta")
