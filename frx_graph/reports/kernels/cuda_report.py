"""Render findings in CUDA source for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from frx_graph.reports.kernels.cuda_document import (
    ArrayPart,
    CudaResult,
    KernelPart,
    LaunchPart,
    NotExaminedPart,
    ResidencyPart,
    RulePart,
)
from frx_graph.reports.render.quantities import format_count
from frx_graph.reports.render.recommendation_text import ARROWS
from frx_graph.reports.render.source_path import cut_path
from frx_graph.reports.render.text_console import (
    INDENT,
    make_console,
    print_more,
    print_section,
    print_title,
    print_wrapped,
)
from frx_graph.rules.cuda_card import Severity
from frx_graph.support.plain_text import clean_line

_KERNELS = 10
_LAUNCHES = 10
_FINDINGS = 20


def render_cuda(result: CudaResult, *, top: int, width: int, color: bool) -> str:
    """Render kernels and launches, findings by severity, and `top` rules in full."""
    out, console = make_console(width, color, soft_wrap=True)
    console.print(Text.assemble(("SOURCE VERDICT", "bold"), f"  {cut_path(result.source, width - 16)}"))
    said = f"{format_count(result.kernel_count, 'kernel')}, {format_count(result.launch_count, 'launch', 'launches')}"
    if result.gpu_model is not None:
        said += f", judged for {result.gpu_model}"
    if result.headers:
        said += f", read with {format_count(len(result.headers), 'header')}"
    understood = f"{result.parse_coverage:.1%} of {result.bytes:,} bytes understood"
    print_wrapped(console, f"{said}; {understood}")
    by_severity = {level: [one for one in result.findings if one.severity is level] for level in Severity}
    counts = ", ".join(f"{len(found)} {severity.value}" for severity, found in by_severity.items())
    print_wrapped(console, f"Findings: {counts}. Read from the source alone, nothing was measured")
    for severity, found in by_severity.items():
        if found:
            print_title(console, severity.value.upper())
        for finding in found[:_FINDINGS]:
            print_wrapped(console, f"line {finding.line}: {finding.rule}, {clean_line(finding.kernel, 60)}")
            print_wrapped(console, finding.message, INDENT * 2)
        print_more(console, len(found), _FINDINGS)
    if result.kernels:
        print_title(console, "KERNELS")
    for kernel in result.kernels[:_KERNELS]:
        _print_kernel(console, kernel)
    print_more(console, result.kernel_count, _KERNELS, "kernels")
    # Launches with details first.
    launches = sorted(result.launches, key=lambda one: (one.suggestion is None, not one.residency, one.line))
    print_section(console, "LAUNCHES", map(_format_launch, launches[:_LAUNCHES]))
    print_more(console, len(launches), _LAUNCHES, "launches")
    print_section(console, "NOT EXAMINED", map(_format_not_examined, result.not_examined))
    if result.rules:
        print_title(console, "WHAT TO DO")
        for number, rule in enumerate(result.rules[:top], start=1):
            _print_rule(console, number, rule)
    return out.getvalue()


def _print_kernel(console: Console, kernel: KernelPart) -> None:
    bounds = "" if kernel.launch_bounds is None else f", launch bounds {kernel.launch_bounds}"
    partly = "" if kernel.complete else ", partly understood"
    print_wrapped(console, f"line {kernel.line}: {clean_line(kernel.name, 100)}{bounds}{partly}")
    counts = Counter(access.stride_kind.value for access in kernel.accesses if access.space == "global")
    if counts:
        parts = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        print_wrapped(console, f"global accesses: {parts}", INDENT * 2)
    shared = [array for array in kernel.arrays if array.space == "shared"]
    if shared:
        sizes = [f"{clean_line(one.name, 40)} {_format_size(one)}" for one in shared]
        barriers = format_count(len(kernel.barriers), "barrier")
        print_wrapped(console, f"shared memory: {', '.join(sizes)}; {barriers}", INDENT * 2)


def _format_size(array: ArrayPart) -> str:
    known = "of unknown size" if array.bytes is None else f"{array.bytes:,} bytes"
    return "sized by the launch" if array.dynamic else known


def _format_launch(launch: LaunchPart) -> str:
    sizes = f"{clean_line(launch.grid, 30)}, {clean_line(launch.block, 30)}"
    said = f"line {launch.line}: {clean_line(launch.kernel, 60)}<<<{sizes}>>>"
    if launch.threads is None:
        return f"{said}: the block's size is not a number in the source"
    said += f": {format_count(launch.threads, 'thread')} a block"
    if launch.residency:
        said += f", occupancy at most {_format_occupancy(launch.residency)}"
    return f"{said}; {launch.suggestion}" if launch.suggestion else said


def _format_not_examined(part: NotExaminedPart) -> str:
    examples = ", ".join(clean_line(text, 60) for text in part.examples)
    more = ", ..." if part.count > len(part.examples) else ""
    return f"{part.kind}, {part.count:,}: {part.consequence} ({examples}{more})"


def _format_occupancy(residency: Sequence[ResidencyPart]) -> str:
    """Describe the occupancy on one GPU in full; of several, the least and the most."""
    if len(residency) == 1:
        (only,) = residency
        blocks = format_count(only.blocks_per_sm, "block")
        limiter = "" if only.limiter is None else f", {blocks} by {only.limiter.value}"
        waves = "" if only.waves is None else f", {only.waves:.2g} waves"
        return f"{only.occupancy:.0%} on {only.gpu}{limiter}{waves}"
    least = min(residency, key=lambda one: one.occupancy)
    most = max(residency, key=lambda one: one.occupancy)
    if least.occupancy == most.occupancy:
        return f"{most.occupancy:.0%} on every capability"
    return f"{least.occupancy:.0%} on {least.gpu} to {most.occupancy:.0%} on {most.gpu}"


def _print_rule(console: Console, number: int, rule: RulePart) -> None:
    console.print(Text(f"{number}. [{rule.severity.value.upper()}] {rule.title}", "bold"))
    print_wrapped(console, f"Why: {rule.why}")
    print_wrapped(console, f"Fix: {rule.fix}")
    for action in rule.actions:
        print_wrapped(console, f"- {action}")
    arrow = ARROWS[rule.confirm.direction]
    target = "" if rule.confirm.threshold is None else f" (target: {rule.confirm.threshold:g})"
    print_wrapped(console, f"Confirm: {arrow} {rule.confirm.metric}: {rule.confirm.expected}{target}")
    print_wrapped(console, f"{format_count(rule.findings, 'finding')} of {rule.id}")
