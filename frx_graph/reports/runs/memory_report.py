"""Render a snapshot of CUDA's caching allocator for a terminal."""

from __future__ import annotations

from rich.text import Text

from frx_graph.reports.render.quantities import format_byte_count, format_count
from frx_graph.reports.render.source_path import cut_path
from frx_graph.reports.render.text_console import (
    INDENT,
    make_console,
    print_more,
    print_section,
    print_title,
    print_wrapped,
)
from frx_graph.reports.runs.memory_document import DeviceMemoryPart, MemoryResult
from frx_graph.support.plain_text import clean_line

_KEY = 20


def render_memory(result: MemoryResult, *, top: int, width: int, color: bool) -> str:
    """Render the verdict, the memory of each device, and the lines that hold most, at most `top` of each."""
    out, console = make_console(width, color, soft_wrap=True)
    console.print(Text.assemble(("MEMORY VERDICT", "bold"), f"  {cut_path(result.source, width - 16)}"))
    for finding in result.findings[:top]:
        console.print(
            Text(f"{INDENT}[{finding.severity.upper()}] {finding.kind.value}, device {finding.device}", "bold")
        )
        print_wrapped(console, finding.evidence, INDENT * 2)
    if not result.findings:
        print_wrapped(console, "no problem that this snapshot shows")
    if result.unreadable:
        print_wrapped(console, f"left out: {format_count(result.unreadable, 'entry', 'entries')} that cannot be read")
    for device in result.devices[:top]:
        print_title(console, f"DEVICE {device.device}")
        for key, value in _describe_device(device):
            console.print(Text(f"{INDENT}{key:<{_KEY}}{value}"))
    if len(result.devices) > top:
        console.print()
        print_more(console, len(result.devices), top, "devices")
    sites = (
        f"{clean_line(one.file, 200)}:{one.line} in {clean_line(one.function, 60)}: holds "
        f"{format_byte_count(one.live_bytes)} in {format_count(one.live_blocks, 'block')}; allocated "
        f"{format_byte_count(one.allocated_bytes)} in {format_count(one.allocations, 'call')}"
        for one in result.sites[:top]
    )
    print_section(console, "LINES THAT HOLD MOST", sites)
    print_section(
        console,
        "NEXT STEPS",
        (f"{number}. {one.fix}" for number, one in enumerate(result.findings[:top], start=1)),
    )
    return out.getvalue()


def _describe_device(device: DeviceMemoryPart) -> tuple[tuple[str, str], ...]:
    calls = "none: torch.cuda.memory._record_memory_history()"
    if device.allocations is not None and device.calls_to_cuda is not None:
        calls = (
            f"{format_count(device.allocations, 'allocation')}, {format_count(device.calls_to_cuda, 'call')} to CUDA"
        )
    kind = ", expandable" if device.expandable else ""
    return (
        ("reserved", f"{format_byte_count(device.reserved_bytes)} in {format_count(device.segments, 'segment')}{kind}"),
        ("in use", format_byte_count(device.allocated_bytes)),
        ("awaiting streams", format_byte_count(device.awaiting_free_bytes)),
        ("free", f"{format_byte_count(device.free_bytes)}, largest {format_byte_count(device.largest_free_bytes)}"),
        ("history", calls),
    )
