"""Device time that goes into changing layouts, by operator, with the finding that advice on the trace has on it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from frx_graph.analyzers.timeline.windows import Windows
from frx_graph.analyzers.trace.analysis import TraceAnalysis
from frx_graph.analyzers.trace.copies import TraceCopy
from frx_graph.analyzers.trace.findings import copies_at_sites, operator_name
from frx_graph.evidence.trace.intervals import length_ns, merged
from frx_graph.records import Finding


@dataclass(frozen=True, slots=True)
class LayoutWork:
    """Copies and conversions of one operator at one place, launched within the used steps. `bytes` is traffic, None
    where a size is unknown; `finding` is what advice on the same trace says of them."""

    operator: str
    finding: Finding
    copies: int
    kernels: tuple[str, ...]
    bytes: int | None
    total_ns: int


@dataclass(frozen=True, slots=True)
class LayoutTotals:
    """All of them, the longest first; `device_ns` is of their union on each device."""

    work: tuple[LayoutWork, ...]
    device_ns: int


def layout_work(analysis: TraceAnalysis, windows: Windows, findings: Sequence[Finding]) -> LayoutTotals:
    """`findings` are those of `copy_findings` on the same analysis, in its order. Copies on the host alone are left
    out: they take no device time."""
    launched = set(windows.launched)
    rows: list[LayoutWork] = []
    spans: dict[int | None, list[tuple[int, int]]] = defaultdict(list)
    for group, finding in zip(copies_at_sites(analysis), findings, strict=True):
        by_operator: dict[str, list[TraceCopy]] = defaultdict(list)
        for copy in group.copies:
            if not launched.isdisjoint(copy.activities):
                by_operator[operator_name(analysis, copy.operator)].append(copy)
        for operator, copies in by_operator.items():
            activities = [analysis.tree.activities[index] for copy in copies for index in copy.activities]
            for activity in activities:
                spans[activity.device].append((activity.start_ns, activity.end_ns))
            sizes = [copy.bytes for copy in copies]
            known = [size for size in sizes if size is not None]
            rows.append(
                LayoutWork(
                    operator=operator,
                    finding=finding,
                    copies=len(copies),
                    kernels=tuple(dict.fromkeys(activity.name for activity in activities)),
                    bytes=sum(known) if len(known) == len(sizes) else None,
                    total_ns=sum(activity.duration_ns for activity in activities),
                )
            )
    device_ns = sum(length_ns(merged(here)) for here in spans.values())
    return LayoutTotals(tuple(sorted(rows, key=lambda row: -row.total_ns)), device_ns)
