"""Render diagnoses from several layers of evidence for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from frx_graph.analyzers.reconcile.reconciliation import Why
from frx_graph.analyzers.reconcile.signal import Layer
from frx_graph.reports.kernels.reconcile_document import (
    MissingEvidencePart,
    ReconciledDiagnosisPart,
    ReconcileResult,
    UnreconciledPart,
)
from frx_graph.reports.render.quantities import format_count, format_percent
from frx_graph.reports.render.source_path import cut_path
from frx_graph.reports.render.text_console import (
    INDENT,
    make_console,
    print_command,
    print_more,
    print_title,
    print_wrapped,
)
from frx_graph.support.plain_text import clean_line

_NAME = 70
_UNRECONCILED = 20
_WHY = {
    Why.REFUTED: "refuted",
    Why.DISPUTED: "layers disagree",
    Why.SYMPTOM: "a symptom",
    Why.ONE_LAYER: "one layer alone",
}


def render_reconciliation(result: ReconcileResult, *, top: int, width: int, color: bool) -> str:
    """Render layers, `top` diagnoses with their evidence, unreconciled findings, and missing evidence."""
    out, console = make_console(width, color, soft_wrap=True)
    console.print(Text("RECONCILIATION", "bold"))
    for layer in Layer:
        said = cut_path(result.files[layer], width - 14) if layer in result.files else "not at hand"
        console.print(Text(f"{INDENT}{layer.value:<9} {said}"))
    matched = sum(len(kernel.names) > 1 for kernel in result.kernels)
    kernels = format_count(len(result.kernels), "kernel")
    print_wrapped(console, f"{kernels}, {matched} of them in more than one layer")
    for kernel in result.kernels:
        if kernel.overloaded:
            name = clean_line(kernel.name, _NAME)
            print_wrapped(console, f"{name} names several kernels of the source: not matched")
    print_diagnoses(console, "DIAGNOSES", result.diagnoses, top)
    _print_unreconciled(console, result.unreconciled)
    shown = {(one.diagnosis, one.kernel) for one in result.diagnoses[:top]}
    print_missing_evidence(console, result.missing_evidence, shown, top)
    return out.getvalue()


def print_diagnoses(console: Console, title: str, found: Sequence[ReconciledDiagnosisPart], top: int) -> None:
    """Print the first `top` diagnoses, with the evidence for and against each."""
    print_title(console, title)
    if not found:
        print_wrapped(console, "None that these layers show.")
    for number, one in enumerate(found[:top], start=1):
        console.print(Text(f"{number}. [{one.confidence.upper()}] {one.title}", "bold"))
        pct = one.runtime_share_pct
        share = "" if pct is None else f", {format_percent(pct)} of the time of kernels"
        print_wrapped(console, f"{one.diagnosis} in {clean_line(one.kernel, _NAME)}{share}")
        for mark, signals in (("+", one.agreeing), ("-", one.contradicting)):
            for signal in signals:
                line = "" if signal.line is None else f", line {signal.line}"
                print_wrapped(console, f"{mark} {signal.layer.value}{line} ({signal.grade}): {signal.evidence}")
    if len(found) > top:
        console.print(Text(f"{len(found) - top} more: --top {len(found)}"))


def _print_unreconciled(console: Console, found: Sequence[UnreconciledPart]) -> None:
    if not found:
        return
    print_title(console, "UNRECONCILED")
    for one in found[:_UNRECONCILED]:
        line = "" if one.line is None else f", line {one.line}"
        where = "the whole run" if one.kernel is None else clean_line(one.kernel, _NAME)
        print_wrapped(console, f"{one.layer.value}{line}: {one.label}, {where}")
        print_wrapped(console, one.evidence, INDENT * 2)
        reason = f"{_WHY[one.why]}: {one.reason}" if one.why is not Why.ONE_LAYER else one.reason
        print_wrapped(console, reason, INDENT * 2)
    print_more(console, len(found), _UNRECONCILED)


def print_missing_evidence(
    console: Console, found: Sequence[MissingEvidencePart], shown: set[tuple[str, str]], top: int
) -> None:
    """Print missing evidence for the `shown` diagnoses, and for diagnoses that it would establish."""
    wanted = [one for one in found if one.confidence is None or (one.diagnosis, one.kernel) in shown]
    if not wanted:
        return
    print_title(console, "MISSING EVIDENCE")
    for one in wanted[:top]:
        console.print(Text(f"{one.diagnosis}", "bold"))
        print_wrapped(console, clean_line(one.kernel, _NAME))
        now = one.confidence or "not told"
        print_wrapped(console, f"confidence: {now} -> {one.confidence_if_confirmed} if {one.layer.value} confirms it")
        print_wrapped(console, f"collect: {one.what}")
        if one.command is not None:
            print_command(console, one.command)
    for fallback in dict.fromkeys(one.fallback for one in wanted[:top] if one.fallback is not None):
        console.print(Text("Fallback:"))
        print_command(console, fallback)
    print_more(console, len(found), min(top, len(wanted)))
