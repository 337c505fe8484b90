"""Finds chains of permute, transpose, movedim and view that cancel or amount to one permute, and projections whose
results are copied because they are stored in another order than they are read.

Assumes: nothing outside the graph reads the intermediate strides. This rule claims no copies: other rules claim those
at a chain's end.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from frx_graph.capture.call_site import CallSite
from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.facts.operator_families import LAYOUT_COPIES, MATRIX_PRODUCTS
from frx_graph.passes import confidence
from frx_graph.passes.analysis import Analysis, Detector
from frx_graph.passes.attention_pattern import Attention
from frx_graph.passes.call_groups import group_by, list_module_paths, merge_sites
from frx_graph.passes.copies.copy_findings import summarize_texts
from frx_graph.passes.copies.permute_chains import (
    Chain,
    Span,
    compose_order,
    find_cancelling_span,
    find_chains,
    find_composable_span,
    is_read_between,
    is_reordering,
)
from frx_graph.passes.copies.view_chain import compute_value_key, format_call, format_location, trace_views
from frx_graph.passes.severity import grade_bytes, predict_saving
from frx_graph.records import Copy, CopyKind, Effort, Evidence, Finding, Refusal, Risk
from frx_graph.support.plain_text import format_bytes

RULE = "FRX003"
PROJECTIONS = 3
"""Projections of one module that end in copies from which they count as a storm: queries, keys and values."""
_PRODUCTS = MATRIX_PRODUCTS | {"aten.linear"}


class _StormKind(enum.StrEnum):
    CANCEL = "Reorderings that cancel"
    COMPOSE = "Reorderings that are one permute"
    PROJECTION = "Projections stored in an order that is copied"


PROJECTION_TITLE = str(_StormKind.PROJECTION)


@dataclass(frozen=True)
class _ChainGroup:
    """Chains of one finding, and the copies that go with them."""

    kind: _StormKind
    spans: tuple[Span, ...]
    copies: tuple[Copy, ...]

    @property
    def site(self) -> CallSite:
        """Line at which the first chain begins to reorder."""
        return self.spans[0].steps[0].op.site


def detect(analysis: Analysis) -> Iterable[Finding | Refusal]:
    """Yield one finding for each kind and line at which such chains begin."""
    inside = _index_inner_copies(analysis)
    wasted: dict[tuple[str, ...], _ChainGroup] = {}
    projections: list[Chain] = []
    for chain in find_chains(analysis.facts):
        span, kind = find_cancelling_span(analysis.facts, chain), _StormKind.CANCEL
        if span is None:
            if _is_projection(analysis.facts, chain.base):
                projections.append(chain)
            span, kind = find_composable_span(analysis.facts, chain), _StormKind.COMPOSE
        if span is not None:
            # Branches share their beginning, so a span may be met twice.
            nodes = tuple(step.op.node for step in span.steps)
            wasted.setdefault(nodes, _ChainGroup(kind, (span,), _list_span_copies(analysis, span, {})))
    storms = (*wasted.values(), *_find_projections(analysis, projections, inside))
    # A view that Inductor compiles is an index: it costs not even a dispatch.
    costly = (storm for storm in storms if storm.copies or analysis.inner != "inductor")
    for group in group_by(costly, lambda storm: (storm.kind, storm.site.place)).values():
        yield _build_finding(analysis, group)


def _find_projections(
    analysis: Analysis, projections: Iterable[Chain], inside: Mapping[str, list[Copy]]
) -> Iterator[_ChainGroup]:
    """Yield modules in which at least `PROJECTIONS` results of linear layers are reordered and then copied."""
    spans = [Span(chain, chain.reorderings[0], len(chain.steps) - 1) for chain in projections]
    storms = [_ChainGroup(_StormKind.PROJECTION, (s,), _list_span_copies(analysis, s, inside)) for s in spans]
    copied = (storm for storm in storms if storm.copies)
    for found in group_by(copied, lambda storm: (storm.site.file, storm.site.module_path)).values():
        if len({compute_value_key(analysis.facts, storm.copies[0].value) for storm in found}) >= PROJECTIONS:
            copies = dict.fromkeys(copy for storm in found for copy in storm.copies)
            yield _ChainGroup(_StormKind.PROJECTION, tuple(storm.spans[0] for storm in found), tuple(copies))


def _is_projection(facts: GraphFacts, value: str) -> bool:
    """Return True for a product with a parameter, as of a linear layer."""
    producer = facts.get_producer(value)
    if producer is None or producer.operator not in _PRODUCTS:
        return False
    bases = (facts.values[trace_views(facts, name).base] for name in producer.inputs[-2:])
    return any(base.is_parameter for base in bases)


def _index_inner_copies(analysis: Analysis) -> Mapping[str, list[Copy]]:
    """Return the copies inside operators, by the value that they copy."""
    explicit = {op.node for op in analysis.facts.ops if op.operator in LAYOUT_COPIES}
    inside = (copy for copy in analysis.copies if copy.kind is CopyKind.OPERATOR and copy.node not in explicit)
    return group_by(inside, lambda copy: copy.value)


def _list_span_copies(analysis: Analysis, span: Span, inside: Mapping[str, list[Copy]]) -> tuple[Copy, ...]:
    made = analysis.copies_by_node
    return tuple(copy for s in span.steps for copy in (*made.get(s.op.node, ()), *inside.get(s.value, ())))


def _build_finding(analysis: Analysis, group: Sequence[_ChainGroup]) -> Finding:
    facts = analysis.facts
    first = group[0]
    copies = tuple(dict.fromkeys(copy for storm in group for copy in storm.copies))
    moved = sum(copy.bytes for copy in copies)
    ops = {step.op.node: step.op for storm in group for span in storm.spans for step in span.steps}
    firsts = [storm.spans[0].steps[0].op for storm in group]
    fix, effort, risk = _choose_remedy(analysis, first)
    if attention := _find_replaceable_attention(analysis, group):
        where = f"{format_location(attention.softmax.site)} (FRX012)"
        fix = f"call F.scaled_dot_product_attention for the attention at {where}: it takes these views as they are"
        effort = Effort.LOCAL
    return Finding(
        rule=RULE,
        title=str(first.kind),
        severity=grade_bytes(moved, analysis.step_bytes),
        site=merge_sites(firsts),
        nodes=tuple(ops),
        count_per_step=facts.calls * sum(len(storm.spans) for storm in group),
        bytes_per_step=moved,
        saving=predict_saving(0 if first.kind is _StormKind.PROJECTION else moved, moved, analysis.step_bytes),
        effort=effort,
        risk=risk,
        fix=fix,
        # The chain is certain. That nothing outside the graph depends on its strides is an assumption.
        confidence=confidence.INFERRED,
        evidence=tuple(_collect_evidence(facts, group, copies)),
        modules=list_module_paths(firsts),
    )


def _choose_remedy(analysis: Analysis, storm: _ChainGroup) -> tuple[str, Effort, Risk]:
    facts = analysis.facts
    span = storm.spans[0]
    moves = [step for step in span.steps if is_reordering(facts, step.op)]
    if storm.kind is _StormKind.CANCEL:
        named = [f"`{format_call(step.op)}` at {format_location(step.op.site)}" for step in moves]
        if is_read_between(facts, span):
            first, last = named[0], named[-1]
            fix = f"drop {last} and read the value from before {first}, whose result is also read elsewhere"
            return f"{fix}: together they change nothing", Effort.LOCAL, Risk.LOW
        between = ", with the copies between" if storm.copies else ""
        return f"drop {' and '.join(named)}{between}: together they change nothing", Effort.LOCAL, Risk.LOW
    if storm.kind is _StormKind.COMPOSE:
        order = compose_order(facts, span)
        call = f"`permute{order}`" if order is not None else "one permute"
        fix = f"write {call} for the {len(moves)} calls from {format_location(moves[0].op.site)} on"
        return fix, Effort.ONE_LINE, Risk.LOW
    if _is_attention_operand(analysis, storm):
        if len({span.chain.base for span in storm.spans}) == 1:
            views = "pass the views of this projection on uncopied: F.scaled_dot_product_attention takes them"
            return f"{views}, matmul copies them", Effort.REFACTOR, Risk.MEDIUM
        fix = (
            "project queries, keys and values with weight rows in the order (3, heads, dim) and pass the views "
            "`.view(b, n, 3, heads, dim).permute(2, 0, 3, 1, 4)` on uncopied: F.scaled_dot_product_attention takes "
            "them, matmul copies them"
        )
    else:
        fix = (
            "store what these projections make in the order in which it is read: permute the rows of their weights "
            "once, or reorder once for all of them, before they part"
        )
    return fix, Effort.REFACTOR, Risk.MEDIUM


def _find_replaceable_attention(analysis: Analysis, group: Sequence[_ChainGroup]) -> Attention | None:
    """Return an attention that FRX012 tells to replace, if all projections end in operands of such attentions."""
    found = [
        next((analysis.replaceable_operands.get(step.value) for step in reversed(span.steps)), None)
        for storm in group
        for span in storm.spans
    ]
    return found[0] if group[0].kind is _StormKind.PROJECTION and all(found) else None


def _is_attention_operand(analysis: Analysis, storm: _ChainGroup) -> bool:
    """Return True if one of the chains ends in an operand of an attention, written out or fused."""
    ends = {step.value for span in storm.spans for step in span.steps}
    fused = (op for end in ends for op in analysis.facts.get_users(end) if "scaled_dot_product" in op.operator)
    return not ends.isdisjoint(analysis.attention_operands) or any(fused)


def _collect_evidence(facts: GraphFacts, group: Sequence[_ChainGroup], copies: Sequence[Copy]) -> Iterator[Evidence]:
    spans = [span for storm in group for span in storm.spans]
    yield from summarize_texts((_format_span(facts, span), facts.calls) for span in spans)
    if copies:
        count = sum(copy.count for copy in copies)
        moved = "1 copy moves" if count == 1 else f"{count} copies move"
        yield Evidence(
            f"on the way {moved} {format_bytes(sum(copy.bytes for copy in copies))}; FRX001 and FRX002 count them",
            "predicted copies",
        )
    else:
        yield Evidence("the views alone move nothing: they cost their dispatch", "eager graph")


def _format_span(facts: GraphFacts, span: Span) -> str:
    """Format a span with its first shape: `linear → view → transpose(1, 2) → clone`."""
    shape = facts.values[span.steps[0].op.inputs[0]].shape
    calls = [
        format_call(s.op) if is_reordering(facts, s.op) else s.op.operator.removeprefix("aten.") for s in span.steps
    ]
    producer = facts.get_producer(span.chain.base)
    origin = producer.operator.removeprefix("aten.") if producer is not None else "input"
    return f"{shape} of {origin}: {' → '.join(calls)}, from {format_location(span.steps[0].op.site)}"


DETECTOR = Detector(RULE, "permute_storm", detect)
