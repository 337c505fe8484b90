"""Render findings in a run for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from frx_graph.analyzers.run.diagnosis import describe_model_work
from frx_graph.analyzers.run.steps import Activity, Scope
from frx_graph.analyzers.timeline.labels import INSUFFICIENT, Answer
from frx_graph.reports.render.quantities import (
    UNKNOWN,
    format_byte_count,
    format_count,
    format_frequency,
    format_ms,
    format_percent,
    format_share,
)
from frx_graph.reports.render.recommendation_part import RecommendationPart
from frx_graph.reports.render.recommendation_text import print_bounds, print_next_steps
from frx_graph.reports.render.text_console import (
    INDENT,
    make_console,
    print_more,
    print_section,
    print_title,
    print_wrapped,
)
from frx_graph.reports.runs.rerun_command import build_recollect_command
from frx_graph.reports.runs.run_document import (
    HostUsePart,
    RunResult,
    ScopePart,
    StrideChangePart,
    SummaryPart,
    TaxPart,
)
from frx_graph.reports.runs.trace_document import TraceResult
from frx_graph.reports.runs.trace_report import describe_conversion, print_advise_command, print_host_operators
from frx_graph.support.plain_text import clean_line

_FEW = 5
_NAME = 40
_KEY = 20
NOTHING = "none recorded"
_LABELS_OF_DEVICES = frozenset(
    ["copy_bound", "host_bound", "launch_bound", "memory_pressure", "sync_bound", "underutilized_gpu"]
)
"""Labels that a program without a device cannot have."""


def render_run(result: RunResult, scope: Scope, read_from: str, *, top: int, width: int, color: bool) -> str:
    """Render the verdict, evidence, figures, `top` cards, framework tax, layouts, other labels, and gaps."""
    out, console = make_console(width, color, soft_wrap=True)
    found = result.get_scope(scope)
    console.print(Text.assemble(("RUN", "bold"), f"  {clean_line(result.run_id, width - 5)}"))
    print_wrapped(console, f"Scope: {_describe_scope(found, result)}")
    print_wrapped(console, f"Read from: {read_from}")
    _print_verdict(console, found)
    print_section(console, "EVIDENCE", (f"- {line}" for line in found.diagnosis.evidence))
    print_title(console, "PERFORMANCE SNAPSHOT")
    for key, value in _yield_figures(found.run_summary):
        _print_row(console, key, value)
    _print_parts(console, found.run_summary)
    if result.trace is not None:
        print_host_operators(console, result.trace.host)
    if found.diagnosis.recommendations:
        _print_recommendations(console, found.diagnosis.recommendations, top)
    if found.run_summary.uses_device:
        print_section(console, "FRAMEWORK ABSTRACTION TAX", _yield_tax_lines(found.framework_abstraction_tax))
    _print_layouts(console, found, result.trace)
    print_section(console, "WHY NOT THE OTHERS", _yield_rejections(found))
    if result.scope_comparison.primary_changed:
        print_section(console, "SCOPES", (result.scope_comparison.reading,))
    missing = (f"{clean_line(gap.subject)}: {gap.reason}" for gap in (*result.missing, *result.unread))
    warnings = (f"the program says: {warning}" for warning in result.warnings)
    print_section(console, "NOT IN THIS RUN", (*missing, *warnings))
    print_next_steps(console, found.diagnosis.recommendations, "the run", build_recollect_command(result.command))
    if _is_model_work(found):
        summary = found.run_summary
        print_title(console, "NEXT STEPS")
        print_advise_command(console, summary.backward_share is not None or summary.forward_share is None)
    return out.getvalue()


def _is_model_work(found: ScopePart) -> bool:
    """Return True if nothing holds the run back but the model itself."""
    summary = found.run_summary
    shares = {
        Activity.FORWARD: summary.forward_share or 0.0,
        Activity.BACKWARD: summary.backward_share or 0.0,
        Activity.OPTIMIZER: summary.optimizer_share or 0.0,
    }
    free = found.diagnosis.user_facing_bottleneck is None and not found.diagnosis.recommendations
    return free and bool(describe_model_work(shares, summary.uses_device, summary.gpu_busy_share))


def _yield_rejections(found: ScopePart) -> Iterator[str]:
    others = found.diagnosis.why_not
    idle = () if found.run_summary.uses_device else [one.label for one in others if one.answer is Answer.UNDECIDABLE]
    for answer in (Answer.PRESENT, Answer.UNDECIDABLE, Answer.ABSENT):
        unknown = "not decidable: " if answer is Answer.UNDECIDABLE else ""
        for one in others:
            if one.answer is answer and not (one.label in idle and one.label in _LABELS_OF_DEVICES):
                yield f"{one.label}: {unknown}{one.reason}"
    if gone := sorted(_LABELS_OF_DEVICES.intersection(idle)):
        yield f"{', '.join(gone)}: no device was found"


def _describe_scope(found: ScopePart, result: RunResult) -> str:
    steps = found.run_summary.steps
    said = f"{found.scope} ({format_count(steps, 'step')}"
    if found.scope is Scope.STEADY_STATE and steps < result.step_count:
        said += f" of {result.step_count:,}"
    several = len(found.run_summary.processes)
    return f"{said}{f', {several} processes' if several > 1 else ''})"


def _print_verdict(console: Console, found: ScopePart) -> None:
    told = found.diagnosis
    print_title(console, "VERDICT")
    _print_row(console, "Primary bottleneck", told.user_facing_bottleneck or NOTHING)
    if told.primary_bottleneck != told.user_facing_bottleneck and told.primary_bottleneck is not None:
        symptom = " (symptom)" if told.primary_is_symptom else ""
        _print_row(console, "Internal signal", f"{told.primary_bottleneck}{symptom}")
    # Its confidence is in how little was recorded, which is not what a reader takes it for.
    if told.confidence is not None and told.user_facing_bottleneck != INSUFFICIENT:
        _print_row(console, "Confidence", f"{told.confidence_label} ({told.confidence:.2f})")
    _print_row(console, "Reason", told.reason)


def _yield_figures(summary: SummaryPart) -> Iterator[tuple[str, str]]:
    if summary.uses_device:
        yield from _yield_device_figures(summary)
    yield from _yield_host_figures(summary.host)
    if summary.step_ms is None or summary.steps_per_s is None:
        yield "Step time", NOTHING if not summary.steps else UNKNOWN
    else:
        spread = f"median {format_ms(summary.median_step_ms)}, 90 % below {format_ms(summary.p90_step_ms)}"
        yield "Step time", f"{format_ms(summary.step_ms)} on average from batch to batch; {spread}"
        rate = format_frequency(summary.steps_per_s, "steps/s")
        yield "Throughput", f"{rate}{' of each process' if len(summary.processes) > 1 else ''}"
    if summary.steps or summary.dominant_stall is not None:
        yield "Longest wait", _describe_longest_wait(summary)
    if summary.failed_steps:
        yield "Failed", format_count(summary.failed_steps, "step")
    if summary.incomplete_steps:
        yield "Not timed", f"{format_count(summary.incomplete_steps, 'step')} with missing events"
    if summary.last_loss is not None or summary.losses_not_finite:
        lost = format_count(summary.losses_not_finite, "loss", "losses")
        last = UNKNOWN if summary.last_loss is None else f"{summary.last_loss:.4g}"
        yield "Last loss", f"{last}{f', {lost} not finite' if summary.losses_not_finite else ''}"


def _yield_device_figures(summary: SummaryPart) -> Iterator[tuple[str, str]]:
    busy = format_share(summary.gpu_busy_share)
    sampled = summary.sampled_gpu_busy_share
    if sampled is not None and sampled != summary.gpu_busy_share:
        busy += f" in the profiled steps, {format_percent(100 * sampled)} by samples"
    yield "GPU busy", busy
    yield "GPU memory busy", format_share(summary.memory_busy_share)
    yield "GPU memory, most", format_share(summary.peak_memory_share)


def _yield_host_figures(host: HostUsePart | None) -> Iterator[tuple[str, str]]:
    if host is None:
        return
    if host.busy_processors is not None:
        yield "Processors busy", f"{host.busy_processors:.1f} on average"
    if host.peak_memory_bytes is not None:
        several = host.peak_processes is not None and host.peak_processes > 1
        shared = ", with pages that processes share counted for each" if several else ""
        yield "Memory, most", f"{format_byte_count(host.peak_memory_bytes)}{shared}"


def _describe_longest_wait(summary: SummaryPart) -> str:
    """Return the longest of waiting, copying and synchronising, with its part of the step time."""
    parts = {
        "input_bound": ("waiting for input", summary.loader_wait_share),
        "copy_bound": ("copies to the device", summary.h2d_share),
        "sync_bound": ("waiting for devices", summary.sync_share),
    }
    if summary.dominant_stall is None:
        return NOTHING
    part, share = parts[summary.dominant_stall]
    return f"{part}, {format_share(share)} of the step time"


def _print_parts(console: Console, summary: SummaryPart) -> None:
    if not summary.steps:
        return
    copies = (("copies to the device", summary.h2d_share), ("copies from it", summary.d2h_share))
    rows = (
        ("waiting for input", summary.loader_wait_share),
        *(copies if summary.uses_device else ()),
        ("forward", summary.forward_share),
        ("backward", summary.backward_share),
        ("optimizer", summary.optimizer_share),
        *((("waiting for devices", summary.sync_share),) if summary.uses_device else ()),
        ("other parts", summary.other_share),
        *_list_unexplained(summary),
    )
    print_title(console, "TIME OF A STEP")
    for part, share in rows:
        time = "" if share is None or summary.step_ms is None else f"{format_ms(share * summary.step_ms):>10}"
        console.print(Text(f"{INDENT}{part:<{_KEY}}{format_share(share):>9}{time}"))


def _list_unexplained(summary: SummaryPart) -> tuple[tuple[str, float | None], ...]:
    """Return the time that no record covers, in two parts if the program marked its steps."""
    whole, between = summary.unexplained_share, summary.between_steps_share
    if whole is None or between is None:
        return (("unexplained", whole),)
    within = ("in no part of a step", whole - between)
    return (within, ("between steps", between)) if between else (within,)


def _print_recommendations(console: Console, found: tuple[RecommendationPart, ...], top: int) -> None:
    shown = min(top, len(found))
    print_title(console, f"TOP RECOMMENDATIONS ({shown} of {len(found)})")
    print_bounds(console, found[:top])
    for number, one in enumerate(found[:top], start=1):
        console.print(Text(f"{number}. [{one.priority.upper()}] {one.title}", "bold"))
        print_wrapped(console, f"Effort: {one.effort} | Risk: {one.risk} | Score: {one.score:.2f}")
        print_wrapped(console, one.why)
        for action in one.actions:
            print_wrapped(console, f"- {action}")


def _yield_tax_lines(tax: TaxPart | None) -> Iterator[str]:
    if tax is None:
        yield "unknown: no profiler recorded kernels, or how idle the device was"
        return
    sampled = ", from samples" if tax.sampled else ""
    yield f"Score: {tax.score:.0f}/100 ({tax.severity}{sampled})"
    yield (
        f"The device is idle {tax.idle_share:.1%} of the time; input, copies and waits explain "
        f"{tax.explained_share:.1%}; {tax.fragmentation:.0%} of the kernels are small"
    )
    for one in tax.contributors:
        inferred = " (opportunity) (inferred)" if one.inferred else ""
        yield f"- {one.name}{inferred}: {one.evidence}"


def _print_layouts(console: Console, found: ScopePart, trace: TraceResult | None) -> None:
    if not found.layout_findings and (trace is None or not trace.layout_findings):
        return
    print_title(console, "LAYOUT FINDINGS")
    for change in found.layout_findings[:_FEW]:
        _print_stride_change(console, change)
    print_more(console, len(found.layout_findings), _FEW)
    if trace is not None and trace.layout_findings:
        for work in trace.layout[:_FEW]:
            print_wrapped(console, describe_conversion(work, _NAME))
        told = format_count(trace.layout_findings, "finding")
        print_wrapped(console, f"{told} in the profiler's trace: `frx analyze --trace` on that file explains them.")


def _print_stride_change(console: Console, change: StrideChangePart) -> None:
    print_wrapped(console, f"{change.rule} [{change.severity.upper()}] {change.title}")
    shape = "×".join(map(str, change.shape))
    before = f"({', '.join(map(str, change.strides_before))}), {change.layout_before}"
    after = f"({', '.join(map(str, change.strides_after))}), {change.layout_after}"
    said = f"shape {shape}: from {before}, to {after}; {change.count} of {change.among} times"
    print_wrapped(console, said, INDENT * 2)
    if change.steps:
        more = ", …" if change.count > len(change.steps[:_FEW]) else ""
        numbers = ", ".join(map(str, change.steps[:_FEW]))
        print_wrapped(console, f"in steps {numbers}{more}", INDENT * 2)
    print_wrapped(console, f"Fix: {change.fix}", INDENT * 2)


def _print_row(console: Console, key: str, value: str) -> None:
    first = f"{INDENT}{key:<{_KEY}}: "
    lines = textwrap.wrap(
        value, console.width, initial_indent=first, subsequent_indent=" " * len(first), break_long_words=False
    )
    console.print(Text("\n".join(lines)))
