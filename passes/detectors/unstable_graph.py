"""Finds frames that are compiled again and again, and graph breaks that a step runs into many times.

Assumes: three recompilations for other reasons than strides are not a start-up effect. Dynamo makes a size or a number
dynamic when it first sees it change, which explains one or two. Strides are FRX006's. Reuse of autotuning results is
not visible here.
"""

from __future__ import annotations

from collections.abc import Iterable

from frx_graph.capture.captured_graph import GraphBreak
from frx_graph.capture.dynamo_events import shorten_reason
from frx_graph.evidence.recompile_reason import RecompileCause
from frx_graph.passes import confidence
from frx_graph.passes.analysis import Analysis, Detector
from frx_graph.passes.recompile_findings import FEWEST, RULE, build_instability_finding, is_limit_message
from frx_graph.passes.recompiles import find_first_site, get_recompile_limit, list_frame_breaks, list_frame_recompiles
from frx_graph.records import Basis, Effort, Evidence, Finding, Refusal, Risk, Saving, Severity


def detect(analysis: Analysis) -> Iterable[Finding | Refusal]:
    """Yield one finding for an unstable frame, and one for each graph break that a step meets more than once."""
    reasons = list_frame_recompiles(analysis)
    others = [reason for reason in reasons if reason.cause is not RecompileCause.STRIDE]
    limit = len(reasons) + 1 >= get_recompile_limit() or any(is_limit_message(reason.text) for reason in reasons)
    if len(others) >= FEWEST or (limit and others):
        site = next((reason.site for reason in others if reason.site is not None), None)
        yield build_instability_finding(
            others, site or find_first_site(analysis.facts), versions=len(reasons) + 1, limit=limit
        )
    for graph_break in list_frame_breaks(analysis):
        if analysis.facts.calls > 1 or is_limit_message(graph_break.reason):
            yield _build_break_finding(analysis, graph_break)


def _build_break_finding(analysis: Analysis, graph_break: GraphBreak) -> Finding:
    calls = analysis.facts.calls
    return Finding(
        rule=RULE,
        title=f"A graph break that a step runs into {calls} times: {shorten_reason(graph_break.reason)}",
        severity=Severity.MEDIUM,
        site=graph_break.site,
        nodes=(),
        count_per_step=calls,
        bytes_per_step=None,
        saving=Saving(),
        effort=Effort.LOCAL,
        risk=Risk.LOW,
        fix="move what breaks the graph out of the compiled code, or behind a torch operator that Dynamo can trace",
        confidence=confidence.MEASURED,
        basis=Basis.OBSERVED,
        evidence=(Evidence(graph_break.reason.strip(), "Dynamo graph break", Basis.OBSERVED),),
    )


DETECTOR = Detector(RULE, "unstable_graph", detect)
