"""Render the comparison of two CUDA programs for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from frx_graph.reports.kernels.bench_document import (
    BenchDocument,
    BenchSidePart,
    OutputsPart,
    RatioPart,
    TimingPart,
)
from frx_graph.reports.kernels.compare_report import print_changes, print_findings
from frx_graph.reports.render.quantities import format_count, format_ms
from frx_graph.reports.render.source_path import cut_path
from frx_graph.reports.render.text_console import (
    INDENT,
    make_console,
    print_more,
    print_section,
    print_title,
    print_wrapped,
)
from frx_graph.support.plain_text import clean_line

_STYLES = {"faster": "bold green", "slower": "bold red", "no difference shown": "bold yellow"}
_KERNELS = 10
_NAME = 60
_COLUMN = 11
_MOST_RATIO = 1000
"""A larger bound is not shown: the quads are too few, or too far apart."""


def render_bench(document: BenchDocument, *, width: int, color: bool) -> str:
    """Render the verdict, the times, the agreement of outputs, and the assembler's figures."""
    out, console = make_console(width, color, soft_wrap=True)
    verdict = document.verdict or "not run"
    room = max(10, (width - 30) // 2)
    sources = f"{cut_path(document.before.source, room)} -> {cut_path(document.after.source, room)}"
    console.print(Text.assemble((verdict.upper(), _STYLES.get(verdict, "bold red")), f"  {sources}"))
    print_wrapped(console, document.not_run_because or "")
    if document.ci is not None and document.speedup_x is not None:
        print_wrapped(console, f"whole programs: {_format_speedup(document.speedup_x, document.ci)}")
        if (found := document.kernel_time) is not None:
            print_wrapped(console, f"kernels: {found.verdict}, {_format_speedup(found.speedup_x, found.ci)}")
        runs, warmup = document.before.runs, document.before.warmup
        where = ", ".join(document.gpus)
        print_wrapped(console, f"{runs} runs of each, taking turns, after {warmup} to warm up, on {where}")
    errors = document.compile_errors
    for side, said in ((document.before, errors.before), (document.after, errors.after)):
        title = f"{cut_path(side.source, console.width - 20)} is not compiled"
        print_section(console, title, [] if said is None else said.splitlines() or ["nvcc said nothing"])
    for word, side in (("before", document.before), ("after", document.after)):
        print_section(console, f"Standard error of {word}", side.problem_stderr)
    if document.speedup_x is not None:
        print_title(console, "Whole programs, wall clock")
        _print_times(console, document.before, document.after)
        print_title(console, "Kernels, CUDA events, separate runs")
        if (found := document.kernel_time) is None:
            print_wrapped(console, f"not known: {document.no_kernel_time_because}")
        else:
            _print_times(console, found.before, found.after)
            a, b = found.launches_before, found.launches_after
            print_wrapped(console, f"launches a run: {a if a == b else f'{a} before, {b} after'}")
    _print_ncu(console, document)
    if document.outputs is not None:
        print_title(console, "Outputs")
        _print_outputs(console, document.outputs)
    for word, side in (("before", document.before), ("after", document.after)):
        if side.kernels:
            print_title(console, f"Kernels of {word} for {side.architectures[-1]}, by ptxas")
            _print_assembled(console, side)
    return out.getvalue()


def _print_ncu(console: Console, document: BenchDocument) -> None:
    """Print the measurements of Nsight Compute, or the reason for their absence."""
    if document.no_ncu_diff_because is not None:
        print_section(console, "Nsight Compute", (f"not known: {document.no_ncu_diff_because}",))
    diff = document.ncu_diff
    if diff is None:
        return
    print_changes(console, "Nsight Compute, before -> after", diff.kernels)
    print_findings(console, "Resolved in after", diff.findings_resolved)
    print_findings(console, "New in after", diff.findings_introduced)
    for word, names in (("before", diff.only_a), ("after", diff.only_b)):
        if names:
            said = ", ".join(clean_line(name, _NAME) for name in names[:_KERNELS])
            print_wrapped(console, f"kernels of {word} alone: {said}")


def _print_times(console: Console, before: TimingPart, after: TimingPart) -> None:
    head = "".join(f"{word:>{_COLUMN}}" for word in ("median", "min", "max", "stdev"))
    console.print(Text(f"{INDENT}{'':<8}{head}", "dim"))
    for word, side in (("before", before), ("after", after)):
        found = (side.median_ms, side.min_ms, side.max_ms, side.stdev_ms)
        cells = "".join(f"{format_ms(ms):>{_COLUMN}}" for ms in found)
        console.print(Text(f"{INDENT}{word:<8}{cells}"))


def _format_speedup(speedup: float, ci: RatioPart) -> str:
    """Format the ratio with its interval, and the ratio of medians if it looks different."""
    high = "no upper bound" if ci.high is None else _format_ratio(ci.high)
    interval = f"{100 * ci.confidence:.0f} % interval {_format_ratio(ci.low)} to {high}"
    medians = "" if f"{speedup:.2f}" == f"{ci.ratio_median:.2f}" else f"; ratio of medians {_format_ratio(speedup)}"
    return f"{_format_ratio(ci.ratio_median)} ({interval}, {format_count(ci.quads, 'quad')}){medians}"


def _format_ratio(ratio: float) -> str:
    if ratio >= _MOST_RATIO:
        return f"more than {_MOST_RATIO}x"
    return f"{ratio:.3f}x" if ratio >= 0.01 else "less than 0.01x"


def _print_outputs(console: Console, found: OutputsPart) -> None:
    tolerance = f"{found.relative_tolerance:g} relative and {found.absolute_tolerance:g} absolute"
    match found.agreement:
        case "identical":
            said = "identical, byte for byte; both exit with 0"
        case "nothing_printed":
            said = "neither prints anything, so equal results were not shown"
        case "within_tolerance":
            said = f"not the same bytes, but {format_count(found.numbers or 0, 'number')} within {tolerance}"
        case "different":
            off = f"{found.numbers_off} of {format_count(found.numbers or 0, 'number')} beyond {tolerance}"
            said = "DIFFERENT: " + ("the text differs, not only numbers in it" if found.numbers is None else off)
    print_wrapped(console, said)
    if found.numbers is not None:
        largest = ", ".join(
            f"{kind} {'infinite' if value is None else format(value, '.3g')}"
            for kind, value in (("absolute", found.largest_absolute), ("relative", found.largest_relative))
        )
        print_wrapped(console, f"largest difference: {largest}")
    if found.first_line is not None:
        print_wrapped(console, f"first in line {found.first_line}:")
        for word, line in (("before", found.before_line), ("after", found.after_line)):
            shown = clean_line("(no such line)" if line is None else line, console.width - 17)
            console.print(Text(f"{INDENT * 2}{word:<8}{shown}"))
    for word in found.varying:
        print_wrapped(console, f"The output of {word} changes from run to run: a time, perhaps, or a race")


def _print_assembled(console: Console, side: BenchSidePart) -> None:
    for kernel in side.kernels[:_KERNELS]:
        spilled = kernel.spill_stores + kernel.spill_loads
        spills = f"{spilled} bytes of spills" if spilled else "no spills"
        said = f"{format_count(kernel.registers, 'register')}, {spills}"
        console.print(Text(f"{INDENT}{clean_line(kernel.name, console.width - 8 - len(said))}  {said}"))
    print_more(console, len(side.kernels), _KERNELS)
