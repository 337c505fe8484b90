"""Render the page of one result, in a worker like the analysis, since names in files are untrusted."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from frx_graph.advice import Advice
from frx_graph.analyzers.kernels.recommendations import get_label_title
from frx_graph.analyzers.run.steps import Scope
from frx_graph.reports.advice.html import NARROW, WIDE, build_context
from frx_graph.reports.advice.wording import load_cards
from frx_graph.reports.kernels.compare_document import CompareResult
from frx_graph.reports.kernels.cuda_document import CudaDocument
from frx_graph.reports.kernels.kernel_document import NcuDocument, NcuResult
from frx_graph.reports.kernels.ptx_document import PtxDocument
from frx_graph.reports.render.quantities import format_count
from frx_graph.reports.runs.run_document import RunDocument
from frx_graph.reports.runs.trace_document import TraceDocument
from frx_graph.service.page_environment import get_page_environment
from frx_graph.service.plots import draw_kernel_roofline

_NOTHING = "No bottleneck shows in this evidence."
_WINNERS = {"a": "A is better", "b": "B is better", "tie": "Neither is better"}


def render_result(document: BaseModel | Advice) -> str:
    """Render the page of a result."""
    name, context = _choose_page(document)
    return get_page_environment().get_template(f"{name}.html.j2").render(context)


def _choose_page(document: BaseModel | Advice) -> tuple[str, dict[str, object]]:
    match document:
        case Advice():
            return "advice", build_context(document, None, Path("/"), load_cards())
        case TraceDocument():
            result = document.result
            return "trace", {"result": result, "outcome": _describe_bottleneck(result.primary_bottleneck)}
        case RunDocument():
            scope = document.result.get_scope(Scope.AUTO)
            outcome = _describe_bottleneck(scope.diagnosis.user_facing_bottleneck)
            return "run", {"result": document.result, "scope": scope, "outcome": outcome}
        case NcuDocument():
            return "ncu", _make_ncu_context(document.result)
        case PtxDocument():
            outcome = _describe_bottleneck(document.result.primary_bottleneck)
            return "ptx", {"result": document.result, "outcome": outcome}
        case CudaDocument():
            found = document.result
            counted = format_count(len(found.findings), "finding")
            outcome = f"{counted}, from the source alone." if found.findings else _NOTHING
            return "cuda", {"result": found, "rules": {rule.id: rule for rule in found.rules}, "outcome": outcome}
        case CompareResult():
            verdict = document.verdict
            better = _WINNERS.get(verdict.overall_winner, "It is not known which is better")
            return "compare", {"result": document, "outcome": f"{better}, by {verdict.basis}."}
        case _:
            raise AssertionError(f"no page for {type(document).__name__}")


def _make_ncu_context(result: NcuResult) -> dict[str, object]:
    kernels = list(zip(result.kernel_attribution.top_opportunities, result.kernels, strict=True))
    plots = draw_kernel_roofline(result.kernels, WIDE, 420.0), draw_kernel_roofline(result.kernels, NARROW, 320.0)
    outcome = _describe_bottleneck(result.primary_bottleneck)
    return {"result": result, "kernels": kernels, "plots": plots, "outcome": outcome}


def _describe_bottleneck(label: str | None) -> str:
    return _NOTHING if label is None else f"{get_label_title(label)}."
