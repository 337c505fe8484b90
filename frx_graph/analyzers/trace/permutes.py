"""Find dimensions that a view reorders and a copy then moves into place, repeatedly (FRX003).

A view costs nothing in a trace, so order shows the pattern: the last operator of the same caller before the copy
reorders dimensions of the same sizes. The copies belong to FRX002 or FRX001.
"""

from __future__ import annotations

from collections.abc import Sequence

from frx_graph.analyzers.trace.analysis import TraceAnalysis, average_per_step, count_steps_with
from frx_graph.analyzers.trace.copies import TraceCopy
from frx_graph.analyzers.trace.findings import GRAPH_ID, SOURCE, get_operator_name
from frx_graph.analyzers.trace.operators import VIEWS
from frx_graph.evidence.trace.events import HostThread, Operand, Operator
from frx_graph.evidence.trace.tree import NONE, TraceTree
from frx_graph.passes import confidence
from frx_graph.passes.call_groups import group_by_place
from frx_graph.records import Basis, Effort, Evidence, Finding, Risk, Saving, Severity
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
        if view.name in VIEWS and _is_same_sizes(view.operands, copy.operand):
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


def _is_same_sizes(operands: tuple[Operand | None, ...] | None, copied: Operand | None) -> bool:
    """Return True unless recorded shapes show that the copy is of another tensor."""
    if not operands or operands[0] is None or copied is None:
        return True
    return sorted(operands[0].shape) == sorted(copied.shape)


def _make_finding(analysis: TraceAnalysis, pairs: Sequence[tuple[TraceCopy, Operator]]) -> Finding:
    copies = [copy for copy, _ in pairs]
    views = ", ".join(dict.fromkeys(view.name.removeprefix("aten::") for _, view in pairs))
    makers = ", ".join(dict.fromkeys(get_operator_name(analysis, copy.maker).removeprefix("aten::") for copy in copies))
    owners = " and ".join(sorted({copy.rule for copy in copies}))
    known = [copy.bytes for copy in copies if copy.bytes is not None]
    size = sum(known) // len(analysis.steps) if len(known) == len(copies) else None
    first = analysis.find_site(copies[0].operator)
    steps = analysis.steps
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
        evidence=tuple(Evidence(line, SOURCE, Basis.OBSERVED) for line in lines),
        graph_id=GRAPH_ID,
        modules=(first.module_path,) if first.module_path else (),
    )
