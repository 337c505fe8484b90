"""Find lines whose kernels wait for memory (FRX005), with their measured time and bandwidth.

A kernel is memory-bound by its kind (pointwise, normalization, reduction, pooling, copy, fill), or if its call has
fewer FLOPs per byte than the device's ridge point. Kernels of a few microseconds wait for their launch, and do not
count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from frx_graph.analyzers.trace.analysis import TraceAnalysis, average_per_step
from frx_graph.analyzers.trace.findings import GRAPH_ID, format_ms, get_operator_name, make_evidence
from frx_graph.analyzers.trace.roofline import Work, is_memory_bound
from frx_graph.evidence.trace.tree import NONE
from frx_graph.passes import confidence
from frx_graph.passes.call_groups import group_by_place
from frx_graph.passes.severity import HIGH_SHARE, MEDIUM_SHARE
from frx_graph.records import Basis, Effort, Finding, Risk, Saving, Severity
from frx_graph.rules.gpu_profile import GpuPeaks
from frx_graph.support.plain_text import format_bytes

RULE = "FRX005"
_LISTED = 3


def find_memory_bound(analysis: TraceAnalysis, work: Sequence[Work], peaks: GpuPeaks | None) -> list[Finding]:
    """Return a finding for each line whose memory-bound work takes at least `MEDIUM_SHARE` of the busy time."""
    bound = (item for item in work if item.operator != NONE and item.time_ns and is_memory_bound(item, peaks))
    return [
        _make_finding(analysis, items, peaks)
        for items in group_by_place(bound, lambda item: analysis.find_site(item.caller))
        if sum(item.time_ns for item in items) >= MEDIUM_SHARE * analysis.busy_ns
    ]


def _make_finding(analysis: TraceAnalysis, items: Sequence[Work], peaks: GpuPeaks | None) -> Finding:
    time_ns = sum(item.time_ns for item in items)
    share = time_ns / analysis.busy_ns
    names: Counter[str] = Counter()
    for item in items:
        names[get_operator_name(analysis, item.operator)] += item.time_ns
    slowest = [name.removeprefix("aten::") for name, _ in names.most_common(_LISTED)]
    known = [item for item in items if item.bytes is not None]
    site = analysis.merge_sites([item.caller for item in items])
    return Finding(
        rule=RULE,
        title=f"{', '.join(slowest)} {'wait' if len(slowest) > 1 else 'waits'} for memory",
        # The time that a fusion would save is unknown, so this is never HIGH.
        severity=Severity.MEDIUM if share >= HIGH_SHARE else Severity.LOW,
        site=site,
        nodes=tuple(names),
        count_per_step=average_per_step(len(items), analysis.steps),
        bytes_per_step=None,
        saving=Saving(),
        effort=Effort.ONE_LINE,
        risk=Risk.MEDIUM,
        fix="let them be fused with what produces their inputs, `torch.compile(model)`, or halve what they move with "
        "bfloat16 (`torch.autocast`)",
        # Without recorded traffic, only the kinds of the kernels suggest it.
        confidence=confidence.MEASURED if len(known) == len(items) else confidence.MODELLED,
        basis=Basis.OBSERVED,
        evidence=make_evidence(_format_evidence(analysis, items, known, share, peaks)),
        graph_id=GRAPH_ID,
        modules=(site.module_path,) if site.module_path else (),
    )


def _compare_bandwidth(speed: float, peaks: GpuPeaks) -> str:
    """Compare a measured speed in GB/s with the data sheet, which only a cache can beat."""
    bandwidth = peaks.bandwidth_bytes_per_s / 1e9
    if speed <= bandwidth:
        return f"{peaks.name} reaches {bandwidth:.0f} GB/s ({peaks.source})"
    return f"so a cache held a part of it: the memory of {peaks.name} has {bandwidth:.0f} GB/s ({peaks.source})"


def _format_evidence(
    analysis: TraceAnalysis, items: Sequence[Work], known: Sequence[Work], share: float, peaks: GpuPeaks | None
) -> list[str]:
    time_ns, steps = sum(item.time_ns for item in items), len(analysis.steps)
    unit = "the device was busy" if analysis.on_device else "operators ran"
    lines = [f"{format_ms(time_ns / steps)} a step, {100 * share:.1f} % of the time that {unit}"]
    if not known:
        return [*lines, "the trace has no shapes, so that bytes and bandwidth are not known"]
    moved = sum(item.bytes or 0 for item in known)
    known_ns = sum(item.time_ns for item in known)
    counted = [item.cost for item in known if item.cost is not None]
    part = "" if len(known) == len(items) else f", for the {format_ms(known_ns / steps)} of which it is known"
    speed = moved / known_ns
    line = f"{format_bytes(moved // steps)} a step at {speed:.3g} GB/s{part}"
    if peaks is not None:
        line += f"; {_compare_bandwidth(speed, peaks)}"
    lines.append(line)
    if counted:
        intensity = sum(cost.flops for cost in counted) / sum(cost.bytes for cost in counted)
        line = f"{intensity:.2g} FLOP per byte"
        if peaks is not None:
            ridge = peaks.float32_flops / peaks.bandwidth_bytes_per_s
            line += f"; its ridge point is {ridge:.0f} in float32"
        lines.append(line)
    return lines
