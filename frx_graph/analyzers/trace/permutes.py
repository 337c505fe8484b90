"""Find dimensions that a view reorders and a copy then moves into place, repeatedly (FRX003).

A view costs nothing in a trace, so order shows the pattern: the last operator of the same caller before the copy
reorders dimensions of the same sizes. The copies belong to FRX002 or FRX001.
"""

from __future__ import annotations

from collections.abc import Sequence

from frx_graph.analyzers.trace.analysis import TraceAnalysis, average_per_step, count_steps_with, sum_known
from frx_graph.analyzers.trace.copies import TraceCopy
from frx_graph.analyzers.trace.findings import GRAPH_ID, get_operator_name, make_evidence
from frx_graph.analyzers.trace.operators import VIEWS
from frx_graph.evidence.trace.events import HostThread, Operator
from frx_graph.evidence.trace.tree import NONE, TraceTree
from frx_graph.passes import confidence
from frx_graph.passes.call_groups import group_by_place
from frx_graph.records import Basis, Effort, Finding, Risk, Saving, Severity
from frx_graph.support.plain_text import format_bytes

RULE = "FRX003"
FEWEST_PER_STEP = 2
"""One reordering may be necessary; two at the same line suggest that a producer stores the wrong order."""


def find_permutes(analysis: TraceAnalysis) -> list[Finding]:
    """Return one finding for each line with at least two such copies per step."""
    before = _find_previous(analysis.tree)
    found: list[tuple[TraceCopy, Operator]] = []
    for copy in analysis.copies:
        if copy.rule not in ("FRX001", "FRX002") or copy.maker == NONE or before[copy.maker] == NONE:
            continue
        view = analysis.tree.operators[before[copy.maker]]
        viewed = view.operands[0] if view.operands else None
        # Recorded shapes may show that the copy is of another tensor.
        fits = viewed is None or copy.operand is None or sorted(viewed.shape) == sorted(copy.operand.shape)
        if view.name in VIEWS and fits:
            found.append((copy, view))
    return [
        _make_finding(analysis, pairs)
        for pairs in group_by_place(found, lambda pair: analysis.find_site(pair[0].operator))
        if average_per_step(len(pairs), analysis.steps) >= FEWEST_PER_STEP
    ]


def _find_previous(tree: TraceTree) -> list[int]:
    """Return, by operator, the operator that its caller called before it."""
    last: dict[int | HostThread, int] = {}
    previous: list[int] = []
    for index, (operator, parent) in enumerate(zip(tree.operators, tree.parents, strict=True)):
        caller = parent if parent != NONE else operator.thread
        previous.append(last.get(caller, NONE))
        last[caller] = index
    return previous


def _make_finding(analysis: TraceAnalysis, pairs: Sequence[tuple[TraceCopy, Operator]]) -> Finding:
    copies = [copy for copy, _ in pairs]
    views = ", ".join(dict.fromkeys(view.name.removeprefix("aten::") for _, view in pairs))
    makers = ", ".join(dict.fromkeys(get_operator_name(analysis, copy.maker).removeprefix("aten::") for copy in copies))
    owners = " and ".join(sorted({copy.rule for copy in copies}))
    steps, total = analysis.steps, sum_known(copy.bytes for copy in copies)
    size = None if total is None else total // len(steps)
    first = analysis.find_site(copies[0].operator)
    lines = [f"{len(pairs)} times in {count_steps_with(copies, steps)} of {len(steps)} steps: {views}, then {makers}"]
    if size is not None:
        lines.append(f"{format_bytes(size)} a step, which {owners} counts")
    return Finding(
        rule=RULE,
        title=f"Dimensions are reordered by {views} and copied into place",
        severity=Severity.INFO,
        site=first,
        nodes=tuple(dict.fromkeys(view.name for _, view in pairs)),
        count_per_step=average_per_step(len(pairs), steps),
        bytes_per_step=size,
        saving=Saving(),
        effort=Effort.LOCAL,
        risk=Risk.MEDIUM,
        fix="have the producer write its result in the order that is read, so that neither the view nor the copy is "
        "needed; for queries, keys and values, split and reorder the projection's weight once",
        # Order and sizes match, but a trace does not show that the copy reads that view.
        confidence=confidence.MODELLED,
        basis=Basis.OBSERVED,
        evidence=make_evidence(lines),
        graph_id=GRAPH_ID,
        modules=(first.module_path,) if first.module_path else (),
    )
