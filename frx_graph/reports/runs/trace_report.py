"""Render findings in a profiler trace for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from frx_graph.analyzers.timeline.host_idle import HOST_WORK_TEXTS
from frx_graph.analyzers.timeline.host_time import Part
from frx_graph.analyzers.timeline.labels import INSUFFICIENT, Answer
from frx_graph.evidence.kernel_name import normalize_kernel_name
from frx_graph.reports.render.quantities import (
    format_byte_count,
    format_count,
    format_ms,
    format_percent,
    format_rate,
    format_share,
)
from frx_graph.reports.render.recommendation_text import print_next_steps, print_recommendations
from frx_graph.reports.render.source_path import cut_path
from frx_graph.reports.render.text_console import (
    INDENT,
    make_console,
    print_command,
    print_more,
    print_section,
    print_table,
    print_title,
    print_wrapped,
)
from frx_graph.reports.runs.rerun_command import build_advise_command
from frx_graph.reports.runs.trace_document import (
    DevicePart,
    HostPart,
    LaunchPart,
    LayoutPart,
    SitePart,
    TraceResult,
)
from frx_graph.support.plain_text import clean_line

_MARKS = {
    Answer.PRESENT: ("[!!]", "bold red"),
    Answer.ABSENT: ("[ok]", "green"),
    Answer.UNDECIDABLE: ("[??]", "yellow"),
}
_ROWS = 10
"""Rows of a table; the JSON has all."""
_FEW = 5
_NAME = 34


def render_trace(result: TraceResult, *, top: int, width: int, color: bool) -> str:
    """Render verdict, labels, devices, parts of a step, kernels, operators, launches, waits, layouts, and `top`
    cards."""
    out, console = make_console(width, color, soft_wrap=True)
    _print_verdict(console, result)
    print_title(console, "LABELS: [!!] present, [ok] absent, [??] not decidable")
    for label in result.labels:
        mark, style = _MARKS[label.answer]
        score = f"  score {label.score:.2f}" if label.answer is Answer.PRESENT else ""
        note = "  not decidable" if label.answer is Answer.UNDECIDABLE else "  symptom" if label.symptom else ""
        console.print(Text.assemble(INDENT, (mark, style), f" {label.label}{score}{note}"))
        print_wrapped(console, label.evidence, INDENT * 2)
    if result.devices:
        _print_devices(console, result)
    _print_parts(console, result)
    if result.kernels:
        _print_kernels(console, result)
    if result.operators:
        _print_operators(console, result)
    print_host_operators(console, result.host)
    if result.launches is not None:
        print_section(console, "LAUNCHES", _yield_launch_lines(result.launches))
    print_section(console, "IDLE DEVICES: the host meanwhile", _yield_idle_lines(result))
    _print_waits(console, result)
    if result.layout_findings:
        print_title(console, "LAYOUT CHANGES")
        for work in result.layout[:_ROWS]:
            print_wrapped(console, describe_conversion(work, _NAME, _format_site(work.site, " at ")))
        told = format_count(result.layout_findings, "finding")
        where = "" if result.layout else " on copies that take no device time here"
        print_wrapped(console, f"{told}{where}: `frx analyze --trace` explains them.")
    print_recommendations(console, result.recommendations, top)
    print_section(console, "NOT IN THIS TRACE", (f"{gap.subject}: {gap.reason}" for gap in result.missing))
    print_next_steps(console, result.recommendations, "the trace")
    if result.host.host_operators:
        print_advise_command(console, Part.BACKWARD in result.host.parts_ms)
    return out.getvalue()


def _print_verdict(console: Console, result: TraceResult) -> None:
    console.print(Text.assemble(("RUN VERDICT", "bold"), f"  {cut_path(result.source, console.width - 14)}"))
    if result.rank is not None:
        of = "" if result.world_size is None else f" of {result.world_size}"
        print_wrapped(console, f"Rank {result.rank}{of}")
    window = result.window
    if window.steps:
        first, last = window.steps[0].number, window.steps[-1].number
        numbers = f"ProfilerStep#{first}" if first == last else f"ProfilerStep#{first} to #{last}"
        print_wrapped(console, f"{format_count(len(window.steps), 'step')} of {format_ms(window.step_ms)}: {numbers}")
    else:
        print_wrapped(console, f"No steps are marked: all {format_ms(window.span_ms)} of the trace count")
    for step in window.left_out:
        print_wrapped(console, f"Left out as warm-up: ProfilerStep#{step.number}, {format_ms(step.ms)}")
    print_wrapped(console, f"Primary bottleneck: {result.primary_bottleneck or _explain_none(result)}")
    if result.secondary_bottlenecks:
        print_wrapped(console, f"Secondary: {', '.join(result.secondary_bottlenecks)}")
    if result.symptom is not None and result.symptom != result.primary_bottleneck:
        print_wrapped(console, f"Symptom: {result.symptom}")


def _explain_none(result: TraceResult) -> str:
    """Return why no bottleneck is named."""
    little = next((one for one in result.labels if one.label == INSUFFICIENT and one.answer is Answer.PRESENT), None)
    return "none that this trace shows" if little is None else f"unknown, since {little.evidence}"


def _print_devices(console: Console, result: TraceResult) -> None:
    print_title(console, f"DEVICES, within {format_ms(result.window.span_ms)}")
    rows = []
    for device in result.devices:
        times = (device.kernel_busy_ms, device.memcpy_busy_ms, device.memset_busy_ms)
        shares = (format_share(device.busy_share), format_share(device.idle_share))
        rows.append((_format_device(device), *shares, *map(format_ms, times)))
    print_table(console, ("device", "busy", "idle", "kernels", "copies", "fills"), rows)
    for device in result.devices:
        if len(device.streams) > 1:
            said = ", ".join(f"{clean_line(one.stream, 20)} {format_ms(one.busy_ms)}" for one in device.streams[:_FEW])
            more = f", {len(device.streams) - _FEW} more" if len(device.streams) > _FEW else ""
            print_wrapped(console, f"streams of {_format_device(device)}: {said}{more}")
        if device.communication_ms:
            all_of_it, exposed = format_ms(device.communication_ms), format_ms(device.exposed_communication_ms)
            print_wrapped(console, f"communication {all_of_it}, {exposed} of it without concurrent computation")
    for found in result.transfers:
        kind = " ".join(part for part in (found.direction or "copies", found.host_memory) if part)
        speed = "" if found.bytes_per_s is None else f", {format_rate(found.bytes_per_s, 'B/s')}"
        moved = f"{format_count(found.count, 'copy', 'copies')}, {format_byte_count(found.bytes)}"
        print_wrapped(console, f"{kind}: {moved} in {format_ms(found.total_ms)}{speed}")


def _format_device(device: DevicePart) -> str:
    number = "" if device.device is None else f"{device.device} "
    return f"{number}{clean_line(device.name or 'unknown', _NAME)}"


def _print_parts(console: Console, result: TraceResult) -> None:
    host = result.host
    rows = []
    for part in Part:
        on_host, on_device = host.parts_ms.get(part), host.device_parts_ms.get(part)
        if on_host is None and on_device is None:
            continue
        known = on_host is not None and result.window.host_ms
        share = format_percent(100 * (on_host or 0.0) / result.window.host_ms) if known else "-"
        times = ["-" if time is None else format_ms(time) for time in (on_host, on_device)]
        rows.append((part, times[0], share, times[1]))
    if not rows:
        return
    print_title(console, "PARTS OF THE STEPS")
    print_table(console, ("part", "host", "of steps", "kernels"), rows)
    if host.collectives_ms and not result.devices:
        print_wrapped(console, f"collectives on the host: {format_ms(host.collectives_ms)}")


def _print_kernels(console: Console, result: TraceResult) -> None:
    print_title(console, "KERNELS")
    families = ", ".join(f"{one.family} {format_share(one.share)}" for one in result.families)
    print_wrapped(console, families)
    print_wrapped(console, "By kernel: time, share of the time in which kernels run, launches, median")
    for kernel in result.kernels[:_ROWS]:
        cores = " on tensor cores" if kernel.tensor_cores else ""
        said = f"{kernel.count:>7,}× {format_ms(kernel.median_us / 1e3):>8}  {kernel.family}{cores}"
        console.print(_format_figures(kernel.total_ms, kernel.busy_share, said))
        name = normalize_kernel_name(kernel.name).replace("at::native::", "")
        console.print(Text(f"{INDENT * 2}{clean_line(name, console.width - 2 * len(INDENT))}"))
    print_more(console, len(result.kernels), _ROWS)


def _print_operators(console: Console, result: TraceResult) -> None:
    known = result.attribution
    share = format_share(known.attributed_share)
    print_title(console, f"OPERATORS: {known.attributed:,} of {known.kernels:,} kernels, {share} of their time")
    for operator in result.operators[:_ROWS]:
        said = f"{format_count(operator.kernels, 'kernel'):>15}  {operator.part}"
        console.print(_format_figures(operator.total_ms, operator.share, said))
        inner, outer = clean_line(operator.inner, 2 * _NAME), clean_line(operator.outer, 2 * _NAME)
        print_wrapped(console, inner if inner == outer else f"{inner} in {outer}", INDENT * 2)
        if operator.site is not None:
            place = _format_place(operator.site, operator.sites, console.width - 2 * len(INDENT))
            console.print(Text(f"{INDENT * 2}{place}"))
    print_more(console, len(result.operators), _ROWS)


def print_advise_command(console: Console, train: bool) -> None:
    """Print the command that looks at the model itself."""
    print_wrapped(console, "Look for layout fixes in the model: `callable` returns the model and its inputs")
    print_command(console, build_advise_command(train))


def print_host_operators(console: Console, host: HostPart) -> None:
    """Print the operators of a trace without devices, by their own time. Prints nothing without such operators."""
    if not host.host_operators:
        return
    print_title(console, "OPERATORS ON THE HOST: time without the operators that they call, share, calls")
    for one in host.host_operators[:_ROWS]:
        console.print(_format_figures(one.self_ms, one.share, f"{one.calls:>7,}× {clean_line(one.name, _NAME)}"))
    print_more(console, len(host.host_operators), _ROWS)


def _format_figures(total_ms: float, share: float | None, said: str) -> Text:
    return Text(f"{INDENT}{format_ms(total_ms):>8} {format_share(share):>7} {said}")


def _format_place(site: SitePart, sites: int, limit: int) -> str:
    more = f" and {sites - 1} more" if sites > 1 else ""
    module = f" in {clean_line(site.module_path, _NAME)}" if site.module_path else ""
    return f"at {cut_path(f'{site.file}:{site.line}', limit - len(more) - len(module) - 3)}{module}{more}"


def _yield_launch_lines(found: LaunchPart) -> Iterator[str]:
    per_step = "" if found.kernel_count_per_step is None else f", {found.kernel_count_per_step:,.0f} a step"
    median = format_ms(found.median_cuda_kernel_duration_us / 1e3)
    yield f"{format_count(found.kernel_count, 'kernel')}{per_step}; median {median}; " + (
        f"{found.small_kernel_fraction:.1%} take less than 10 µs, {format_ms(found.small_kernel_ms)} together"
    )
    if found.starved_kernel_fraction is not None:
        yield f"{found.starved_kernel_fraction:.1%} were launched onto a stream that had run dry"
    if found.launch_call_ms is not None and found.median_launch_call_us is not None:
        calls = f"{format_count(found.launch_calls, 'call')} that launched work: {format_ms(found.launch_call_ms)}"
        yield f"{calls}, median {format_ms(found.median_launch_call_us / 1e3)}"
    if found.median_gap_us is not None:
        gaps = f"{format_count(found.gaps, 'gap')} between work: {format_ms(found.gap_ms)}"
        yield f"{gaps}, median {format_ms(found.median_gap_us / 1e3)}"


def _yield_idle_lines(result: TraceResult) -> Iterator[str]:
    """Yield what the host does while devices are idle, apart from waits for input."""
    works = result.host.idle_host_work_ms
    for work, time_ms in works.items():
        yield f"{format_ms(time_ms)} {format_share(time_ms / sum(works.values()))}: {HOST_WORK_TEXTS[work]}"


def _print_waits(console: Console, result: TraceResult) -> None:
    host = result.host
    if host.sync_wait_ms is None:
        return
    print_title(console, "WAITS FOR DEVICES, and long calls of the runtime")
    print_wrapped(console, f"waiting {format_ms(host.sync_wait_ms)}, {format_share(host.sync_wait_share)} of the steps")
    for wait in host.waits[:_FEW]:
        asked = "" if wait.asked_by is None else f" in {clean_line(wait.asked_by, _NAME)}"
        call = f"{clean_line(wait.call, _NAME)}{asked}{_format_site(wait.site, ', ')}"
        print_wrapped(console, f"{call}: {wait.count:,}×, {format_ms(wait.total_ms)}")
    if host.allocation_ms:
        print_wrapped(console, f"allocating and freeing: {format_ms(host.allocation_ms)}")
    longest = ", ".join(
        f"{clean_line(call.name, _NAME)} {format_ms(call.total_ms)} ({call.count:,}×)" for call in host.calls[:_FEW]
    )
    if longest:
        print_wrapped(console, f"longest calls: {longest}")


def _format_site(site: SitePart | None, before: str) -> str:
    return "" if site is None else f"{before}{cut_path(f'{site.file}:{site.line}', 40)}"


def describe_conversion(work: LayoutPart, name_limit: int, place: str = "") -> str:
    """Describe the copies of one operator; `place` follows its name, which has at most `name_limit` characters."""
    copies = format_count(work.copies, "copy", "copies")
    moved = "of unknown size" if work.bytes is None else f"moving {format_byte_count(work.bytes)}"
    return f"{work.rule} {clean_line(work.operator, name_limit)}{place}: {copies} {moved}, {format_ms(work.total_ms)}"
