"""Recognise attention written as product, softmax, product in an eager ATen graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.passes.attention_walks import (
    HIDDEN_FROM,
    BooleanMask,
    ScoresPath,
    find_factor,
    trace_sources,
    walk_back,
    walk_forward,
)
from frx_graph.passes.causal_mask import is_causal, is_causal_bias

SOFTMAX = frozenset({"aten._softmax", "aten.softmax", "aten._safe_softmax"})
FALLBACK_SOFTMAX = "aten._safe_softmax"
"""Only `scaled_dot_product_attention` itself emits it, when it takes its math path."""


@dataclass(frozen=True)
class Attention:
    """One attention whose scores are materialised. `first` and `second` are the products, `between` every operator
    that writes a tensor of the scores' size from the first product on, `softmax` among them, in execution order.

    `scale` is the factor on the scores, or None. `biases` are the values added to the scaled scores, `masks` the
    conditions that hide scores, `dropout` the dropout probability. `causal` is True if the only mask or bias is the
    causal mask. `unsupported` names steps that `scaled_dot_product_attention` cannot express.
    """

    first: OpFacts
    softmax: OpFacts
    second: OpFacts
    between: tuple[OpFacts, ...]
    scores: ValueFacts
    query: ValueFacts
    key: ValueFacts
    value: ValueFacts
    scale: float | None
    scale_on_query: bool
    biases: tuple[str, ...]
    masks: tuple[BooleanMask, ...]
    causal: bool
    dropout: float
    unsupported: tuple[str, ...]
    weights_used_by: tuple[str, ...]


def find_attentions(facts: GraphFacts) -> Iterator[Attention]:
    """Yield every attention of the forward, in order; keys and values that are parameters make a lookup in a table."""
    for op in facts.ops:
        if op.operator in SOFTMAX and op.phase is Phase.FORWARD and op.outputs and op.inputs:
            yield from _match(facts, op)


def count_scores_bytes(facts: GraphFacts, attention: Attention) -> int:
    """Return the bytes that the operators between the products move: each reads what the one before wrote."""
    return 2 * sum(facts.values[name].bytes for op in attention.between for name in op.outputs)


def count_operand_bytes(attention: Attention) -> int:
    """Return the bytes of queries, keys, values and result, each moved once, as in a fused kernel."""
    query, key, value = attention.query, attention.key, attention.value
    result = query.bytes * value.numel // max(key.numel, 1)
    return query.bytes + key.bytes + value.bytes + result


def find_unfusible_use(attention: Attention) -> str:
    """Return the reason why `scaled_dot_product_attention` cannot replace the attention; else empty."""
    if attention.weights_used_by:
        used = ", ".join(dict.fromkeys(attention.weights_used_by))
        return f"its weights are also used by {used}: a fused kernel has none"
    if attention.unsupported and attention.softmax.operator != FALLBACK_SOFTMAX:
        met = ", ".join(dict.fromkeys(attention.unsupported))
        return f"between product and softmax is {met}, which scaled_dot_product_attention has no argument for"
    return ""


def is_replaceable(facts: GraphFacts, attention: Attention) -> bool:
    """Return True if FRX012 tells to replace the attention, and a fused kernel would then run it."""
    large = count_scores_bytes(facts, attention) > count_operand_bytes(attention)
    return large and not find_unfusible_use(attention) and not find_fusion_obstacle(attention)


def find_fusion_obstacle(attention: Attention) -> str:
    """Return the reason why torch's fused kernel would not take this attention on its device; else empty.

    The conditions come from `sdp_utils_cpp.h` (`check_for_dropout`, `check_head_dim_size_cpp`,
    `check_last_dim_stride_equals_1`), and were seen to send torch 2.15 to its math path.
    """
    if attention.scores.device.type != "cpu":
        return ""
    if attention.dropout:
        return "the CPU's fused kernel has no dropout"
    head = attention.query.shape[-1]
    if head not in (attention.value.shape[-1], attention.value.shape[-2]):
        return "the CPU's fused kernel wants values with the head size of the queries"
    return ""


def _match(facts: GraphFacts, softmax: OpFacts) -> Iterator[Attention]:
    """Yield the attention that this softmax belongs to, if any."""
    scores = facts.values[softmax.inputs[0]]
    rank = len(scores.shape)
    dim = softmax.args[1] if len(softmax.args) > 1 else softmax.kwargs.get("dim")
    if rank < 2 or not isinstance(dim, int) or dim % rank != rank - 1:
        return
    before, after = walk_back(facts, scores), walk_forward(facts, softmax)
    if before is None or after.product is None:
        return
    first, second = before.ops[0], after.product
    query, key = (facts.values[name] for name in first.inputs[-2:])
    left, right = (facts.values[name] for name in second.inputs[-2:])
    value = right if left.name == after.operand else left
    sources = (source for operand in (key, value) for source in trace_sources(facts, operand.name))
    if scores.shape[-1] not in value.shape[-2:] or any(facts.values[source].is_parameter for source in sources):
        return
    *_, origin = trace_sources(facts, query.name)
    maker = facts.get_producer(origin) if before.scale is None else None
    scaled_query = find_factor(maker) if maker is not None else None
    yield Attention(
        first=first,
        softmax=softmax,
        second=second,
        between=(*before.ops, softmax, *after.ops),
        scores=scores,
        query=query,
        key=key,
        value=value,
        scale=before.scale if scaled_query is None else scaled_query,
        scale_on_query=scaled_query is not None,
        biases=before.biases,
        masks=before.masks,
        causal=_is_causal_mask(facts, scores, before),
        dropout=after.dropout,
        unsupported=before.unsupported,
        weights_used_by=after.elsewhere,
    )


def _is_causal_mask(facts: GraphFacts, scores: ValueFacts, before: ScoresPath) -> bool:
    """Return True if the only mask or bias on the scores is the causal one."""
    names = (*(mask.condition for mask in before.masks), *before.biases)
    if len(names) != 1 or facts.values[names[0]].shape[-2:] != scores.shape[-2:]:
        return False
    if before.masks:
        return is_causal(facts, names[0], before.masks[0].keeps)
    return is_causal_bias(facts, names[0], HIDDEN_FROM)
