"""Finds copies that the program asks for: `.contiguous()`, `.clone()`, `.to(memory_format=...)`, and reshapes whose
strides do not allow a view.

Assumes: the operator layout contract lists the strides that an operator takes. A `.contiguous()` that does nothing now
leaves no trace in the graph. It would begin to copy if the copy before it were dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.layout import CHANNELS_LAST_ORDER
from frx_graph.passes.analysis import Analysis, Detector
from frx_graph.passes.copies.copy_findings import (
    CopyGroup,
    Remedy,
    build_copy_finding,
    describe_copy,
    group_copies,
    summarize_texts,
)
from frx_graph.passes.copies.copy_necessity import REMOVABLE, Necessity, Verdict, judge_copies
from frx_graph.passes.copies.stride_replay import find_order_for_strides
from frx_graph.passes.copies.view_chain import (
    describe_origin,
    find_readers,
    find_stride_origin,
    format_location,
    name_written_call,
    trace_views,
)
from frx_graph.passes.severity import MEDIUM_SHARE
from frx_graph.records import CopyKind, Effort, Evidence, Finding, Refusal, Risk, Severity
from frx_graph.support.plain_text import format_bytes

RULE = "FRX002"
_SHOWN = 3
"""Users of a copy that a fix names."""
_REPLAY = "replay of the operators behind each copy"

_TITLES: Mapping[Necessity, str] = {
    Necessity.UNUSED: "Copy that nothing reads",
    Necessity.SAME_LAYOUT: "Clone of a value that is never changed",
    Necessity.UNDONE: "Copy that a later copy undoes",
    Necessity.REPEATED: "Same value copied again",
    Necessity.CONSTANT: "Copy that is the same on every call",
    Necessity.UNNEEDED: "Copy whose users take the source as it is",
    Necessity.LOOP: "Copy in an unrolled loop",
}


def detect(analysis: Analysis) -> Iterable[Finding | Refusal]:
    """Yield one finding for each line that copies; the purpose of every copy decides the fix and the saving."""
    groups = group_copies(analysis, RULE)
    verdicts = iter(judge_copies(analysis, tuple(copy for group in groups for copy in group.copies)))
    for group in groups:
        yield _build_finding(analysis, group, tuple(islice(verdicts, len(group.copies))))


def _build_finding(analysis: Analysis, group: CopyGroup, verdicts: Sequence[Verdict]) -> Finding:
    main = _find_main_verdict(verdicts)
    removable = [verdict for verdict in verdicts if verdict.necessity in REMOVABLE]
    moved = _count_bytes(verdicts)
    sure = sum(moved[necessity] for necessity in REMOVABLE)
    possible = sure + moved[Necessity.LOOP]
    remedy = _choose_remedy(analysis, main, verdicts)
    if removable and main not in removable:
        also = max(removable, key=lambda verdict: verdict.copy.bytes)
        other = _choose_remedy(analysis, also, verdicts).fix
        count = sum(verdict.copy.count for verdict in verdicts if verdict.necessity is also.necessity)
        remedy = replace(remedy, fix=f"{remedy.fix}. For {count} of the {group.count}: {other}")
    # Needed copies waste nothing as the program is.
    large = group.bytes >= MEDIUM_SHARE * analysis.step_bytes > 0
    severity = None if possible else Severity.LOW if large else Severity.INFO
    return build_copy_finding(
        group,
        analysis,
        rule=RULE,
        title=_TITLES.get(main.necessity) or _format_needed_title(main),
        remedy=replace(remedy, sure_bytes=sure, severity=severity),
        possible_bytes=possible,
        evidence=_collect_evidence(analysis, verdicts),
    )


def _find_main_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the largest copy of the kind that moves most."""
    moved = _count_bytes(verdicts)
    return max(verdicts, key=lambda v: (moved[v.necessity], v.copy.bytes))


def _count_bytes(verdicts: Iterable[Verdict]) -> Counter[Necessity]:
    """Return the bytes that copies of each kind move."""
    moved: Counter[Necessity] = Counter()
    for verdict in verdicts:
        moved[verdict.necessity] += verdict.copy.bytes
    return moved


def _format_needed_title(verdict: Verdict) -> str:
    if verdict.copy.phase is Phase.BACKWARD:
        return "Gradient copied in the backward"
    return "Reshape that copies" if verdict.copy.kind is CopyKind.RESHAPE else "Explicit copy"


def _choose_remedy(analysis: Analysis, main: Verdict, verdicts: Sequence[Verdict]) -> Remedy:
    facts = analysis.facts
    partner = facts.op_by_node.get(main.partner) if main.partner else None
    call = _name_call(facts, main)
    match main.necessity:
        case Necessity.UNUSED:
            return Remedy(f"drop {call}: nothing reads its result", Effort.ONE_LINE)
        case Necessity.SAME_LAYOUT:
            return Remedy(f"drop {call}: the value is in that layout, and nothing writes to it", Effort.ONE_LINE)
        case Necessity.UNDONE if partner is not None:
            where = "on the same line" if partner.site == main.copy.site else f"at {format_location(partner.site)}"
            return Remedy(f"drop this copy and the one {where}: together they change nothing")
        case Necessity.REPEATED if partner is not None:
            where = "the first time" if partner.site == main.copy.site else f"at {format_location(partner.site)}"
            return Remedy(f"keep the copy that is made {where} and use it again here")
        case Necessity.CONSTANT:
            return Remedy(_describe_constant_fix(facts, main), risk=Risk.MEDIUM)
        case Necessity.UNNEEDED:
            text = f"drop {call}: the source's strides do for {_describe_users(facts, main)}"
            if main.plain_weights:
                text += ", with its weight in channels-last, too (else that is converted instead)"
            return Remedy(text, Effort.ONE_LINE)
        case Necessity.LOOP:
            times = sum(verdict.copy.count for verdict in verdicts if _is_same_loop(verdict, main)) // facts.calls
            part_of = facts.values.get(main.partner) if main.partner else None
            return Remedy(_describe_loop_fix(facts, times, part_of))
        case _:
            return Remedy(_describe_needed_fix(analysis, main), Effort.REFACTOR, Risk.MEDIUM)


def _is_same_loop(verdict: Verdict, main: Verdict) -> bool:
    """Return True for rounds of the loop of `main`, not of the same line in another module."""
    if (verdict.necessity, verdict.partner) != (main.necessity, main.partner):
        return False
    return (verdict.copy.site, verdict.copy.phase) == (main.copy.site, main.copy.phase)


def _name_call(facts: GraphFacts, verdict: Verdict) -> str:
    if verdict.copy.kind is CopyKind.RESHAPE:
        return "the copy of this reshape"
    if verdict.copy.operator == "aten._to_copy":
        return "this .to(memory_format=...)"
    op = facts.op_by_node.get(verdict.copy.node)
    return "this `.contiguous()`" if op is not None and name_written_call(op) == "contiguous" else "this copy"


def _describe_users(facts: GraphFacts, verdict: Verdict) -> str:
    """Name the operators behind the copy, looking through views."""
    (result,) = facts.op_by_node[verdict.copy.node].outputs
    names = list(dict.fromkeys(_shorten_operator(reader) for reader in find_readers(facts, result)))[:_SHOWN]
    return ", ".join(names) or "its users"


def _describe_constant_fix(facts: GraphFacts, verdict: Verdict) -> str:
    base = facts.values[trace_views(facts, verdict.copy.value).base]
    if base.producer is None:
        return f"store {base.path or base.name} in this layout once, in __init__ (and in loaded states)"
    return "it is computed from parameters and constants alone: compute it once for inference and keep it in a buffer"


def _describe_loop_fix(facts: GraphFacts, times: int, part_of: ValueFacts | None) -> str:
    if part_of is None:
        return f"the loop makes this copy {times} times: change the layout once before it and back once after it"
    whole = part_of.path or part_of.name
    if producer := facts.get_producer(part_of.name):
        whole = f"what {_shorten_operator(producer)} makes at {format_location(producer.site)}"
    return f"these are {times} copies of parts of one value: copy {whole} once, before it is split"


def _shorten_operator(op: OpFacts) -> str:
    return op.operator.removeprefix("aten.")


def _describe_needed_fix(analysis: Analysis, verdict: Verdict) -> str:
    facts, copy = analysis.facts, verdict.copy
    if copy.phase is Phase.BACKWARD:
        return "autograd makes this copy for the line's backward; it ends if the forward keeps the order there"
    op = facts.op_by_node.get(copy.node)
    value = facts.values.get(copy.value)
    if op is None or value is None:
        return "change the order of dimensions where the value is made, so that it need not be copied here"
    base = facts.values[trace_views(facts, value.name).base]
    producer = facts.get_producer(base.name)
    if op.outputs[0] in analysis.attention_operand_bases:
        return "F.scaled_dot_product_attention (FRX012) takes the view that is copied here as it is"
    if base.name in analysis.attention_results:
        return "F.scaled_dot_product_attention (FRX012) gives its result in the order that is wanted here"
    channels_last = CHANNELS_LAST_ORDER.get(len(base.shape))
    if producer is not None and producer.operator == "aten.convolution":
        order = find_order_for_strides(facts, value.name, facts.values[op.outputs[0]].strides)
        if order is not None and order == channels_last:
            line = format_location(producer.site)
            return f"run the convolution at {line} in channels-last: its result needs no copy here then"
    origin = find_stride_origin(facts, value.name)
    made_by = f" ({describe_origin(facts, origin)})" if origin is not None else ""
    return f"needed as the program is written; it disappears only if the strides are not changed before{made_by}"


def _collect_evidence(analysis: Analysis, verdicts: Sequence[Verdict]) -> Iterator[Evidence]:
    facts = analysis.facts
    moved = _count_bytes(verdicts)
    count_of: Counter[Necessity] = Counter()
    for verdict in verdicts:
        count_of[verdict.necessity] += verdict.copy.count
    split = ", ".join(
        f"{count_of[n]} {str(n).replace('_', ' ')} ({format_bytes(moved[n])})" for n in Necessity if count_of[n]
    )
    yield Evidence(f"what the copies are for: {split}", _REPLAY)
    largest_first = sorted((verdict.copy for verdict in verdicts), key=lambda copy: -copy.bytes)
    yield from summarize_texts((describe_copy(facts, copy), copy.count) for copy in largest_first)
    main = _find_main_verdict(verdicts)
    origin = find_stride_origin(facts, main.copy.value) if main.copy.value in facts.values else None
    if origin is not None:
        yield Evidence(f"the source's strides: {describe_origin(facts, origin)}", "eager graph")
    if (reason := _explain_need(facts, main)) is not None:
        yield reason


def _explain_need(facts: GraphFacts, verdict: Verdict) -> Evidence | None:
    """Return the reason for which the copy is needed, if it is one operator or the caller."""
    op = facts.op_by_node.get(verdict.copy.node)
    wanted = facts.op_by_node.get(verdict.wanted_by) if verdict.wanted_by else None
    if wanted is not None:
        reader = f"{_shorten_operator(wanted)} at {format_location(wanted.site)}"
        if wanted.view or wanted.operator == "aten._unsafe_view":
            return Evidence(f"{reader} joins dimensions that do not lie side by side in the source", _REPLAY)
        return Evidence(f"{reader} is not known to take the source's strides", "operator layout contract")
    if op is not None and any(facts.values[name].user_visible for name in op.outputs):
        return Evidence("the caller gets the result and sees its strides", "eager graph")
    return None


DETECTOR = Detector(RULE, "contiguous_churn", detect)
