"""Finds convolution and pooling regions that run channels-last although plain was measured to be faster.

Assumes: as for FRX004, operators between the convolutions cost the same in either layout, conversions run at the
device's bandwidth, and weights are converted ahead of time. Inductor's conversions of weights at every call are not
counted here; FRX007 counts them.
"""

from __future__ import annotations

from collections.abc import Iterable

from frx_graph.facts.layout import Layout, name_channels_last
from frx_graph.passes.analysis import Analysis, Detector
from frx_graph.passes.layouts.layout_findings import (
    find_unmeasured_convolutions,
    format_anchor_count,
    format_modules,
    format_values,
    make_layout_finding,
    refuse_unmeasured,
)
from frx_graph.passes.layouts.layout_fixes import LayoutFix, group_changes_by_fix, select_worthwhile_changes
from frx_graph.passes.layouts.operator_layout import classify_memory_order
from frx_graph.records import Effort, Finding, Refusal, Risk

RULE = "FRX015"


def detect(analysis: Analysis) -> Iterable[Finding | Refusal]:
    """Yield one finding for the whole model if all of it loses, else one for each line at which a region begins."""
    changes = select_worthwhile_changes(analysis, Layout.PLAIN)
    for found, whole in group_changes_by_fix(analysis, changes):
        yield _build_finding(analysis, found, whole=whole)
    yield from refuse_unmeasured(
        analysis, RULE, DETECTOR.name, find_unmeasured_convolutions(analysis, Layout.CHANNELS_LAST)
    )


def _build_finding(analysis: Analysis, changes: LayoutFix, *, whole: bool) -> Finding:
    anchors = format_anchor_count(len(changes.anchors))
    forced = analysis.inner == "inductor" and changes.total.rank == 4
    fixes = []
    if forced:
        fixes.append(_describe_inductor_fix(whole=whole))
    results = [value for op in changes.anchors for value in changes.facts.get_output_values(op)]
    # The program itself, and not only the compiler, may run them channels-last.
    if not forced or any(classify_memory_order(value) is Layout.CHANNELS_LAST for value in results):
        fixes.append(_describe_program_fix(changes, whole=whole))
    return make_layout_finding(
        analysis,
        changes,
        rule=RULE,
        title=f"{anchors} channels-last, measured {changes.total.speedup:.2f}x faster plain",
        fix="; ".join(fixes),
        effort=Effort.ONE_LINE if whole else Effort.LOCAL,
        risk=Risk.LOW,
    )


def _describe_inductor_fix(*, whole: bool) -> str:
    switch = (
        'compile with `options={"layout_optimization": False}`: Inductor forces channels-last on the graph, and '
        "without it convolutions follow the strides in the program"
    )
    if whole:
        return switch
    return f"{switch}; convert the modules that are not named here with `.to(memory_format=torch.channels_last)`"


def _describe_program_fix(changes: LayoutFix, *, whole: bool) -> str:
    memory_format = name_channels_last(changes.total.rank)
    if whole:
        return f"leave out `.to(memory_format={memory_format})` for the model and its input"
    fix = f"keep {format_modules(changes)} plain: `.to(memory_format=torch.contiguous_format)`"
    if changes.entering:
        fix += f", and `.contiguous()` for {format_values(changes.entering, changes.facts)}"
    if changes.leaving:
        leaving = format_values(changes.leaving, changes.facts)
        fix += f", and `.contiguous(memory_format={memory_format})` for {leaving}, where the region ends"
    return fix


DETECTOR = Detector(RULE, "channels_last_harmful", detect)
