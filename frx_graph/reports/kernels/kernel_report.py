"""Render findings in an Nsight Compute export for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from rich.console import Console
from rich.table import Table
from rich.text import Text

from frx_graph.analyzers.kernels.analysis import MEASURED
from frx_graph.analyzers.kernels.gpu_view import BY_CAPABILITY, BY_OPTION
from frx_graph.analyzers.kernels.metric_levels import Level, grade_metrics
from frx_graph.analyzers.kernels.speed_of_light import LATENCY_BELOW_PCT
from frx_graph.evidence.kernel_name import shorten_signature
from frx_graph.reports.kernels.kernel_document import GpuPart, KernelPart, NcuResult, RulePart
from frx_graph.reports.render.quantities import format_byte_count, format_count, format_percent, format_seconds
from frx_graph.reports.render.recommendation_part import YOUR_PROGRAM, build_rerun_command
from frx_graph.reports.render.recommendation_text import print_recommendations
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
from frx_graph.rules.gpu_profile import FLOAT32
from frx_graph.support.plain_text import clean_line

_MARKS = {
    Level.BAD: ("[!!]", "bold red"),
    Level.DOUBTFUL: ("[ !]", "yellow"),
    Level.GOOD: ("[ok]", "green"),
    Level.UNMEASURED: ("[--]", "dim"),
}
_BAR = 20
_KERNEL_NAME = 60
_KERNEL_COLUMN = 26
_KERNELS = 10
_RULES = 5
_RULE_TEXT = 240
"""Characters of a message; the document has all."""
_ADVICE = frozenset({"OPT", "WRN", "ERR"})
_BOUNDS = {
    "memory": "it waits for memory",
    "compute": "it waits for arithmetic",
    "balanced": "memory and arithmetic are about as busy",
    "latency": f"neither memory nor arithmetic reaches {LATENCY_BELOW_PCT:.0f} %: it waits for single instructions",
    "unknown": "compute and memory throughput were not both measured",
}


def render_kernels(
    result: NcuResult, *, top: int, width: int, color: bool, measured: Sequence[str] = ("--", *YOUR_PROGRAM)
) -> str:
    """Render verdict, metrics, bottlenecks, `top` recommendations, next steps; `measured` is the measured command."""
    out, console = make_console(width, color, soft_wrap=True)
    _print_verdict(console, result)
    _print_kernels(console, result)
    if result.kernels:
        _print_metrics(console, result.kernels[0])
        _print_gpu(console, result.kernels[0])
        print_section(console, "NSIGHT COMPUTE'S OWN RULES", _yield_rules(result.kernels[0]))
    if result.bottlenecks:
        print_title(console, "BOTTLENECKS DETECTED")
    for found in result.bottlenecks:
        filled = round(_BAR * found.score)
        console.print(Text(f"{INDENT}{found.label:<36} {found.score:.2f} [{'#' * filled}{'.' * (_BAR - filled)}]"))
        for evidence, kernel in zip(found.evidence, found.kernels, strict=True):
            print_wrapped(console, f"{evidence}, {_cut_name(kernel)}", INDENT * 2)
    print_recommendations(console, result.recommendations, top)
    _print_next_steps(console, result, measured)
    return out.getvalue()


def _print_verdict(console: Console, result: NcuResult) -> None:
    console.print(Text.assemble(("VERDICT", "bold"), f"  {cut_path(result.source, console.width - 9)}"))
    kernels, launches = format_count(result.kernel_count, "kernel"), format_count(result.launches, "launch", "launches")
    written = "a binary report" if result.form == "report" else f"an export of {result.form} form"
    print_wrapped(console, f"{kernels}, {launches}, {written}")
    primary = next((found for found in result.bottlenecks if found.label == result.primary_bottleneck), None)
    if primary is None and result.bottlenecks:
        print_wrapped(console, "Primary bottleneck: unknown, too few metrics")
    elif primary is None:
        print_wrapped(console, "Primary bottleneck: none that these metrics show")
    else:
        print_wrapped(console, f"Primary bottleneck: {primary.label} (confidence {primary.confidence:.2f})")
        if primary.confidence < MEASURED:
            print_wrapped(console, "Confidence is reduced: some counters for it were not measured.")
    if result.secondary_bottlenecks:
        print_wrapped(console, f"Secondary: {', '.join(result.secondary_bottlenecks)}")
    if result.kernels:
        kernel = result.kernels[0]
        by = ", by Nsight Compute's rule" if kernel.bound_by_rule else ""
        print_wrapped(console, f"{_cut_name(kernel.kernel_name)}: {kernel.bound}{by}, {_BOUNDS[kernel.bound]}")
    if not result.kernel_attribution.has_runtime_share:
        print_wrapped(console, "Some kernels have no durations, so scores count launches, not time.")


def _print_kernels(console: Console, result: NcuResult) -> None:
    print_title(console, "KERNELS")
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column("kernel", no_wrap=True, overflow="ellipsis", max_width=_KERNEL_COLUMN)
    for heading in ("share", "time", "bound", "compute", "memory", "occ."):
        table.add_column(heading, justify="left" if heading == "bound" else "right", no_wrap=True)
    # By position: one name may denote kernels on several devices.
    ranked = zip(result.kernels, result.kernel_attribution.top_opportunities, strict=True)
    for kernel, place in islice(ranked, _KERNELS):
        table.add_row(
            Text(_cut_name(kernel.kernel_name)),
            format_percent(place.runtime_share_pct),
            format_seconds(kernel.seconds),
            kernel.bound,
            format_percent(kernel.compute_pct),
            format_percent(kernel.memory_pct),
            format_percent(kernel.metrics.get("achieved_occupancy")),
        )
    console.print(table, soft_wrap=False)
    print_more(console, result.kernel_count, _KERNELS)


def _cut_name(kernel: str) -> str:
    return clean_line(shorten_signature(kernel), _KERNEL_NAME)


def _print_metrics(console: Console, kernel: KernelPart) -> None:
    print_title(console, f"MEASURED METRICS of {_cut_name(kernel.kernel_name)}")
    for metric in grade_metrics(kernel.kernel_name, kernel.metrics):
        mark, style = _MARKS[metric.level]
        value = "not measured" if metric.value is None else f"{metric.value:.2f} {metric.unit}".rstrip()
        console.print(Text.assemble(INDENT, (mark, style), f" {metric.title:<22} {value:>12}  {metric.line}"))
    for limiter, share in kernel.limiters.items():
        said = f"blocks on a multiprocessor are limited by {limiter} ({share:.0%} of the time)"
        console.print(Text(f"{INDENT}     {said}"))
    if kernel.warp_stalls:
        stalled = [f"{reason} {share:.0%}" for reason, share in list(kernel.warp_stalls.items())[:5]]
        console.print(Text(f"{INDENT}     warps: {', '.join(clean_line(text, 40) for text in stalled)}"))


def _print_gpu(console: Console, kernel: KernelPart) -> None:
    gpu = kernel.gpu
    device = kernel.device_name or (f"compute capability {cc}" if (cc := kernel.compute_capability) else None)
    if device is not None and (gpu is None or (kernel.device_name is not None and gpu.known_by == BY_CAPABILITY)):
        print_wrapped(console, f"GPU: {clean_line(device, 60)} is not listed, so its peaks are unknown.")
    if gpu is not None and (lines := list(_yield_gpu_lines(gpu, kernel))):
        instead = f", instead of {clean_line(device, 60)}" if device and gpu.known_by == BY_OPTION else ""
        lines.insert(0, f"known by {gpu.known_by}{instead}")
        print_section(console, f"BY LIMITS AND DATA SHEET of {gpu.name}", lines)


def _note_raised(roof_pct: float) -> str:
    """Return a note if a kernel of the file was faster than the data sheet."""
    return f", raised by {roof_pct - 100:.3g} % to what a kernel reached" if roof_pct > 100 else ""


def _yield_gpu_lines(gpu: GpuPart, kernel: KernelPart) -> Iterator[str]:
    if gpu.theoretical_occupancy_pct is not None:
        measured = kernel.metrics.get("theoretical_occupancy")
        by = f", limited by {' and '.join(gpu.limiters)}" if gpu.limiters else ""
        said = "" if measured is None else f"; Nsight Compute says {measured:.1f} %"
        yield f"theoretical occupancy {gpu.theoretical_occupancy_pct:.1f} %{by}{said} ({gpu.limits_source})"
    if gpu.dram_pct is not None:
        yield f"DRAM at {gpu.dram_pct:.1f} % of the bandwidth ({gpu.peaks_source}{_note_raised(gpu.dram_roof_pct)})"
    if gpu.dram_bytes_per_launch is not None and gpu.l2_bytes is not None:
        moved, held = format_byte_count(round(gpu.dram_bytes_per_launch)), format_byte_count(gpu.l2_bytes)
        yield f"{moved} of DRAM traffic a launch; the L2 cache holds {held}"
    for of, pct in gpu.peak_pct.items():
        what = "float32" if of == FLOAT32 else f"{of} on tensor cores"
        yield f"{what} at {pct:.1f} % of the peak ({gpu.peaks_source}{_note_raised(gpu.arithmetic_roof_pct)})"
    if gpu.flops_per_byte is not None and gpu.ridge_flops_per_byte is not None:
        ridge = gpu.ridge_flops_per_byte
        yield f"{gpu.flops_per_byte:.3g} FLOP per byte; at the peaks arithmetic and DRAM meet at {ridge:.3g}"


def _yield_rules(kernel: KernelPart) -> Iterator[str]:
    """Yield the advice of Nsight Compute's rules, each once, with the greatest estimated speed-up first."""
    best: dict[str, RulePart] = {}
    for rule in kernel.ncu_rules:
        if rule.kind in _ADVICE and (rule.speedup_pct or 0.0) >= (best.get(rule.name, rule).speedup_pct or 0.0):
            best[rule.name] = rule
    for rule in sorted(best.values(), key=lambda rule: -(rule.speedup_pct or 0.0))[:_RULES]:
        pct = rule.speedup_pct
        said = "" if pct is None else f", {rule.speedup_kind} speed-up of {pct:.1f} % estimated"
        yield f"{rule.name} ({rule.section}){said}: {clean_line(rule.text, _RULE_TEXT)}"


def _print_next_steps(console: Console, result: NcuResult, measured: Sequence[str]) -> None:
    print_title(console, "NEXT STEPS")
    again, everything = build_rerun_command(result.primary_bottleneck, measured), build_rerun_command(None, measured)
    if result.recommendations:
        print_wrapped(console, f"- Try first: {result.recommendations[0].title}")
        print_wrapped(console, "- Then measure again:")
        print_command(console, again)
    missing = result.missing.get("full", ())
    if missing:
        print_wrapped(console, f"- Not measured: {', '.join(missing)}")
        if everything != again or not result.recommendations:
            print_wrapped(console, "- For all of that:")
            print_command(console, everything)
    for line in result.unread:
        print_wrapped(console, f"- Could not be read: {line}")
