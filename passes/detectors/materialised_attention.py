"""Finds attention written as product, softmax, product, whose N×M scores go through memory.

Assumes: keys and values are not parameters (a product with a learned table is not attention between tokens). Fires only
if the scores move more bytes than queries, keys, values and result together. Standard attention accesses Θ(Nd + N²)
elements (FlashAttention, theorem 2); below that size the first term, which stays, is the larger.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from frx_graph.capture.call_site import CallSite
from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import GraphFacts, OpFacts
from frx_graph.passes import confidence
from frx_graph.passes.analysis import Analysis, Detector
from frx_graph.passes.attention_pattern import (
    FALLBACK_SOFTMAX,
    Attention,
    count_operand_bytes,
    count_scores_bytes,
    find_fusion_obstacle,
    find_unfusible_use,
)
from frx_graph.passes.attention_walks import trace_sources
from frx_graph.passes.call_groups import group_by, list_module_paths, merge_sites
from frx_graph.passes.copies.view_chain import REORDERING_VIEWS, format_call, format_location
from frx_graph.passes.severity import grade_bytes, predict_saving
from frx_graph.records import Copy, Effort, Evidence, Finding, Refusal, Risk
from frx_graph.support.plain_text import format_bytes

RULE = "FRX012"
_RESHAPED_INSIDE = frozenset({"aten.view", "aten._unsafe_view", "aten.alias", "aten.detach"})
"""Views that `torch.matmul` and autograd make of a product by themselves."""


def detect(analysis: Analysis) -> Iterable[Finding | Refusal]:
    """Yield one finding for each line whose softmax belongs to materialised attentions; forward traffic only."""
    facts = analysis.facts
    large = [a for a in analysis.attentions if count_scores_bytes(facts, a) > count_operand_bytes(a)]
    refusals = [_refuse_attention(attention) for attention in large]
    yield from (refusal for refusal in refusals if refusal is not None)
    fusible = [attention for attention, refusal in zip(large, refusals, strict=True) if refusal is None]
    for group in group_by(fusible, lambda a: (a.softmax.site.place, a.softmax.operator == FALLBACK_SOFTMAX)).values():
        yield _build_finding(analysis, group)


def _refuse_attention(attention: Attention) -> Refusal | None:
    reason = find_unfusible_use(attention)
    if not reason:
        return None
    site = attention.softmax.site
    return Refusal(f"attention at {site}", reason, tuple(op.node for op in attention.between), site)


def _build_finding(analysis: Analysis, group: Sequence[Attention]) -> Finding:
    facts = analysis.facts
    first = group[0]
    traffic = facts.calls * sum(count_scores_bytes(facts, attention) for attention in group)
    softmaxes = [attention.softmax for attention in group]
    nodes = tuple(op.node for a in group for op in (*a.between, a.second))
    fallback = first.softmax.operator == FALLBACK_SOFTMAX
    obstacle = find_fusion_obstacle(first)
    compiled = analysis.inner == "inductor"
    return Finding(
        rule=RULE,
        title="scaled_dot_product_attention stores its scores" if fallback else "Attention stores its scores",
        severity=grade_bytes(traffic, analysis.step_bytes),
        site=merge_sites(softmaxes),
        nodes=nodes,
        count_per_step=facts.calls * len(group),
        bytes_per_step=traffic,
        saving=predict_saving(0 if obstacle or compiled else traffic, traffic, analysis.step_bytes),
        effort=Effort.ONE_LINE if fallback else Effort.LOCAL,
        risk=Risk.LOW if fallback else Risk.MEDIUM,
        fix=_describe_fallback_fix(obstacle) if fallback else _describe_fix(facts, first, obstacle),
        # Inductor's `fuse_attention` pass recognises some forms of the same pattern by itself.
        confidence=confidence.ASSUMED if compiled else confidence.MODELLED,
        evidence=tuple(_collect_evidence(analysis, group)),
        modules=list_module_paths(softmaxes),
    )


def _describe_fix(facts: GraphFacts, attention: Attention, obstacle: str) -> str:
    arguments = ["q", "k", "v"]
    if attention.causal:
        arguments.append("is_causal=True")
    elif attention.masks or attention.biases:
        arguments.append(f"attn_mask={_name_mask(attention)}")
    if attention.dropout:
        arguments.append(f"dropout_p={attention.dropout:.3g} if self.training else 0.0")
    scale, head = attention.scale, attention.query.shape[-1]
    if scale is None:
        arguments.append("scale=1.0")
    elif not math.isclose(scale, head**-0.5, rel_tol=1e-4):
        arguments.append(f"scale={scale:.6g}")
    call = f"torch.nn.functional.scaled_dot_product_attention({', '.join(arguments)})"
    site, last = attention.softmax.site, attention.second.site
    text = f"replace the scores, softmax and product with the values{_format_lines(attention)} by `{call}`"
    if (moved := _find_key_transpose(facts, attention)) is not None:
        text += f" with k as it is before the `{format_call(moved)}` on {_name_line(moved.site, site)}"
    if _goes_on(facts, attention.second):
        text += f", and keep what follows the product on {_name_line(last, site)}"
    if attention.scale_on_query:
        text += "; it scales by itself, so drop the scaling of q"
    if note := _describe_mask(attention):
        text += f"; {note}"
    if obstacle:
        text += f"; note that {obstacle}, so the saving there comes only without it"
    return text


def _format_lines(attention: Attention) -> str:
    first, last = attention.first.site, attention.second.site
    if not first.line or first.file != last.file:
        return ""
    return f" (lines {first.line} to {last.line})" if first.line < last.line else f" (line {last.line})"


def _name_line(site: CallSite, beside: CallSite) -> str:
    """Return `line 12`, with its file if that is another than that of the finding."""
    return f"line {site.line}" if site.line and site.file == beside.file else format_location(site)


def _find_key_transpose(facts: GraphFacts, attention: Attention) -> OpFacts | None:
    """Return the call on another line than the product's that gives the keys the order of the product."""
    for source in trace_sources(facts, attention.key.name):
        op = facts.get_producer(source)
        if op is not None and op.operator in REORDERING_VIEWS and _moves_last_dim(facts, op):
            return op if op.site.location != attention.first.site.location else None
    return None


def _moves_last_dim(facts: GraphFacts, view: OpFacts) -> bool:
    before, after = facts.values[view.inputs[0]], facts.values[view.outputs[0]]
    return (before.shape[-1], before.strides[-1]) != (after.shape[-1], after.strides[-1])


def _goes_on(facts: GraphFacts, product: OpFacts) -> bool:
    """Return True if the line of the product uses its result."""
    pending = list(product.outputs)
    while pending:
        for user in facts.get_users(pending.pop()):
            if user.phase is Phase.FORWARD and user.site.location == product.site.location:
                if user.operator not in _RESHAPED_INSIDE:
                    return True
                pending.extend(user.outputs)
    return False


def _name_mask(attention: Attention) -> str:
    """Return the name of `attn_mask` in the fix."""
    if attention.biases:
        return "bias"
    hides = len(attention.masks) == 1 and not attention.masks[0].keeps
    return "~mask" if hides else "mask"


def _describe_mask(attention: Attention) -> str:
    """Describe how to make `attn_mask`; empty if the program has it already."""
    biases, masks = len(attention.biases), len(attention.masks)
    if attention.causal:
        return "is_causal replaces the mask that `triu` or `tril` makes here"
    if biases and biases + masks > 1:
        added = f"the {biases} biases that are added here" if biases > 1 else "the bias that is added here"
        hidden = ", with -inf wherever a mask hides the score" if masks else ""
        return f"make {added} one float attn_mask in the dtype of q{hidden}"
    if masks > 1:
        return f"its one boolean mask is True where all {masks} masks here let the score take part"
    return "its boolean mask is True where attention takes part" if masks else ""


def _describe_fallback_fix(obstacle: str) -> str:
    if obstacle:
        return f"remove what keeps torch from its fused kernel: {obstacle}"
    return (
        "remove what keeps torch from its fused kernel: pass q, k and v with unit stride in their last dimension, and "
        "a mask that needs no gradient"
    )


def _collect_evidence(analysis: Analysis, group: Sequence[Attention]) -> Iterator[Evidence]:
    facts = analysis.facts
    first = group[0]
    *batch, queries, keys = first.scores.shape
    heads = f"{batch[1]} heads, batch {batch[0]}" if len(batch) == 2 else f"batch {math.prod(batch)}"
    yield Evidence(
        f"scores are {queries}×{keys} ({heads}): {format_bytes(first.scores.bytes)}, stored by {len(first.between)} "
        f"operators: {', '.join(op.operator.removeprefix('aten.') for op in first.between)}",
        "eager graph",
    )
    yield Evidence(
        f"each attention moves {format_bytes(count_scores_bytes(facts, first))} of scores against "
        f"{format_bytes(count_operand_bytes(first))} of queries, keys, values and result",
        "eager graph",
    )
    if any(_is_kept_for_backward(facts, attention) for attention in group):
        yield Evidence("the weights are also kept for the backward, which is not counted here", "eager graph")
    if analysis.inner == "inductor":
        text = "Inductor fuses the pointwise operators and replaces some forms of this pattern itself (fuse_attention)"
        yield Evidence(text, "torch/_inductor/fx_passes/fuse_attention.py")
    overlap = _find_operand_copies(analysis, group)
    if overlap:
        moved = format_bytes(sum(copy.bytes for copy in overlap))
        yield Evidence(
            f"its products also copy their operands ({len(overlap)} copies, {moved}), which FRX001 and FRX002 count",
            "predicted copies",
        )


def _is_kept_for_backward(facts: GraphFacts, attention: Attention) -> bool:
    weights = facts.values[attention.softmax.outputs[0]]
    shared = facts.values_by_storage[weights.storage]
    return any(user.phase is Phase.BACKWARD for value in shared for user in facts.get_users(value.name))


def _find_operand_copies(analysis: Analysis, group: Sequence[Attention]) -> list[Copy]:
    operands = {value.storage for a in group for value in (a.query, a.key, a.value)}
    sharing = (value for storage in operands for value in analysis.facts.values_by_storage[storage])
    made = dict.fromkeys(value.producer for value in sharing if value.producer is not None)
    return [copy for node in made for copy in analysis.copies_by_node.get(node, ())]


DETECTOR = Detector(RULE, "materialised_attention", detect)
