"""Render findings in CUDA source for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from frx_graph.reports.kernels.cuda_document import CudaResult, KernelPart, LaunchPart, ResidencyPart, RulePart
from frx_graph.reports.render.quantities import format_count
from frx_graph.reports.render.source_path import cut_path
from frx_graph.reports.render.text_console import INDENT, make_console, print_more, print_title, print_wrapped
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
    understood = f"{result.parse_coverage:.1%} of {result.bytes:,} bytes understood"
    print_wrapped(console, f"{said}; {understood}")
    if result.unread_kernels:
        names = ", ".join(clean_line(name, 60) for name in result.unread_kernels[:_KERNELS])
        print_wrapped(console, f"Not understood, and not analysed: {names}")
    print_wrapped(console, _count_severities(result))
    for severity in Severity:
        _print_findings(console, result, severity)
    if result.kernels:
        print_title(console, "KERNELS")
    for kernel in result.kernels[:_KERNELS]:
        _print_kernel(console, kernel)
    print_more(console, result.kernel_count, _KERNELS, "kernels")
    _print_launches(console, result)
    if result.rules:
        print_title(console, "WHAT TO DO")
        for number, rule in enumerate(result.rules[:top], start=1):
            _print_rule(console, number, rule)
    return out.getvalue()


def _count_severities(result: CudaResult) -> str:
    counts = [
        f"{sum(finding.severity is severity for finding in result.findings)} {severity.value}" for severity in Severity
    ]
    return f"Findings: {', '.join(counts)}. Read from the source alone, nothing was measured"


def _print_findings(console: Console, result: CudaResult, severity: Severity) -> None:
    found = [finding for finding in result.findings if finding.severity is severity]
    if not found:
        return
    print_title(console, severity.value.upper())
    for finding in found[:_FINDINGS]:
        head = f"line {finding.line}: {finding.rule}, {clean_line(finding.kernel, 60)}"
        print_wrapped(console, head)
        print_wrapped(console, finding.message, INDENT * 2)
    print_more(console, len(found), _FINDINGS)


def _print_kernel(console: Console, kernel: KernelPart) -> None:
    bounds = "" if kernel.launch_bounds is None else f", launch bounds {kernel.launch_bounds}"
    partly = "" if kernel.complete else ", partly understood"
    print_wrapped(console, f"line {kernel.line}: {clean_line(kernel.name, 100)}{bounds}{partly}")
    counts: dict[str, int] = {}
    for access in kernel.accesses:
        if access.space == "global":
            counts[access.stride_kind.value] = counts.get(access.stride_kind.value, 0) + 1
    parts = [f"{count} {kind}" for kind, count in counts.items()]
    if parts:
        print_wrapped(console, f"global accesses: {', '.join(parts)}", INDENT * 2)
    shared = [array for array in kernel.arrays if array.space == "shared"]
    if shared:
        sizes = [
            f"{clean_line(one.name, 40)} {'sized by the launch' if one.dynamic else _format_bytes(one.bytes)}"
            for one in shared
        ]
        barriers = format_count(len(kernel.barriers), "barrier")
        print_wrapped(console, f"shared memory: {', '.join(sizes)}; {barriers}", INDENT * 2)


def _format_bytes(size: int | None) -> str:
    return "of unknown size" if size is None else f"{size:,} bytes"


def _print_launches(console: Console, result: CudaResult) -> None:
    if not result.launches:
        return
    print_title(console, "LAUNCHES")
    # Launches with details first.
    order = sorted(result.launches, key=lambda one: (one.suggestion is None, not one.residency, one.line))
    for launch in order[:_LAUNCHES]:
        print_wrapped(console, _format_launch(launch))
    print_more(console, len(order), _LAUNCHES, "launches")


def _format_launch(launch: LaunchPart) -> str:
    sizes = f"{clean_line(launch.grid, 30)}, {clean_line(launch.block, 30)}"
    said = f"line {launch.line}: {clean_line(launch.kernel, 60)}<<<{sizes}>>>"
    if launch.threads is None:
        return f"{said}: the block's size is not a number in the source"
    said += f": {format_count(launch.threads, 'thread')} a block"
    if launch.residency:
        said += f", occupancy at most {_format_occupancy(launch.residency)}"
    return f"{said}; {launch.suggestion}" if launch.suggestion else said


def _format_occupancy(residency: Sequence[ResidencyPart]) -> str:
    """Describe the occupancy on one GPU in full; of several, the least and the most."""
    if len(residency) == 1:
        (only,) = residency
        limiter = (
            "" if only.limiter is None else f", {format_count(only.blocks_per_sm, 'block')} by {only.limiter.value}"
        )
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
    arrow = {"decrease": "<--", "increase": "-->", "stable": "---"}[rule.confirm.direction.value]
    target = "" if rule.confirm.threshold is None else f" (target: {rule.confirm.threshold:g})"
    print_wrapped(console, f"Confirm: {arrow} {rule.confirm.metric}: {rule.confirm.expected}{target}")
    print_wrapped(console, f"{format_count(rule.findings, 'finding')} of {rule.id}")
