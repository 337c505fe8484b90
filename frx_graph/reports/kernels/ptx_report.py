"""Render findings in a PTX file for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from frx_graph.evidence.ptx.instruction import Kind
from frx_graph.reports.kernels.ptx_document import PtxKernelPart, PtxResult
from frx_graph.reports.render.quantities import format_count
from frx_graph.reports.render.recommendation_text import print_recommendations
from frx_graph.reports.render.source_path import cut_path
from frx_graph.reports.render.text_console import INDENT, make_console, print_more, print_wrapped
from frx_graph.support.plain_text import clean_line

_KERNELS = 10
_KINDS = 6
"""Entries of a mix that are shown, most frequent first."""


def render_ptx(result: PtxResult, *, top: int, width: int, color: bool) -> str:
    """Render instructions and risks of the kernels, and `top` recommendations."""
    out, console = make_console(width, color, soft_wrap=True)
    console.print(Text.assemble(("STATIC VERDICT", "bold"), f"  {cut_path(result.source, width - 16)}"))
    kernels = format_count(result.kernel_count, "kernel")
    print_wrapped(console, f"{kernels}, PTX {result.version} for {result.target}")
    if result.not_assembled_because is not None:
        print_wrapped(console, f"Virtual registers only, low confidence: {result.not_assembled_because}")
    if result.assembled_for is not None:
        print_wrapped(
            console,
            f"This ptxas has dropped {clean_line(result.target, 40)}. Registers and spills are for "
            f"{result.assembled_for}, the oldest architecture that it knows",
        )
    _print_gpu(console, result)
    print_wrapped(console, f"Primary risk: {result.primary_bottleneck or 'none'}")
    for risk in result.bottlenecks:
        console.print(Text(f"{INDENT}{risk.label:<30} score {risk.score:.2f}, confidence {risk.confidence:.2f}"))
        for evidence, name in zip(risk.evidence, risk.kernels, strict=True):
            print_wrapped(console, f"{evidence}, {clean_line(name, 60)}", INDENT * 2)
    for kernel in result.kernels[:_KERNELS]:
        _print_kernel(console, kernel)
        found = (f"{one.kind} ({one.severity})" for one in result.findings if one.kernel == kernel.name)
        print_wrapped(console, f"findings: {', '.join(found)}")
    print_more(console, result.kernel_count, _KERNELS, "kernels")
    print_recommendations(console, result.recommendations, top)
    return out.getvalue()


def _print_gpu(console: Console, result: PtxResult) -> None:
    gpu = result.gpu
    if gpu is None:
        print_wrapped(console, f"{clean_line(result.target, 60)} is not listed, so the limits of such GPUs are unknown")
        return
    instead = f", instead of {clean_line(result.target, 40)}" if gpu.target not in result.target.split(",") else ""
    full = f"full occupancy up to {gpu.full_occupancy_registers} registers a thread"
    print_wrapped(console, f"{gpu.name}, known by {gpu.known_by}{instead}: {full} ({gpu.limits_source})")
    has = ", ".join(gpu.features) or "neither cp.async nor mbarrier, TMA, or wgmma"
    lacks = ", ".join(gpu.missing_features)
    print_wrapped(console, f"it has {has}{lacks and f'; {lacks} needs a target such as {gpu.target}a'}")


def _print_kernel(console: Console, kernel: PtxKernelPart) -> None:
    console.print()
    console.print(Text(clean_line(kernel.name, console.width - 1), "bold"))
    print_wrapped(console, _format_mix(kernel.instruction_count, kernel.instruction_mix))
    if kernel.physical_registers is None:
        print_wrapped(console, f"{kernel.register_count} virtual registers; spills: not known")
    else:
        spilled = (kernel.spill_stores or 0) + (kernel.spill_loads or 0)
        spills = f"{spilled} bytes of spills" if spilled else "no spills"
        pct = kernel.register_occupancy_pct
        allow = "" if pct is None else f"; registers allow {pct:.1f} % occupancy"
        print_wrapped(console, f"{kernel.physical_registers} registers, {spills} (ptxas){allow}")
    for loop in kernel.loops:
        if loop.innermost:
            mix = _format_mix(loop.instructions, loop.instruction_mix)
            print_wrapped(console, f"loop at line {loop.line}: {mix}")


def _format_mix(instructions: int, mix: dict[Kind, int]) -> str:
    most = sorted(mix.items(), key=lambda item: -item[1])[:_KINDS]
    kinds = ", ".join(f"{kind.value} {count}" for kind, count in most)
    return f"{format_count(instructions, 'instruction')}: {kinds}"
