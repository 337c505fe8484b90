"""Fold batch norms into the convolutions in front of them.

Why: without gradients a batch norm is a factor and a summand for each channel, which the preceding convolution can
apply at no cost. By itself it reads and writes the image once more.
How: the weight's output channels and the bias are scaled; the convolution takes the batch norm's place.
Assumes: a frozen graph: all of the two operators' weights are constants.
Safe: the same sums, each factor applied before instead of behind them, as in torch's own freezing. Nothing else reads
the convolution's result, and the result has the same strides.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import Tensor, fx

from frx_graph.freezing.constant_folding import FrozenWeights, run_undisturbed
from frx_graph.records import Candidate

NAME = "folded_norms"


def fold_norms(graph: fx.Graph, frozen: FrozenWeights, graph_id: str) -> Candidate | None:
    """Fold what can be folded, in place. Returns what was done."""
    folded = [node.name for node in graph.find_nodes(op="call_function", target=_NORM) if _fold_norm(node, frozen)]
    graph.eliminate_dead_code()
    return Candidate(NAME, graph_id, tuple(folded)) if folded else None


_NORM = torch.ops.aten._native_batch_norm_legit_no_training.default


def _fold_norm(norm: fx.Node, frozen: FrozenWeights) -> bool:
    convolution, scale, shift, mean, variance, _, epsilon = norm.args
    if not isinstance(convolution, fx.Node) or convolution.target is not torch.ops.aten.convolution.default:
        return False
    _, weight, bias, _, _, _, transposed, _, groups = convolution.args
    weights_of_both = (weight, bias, scale, shift, mean, variance)
    constants = [node for node in weights_of_both if node is not None]
    readers = [reader for reader in norm.users if reader.users]
    if (
        len(convolution.users) != 1
        or not all(isinstance(node, fx.Node) and node in frozen.values for node in constants)
        or len(readers) != 1
        or readers[0].target is not operator.getitem
        or readers[0].args[1] != 0
        or (transposed and groups != 1)
        or not isinstance(epsilon, float)
        or _describe_layout(convolution) != _describe_layout(readers[0])
    ):
        return False

    weights = [frozen.values[node] if isinstance(node, fx.Node) else None for node in weights_of_both]
    with run_undisturbed():
        folded = _fold_weights(weights, epsilon, bool(transposed))
    new = [frozen.add(f"{kind}_{norm.name}", tensor) for kind, tensor in zip(("weight", "bias"), folded, strict=True)]
    convolution.args = (convolution.args[0], *new, *convolution.args[3:])
    readers[0].replace_all_uses_with(convolution)
    return True


def _fold_weights(weights: Sequence[Tensor | None], epsilon: float, transposed: bool) -> tuple[Tensor, Tensor]:
    """Return weight and bias of the convolution that does both, computed at least in single precision."""
    weight, bias, scale, shift, mean, variance = weights
    assert weight is not None and mean is not None and variance is not None
    wide = torch.promote_types(weight.dtype, torch.float32)
    factor = (variance.to(wide) + epsilon).rsqrt()
    if scale is not None:
        factor = factor * scale.to(wide)
    summand = -mean.to(wide) if bias is None else bias.to(wide) - mean.to(wide)
    summand = summand * factor
    if shift is not None:
        summand = summand + shift.to(wide)
    dims = [1] * weight.dim()
    dims[int(transposed)] = -1
    return (weight.to(wide) * factor.view(dims)).to(weight.dtype), summand.to(weight.dtype)


def _describe_layout(node: fx.Node) -> tuple[object, ...]:
    value = node.meta["val"]
    return value.shape, value.stride(), value.dtype
