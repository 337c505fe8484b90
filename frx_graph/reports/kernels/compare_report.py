"""Render the comparison of two programs for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from frx_graph.analyzers.comparison.matching import MatchedBy, Winner
from frx_graph.reports.kernels.compare_document import (
    ChangePart,
    CompareResult,
    DimensionPart,
    FindingPart,
    NcuKernelPart,
    PtxKernelPart,
    StaticKernelPart,
    VerdictPart,
)
from frx_graph.reports.kernels.compare_text import format_change, format_pair
from frx_graph.reports.kernels.reconcile_report import print_diagnoses, print_missing_evidence
from frx_graph.reports.render.quantities import format_seconds
from frx_graph.reports.render.source_path import cut_path
from frx_graph.reports.render.text_console import (
    INDENT,
    make_console,
    print_command,
    print_more,
    print_section,
    print_title,
    print_wrapped,
)
from frx_graph.support.plain_text import clean_line

_STYLES = {Winner.A: "bold red", Winner.B: "bold green", Winner.TIE: "bold yellow", Winner.UNKNOWN: "bold yellow"}
_BASES = {
    "time": "by measured time",
    "measured_scores": "by scores of measurements; no times",
    "static_scores": "by scores of source and PTX alone, without measurements",
    "nothing": "",
}
_KERNELS = 5
"""Entries shown per layer, most important first; the document has all."""
_FINDINGS = 20
_NAME = 60


def render_comparison(result: CompareResult, *, top: int, width: int, color: bool) -> str:
    """Render the winner, differences, `top` root causes, tradeoffs and open questions."""
    out, console = make_console(width, color, soft_wrap=True)
    _print_winner(console, result)
    print_findings(console, "RESOLVED IN B", result.resolved)
    print_findings(console, "REGRESSIONS IN B", result.regressions)
    _print_dimensions(console, result)
    measured, ptx, source = result.ncu_diff, result.ptx_diff, result.static_diff
    print_changes(console, "WHAT CHANGED, MEASURED", () if measured is None else measured.kernels)
    if ptx is not None:
        targets = (clean_line(target, 30) for target in dict.fromkeys((ptx.target_a, ptx.target_b)))
        print_changes(console, f"WHAT CHANGED, PTX for {' -> '.join(targets)}", ptx.kernels)
    print_changes(console, "WHAT CHANGED, SOURCE", () if source is None else source.kernels)
    if result.root_causes_a:
        print_diagnoses(console, "ROOT CAUSES IN A", result.root_causes_a, top)
    left = {one.diagnosis for one in result.root_causes_a} & {one.diagnosis for one in result.root_causes_b}
    if left:
        print_wrapped(console, f"B has of these: {', '.join(sorted(left))}")
    print_section(console, "TRADEOFFS", (f"- {one.text}" for one in result.tradeoffs))
    shown = {(one.diagnosis, one.kernel) for one in result.root_causes_a[:top]}
    print_missing_evidence(console, result.missing_evidence, shown, top)
    print_section(console, "STILL UNKNOWN", (f"- {line}" for line in result.still_unknown))
    if result.upgrade_hints:
        print_title(console, "UPGRADE HINTS")
        for hint in result.upgrade_hints:
            what, _, command = hint.partition(": ")
            print_wrapped(console, f"- {what}:")
            print_command(console, command)
    return out.getvalue()


def _print_winner(console: Console, result: CompareResult) -> None:
    verdict = result.verdict
    winner = verdict.overall_winner
    label = {Winner.A: result.label_a, Winner.B: result.label_b}.get(winner)
    said = "" if label is None else f"  {cut_path(label, max(10, console.width - 20))}"
    console.print(Text.assemble(("WINNER  ", "bold"), (winner.name, _STYLES[winner]), said))
    for line in _yield_reasons(verdict):
        print_wrapped(console, line)
    for side, label in (("A", result.label_a), ("B", result.label_b)):
        print_wrapped(console, f"{side}: {cut_path(label, console.width - 8)}")


def _yield_reasons(verdict: VerdictPart) -> Iterator[str]:
    if verdict.reason is not None:
        yield verdict.reason
    if basis := _BASES[verdict.basis.value]:
        yield basis
    for one in () if verdict.time is None else verdict.time.readings:
        times = f"{format_seconds(one.seconds_a)} -> {format_seconds(one.seconds_b)}"
        fast = "" if one.speedup_x is None else f", B is {one.speedup_x:.3g}x as fast"
        yield f"{one.of}: {times}{fast}"
    if verdict.predicted is not None and verdict.time is None:
        a, b = verdict.predicted.a, verdict.predicted.b
        yield (
            f"predicted by the sources, in cycles of a warp for each result: A {a.least:.3g} to {a.most:.3g}, "
            f"B {b.least:.3g} to {b.most:.3g}"
        )
    if verdict.score_a is not None and verdict.score_b is not None:
        yield f"weighted scores: A {verdict.score_a:.2f}, B {verdict.score_b:.2f}"


def print_findings(console: Console, title: str, found: Sequence[FindingPart]) -> None:
    """Print the findings that one side has more often, if any."""
    if not found:
        return
    print_title(console, title)
    for one in found[:_FINDINGS]:
        where = "kernels without a counterpart"
        if one.kernel_a is not None and one.kernel_b is not None:
            where = format_pair(one.kernel_a, one.kernel_b)
        count = "" if {one.count_a, one.count_b} == {0, 1} else f" ({one.count_a} -> {one.count_b})"
        print_wrapped(console, f"- {one.code}{count}: {one.title}, {where} [{one.layer}]")
    print_more(console, len(found), _FINDINGS)


def _print_dimensions(console: Console, result: CompareResult) -> None:
    for title, winner in (("IMPROVED", Winner.B), ("REGRESSED", Winner.A), ("UNCHANGED", Winner.TIE)):
        found = {name: one for name, one in result.scorecard.items() if one.winner is winner}
        if found:
            print_title(console, title)
        for name, one in found.items():
            scores = f"{_format_score(one.score_a)} -> {_format_score(one.score_b)}"
            console.print(Text(f"{INDENT}{name.replace('_', ' '):<20} {scores}"))
            if winner is not Winner.TIE:
                print_wrapped(console, "; ".join(_format_components(one)), INDENT * 2)


def _format_components(one: DimensionPart) -> Iterator[str]:
    for part in one.components:
        by = part.evidence_a if part.evidence_a == part.evidence_b else f"{part.evidence_a} and {part.evidence_b}"
        yield f"{part.name.replace('_', ' ')} {_format_score(part.a)} -> {_format_score(part.b)} ({by})"


def _format_score(score: float | None) -> str:
    return "unknown" if score is None else f"{score:.2f}"


def print_changes(
    console: Console, title: str, kernels: Sequence[StaticKernelPart | PtxKernelPart | NcuKernelPart]
) -> None:
    """Print the differences of the most important pairs of kernels, if any."""
    shown = [(kernel, lines) for kernel in kernels[:_KERNELS] if (lines := list(_yield_kernel_lines(kernel)))]
    if shown or len(kernels) > _KERNELS:
        print_title(console, title)
    for kernel, lines in shown:
        matched = kernel.matched_by
        by = "" if matched is MatchedBy.NAME else f" (matched by {matched.value.replace('_', ' ')})"
        print_wrapped(console, f"{format_pair(kernel.kernel_a, kernel.kernel_b)}{by}")
        for line in lines:
            print_wrapped(console, line, INDENT * 2)
    print_more(console, len(kernels), _KERNELS, "kernels")


def _yield_kernel_lines(kernel: StaticKernelPart | PtxKernelPart | NcuKernelPart) -> Iterator[str]:
    if isinstance(kernel, NcuKernelPart):
        times = f"{format_seconds(kernel.seconds_a)} -> {format_seconds(kernel.seconds_b)}"
        launches = f"{kernel.launches_a:,} -> {kernel.launches_b:,} launches"
        if kernel.launches_a != kernel.launches_b or kernel.seconds_a != kernel.seconds_b:
            yield f"time of all launches {times}, {launches}"
        if kernel.bound_a != kernel.bound_b:
            yield f"limited by {kernel.bound_a} -> {kernel.bound_b}"
        yield from _yield_differences(kernel.changes)
        if any(one.a != one.b for one in kernel.warp_stalls):
            yield f"warps: {'; '.join(clean_line(format_change(one), _NAME) for one in kernel.warp_stalls[:5])}"
    elif isinstance(kernel, PtxKernelPart):
        changes = [one for one in kernel.changes if not kernel.assembled or one.metric != "virtual_registers"]
        yield from _yield_differences(changes)
        mix = [one for one in kernel.instruction_mix if one.a != one.b]
        mix.sort(key=lambda one: -abs(one.delta or 0.0))
        if mix:
            yield f"instructions: {'; '.join(format_change(one) for one in mix[:6])}"
    else:
        yield from _yield_differences(kernel.changes)
        for stride in kernel.strides:
            between = f"[{', '.join(stride.a)}] -> [{', '.join(stride.b)}]"
            yield f"elements from thread to thread in {stride.space.value} {clean_line(stride.array, _NAME)}: {between}"


def _yield_differences(changes: Sequence[ChangePart]) -> Iterator[str]:
    return (format_change(change) for change in changes if change.a != change.b)
