"""Read and analyse a profiler's trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from frx_graph.analyzers.layers import TraceLayer
from frx_graph.analyzers.timeline.analysis import analyze_timeline
from frx_graph.analyzers.trace.analysis import prepare_trace
from frx_graph.analyzers.trace.findings import find_layout_copies
from frx_graph.evidence.trace.reading import read_trace
from frx_graph.evidence.trace.torch_trace import TorchTrace
from frx_graph.passes.severity import rank_findings
from frx_graph.records import Finding
from frx_graph.support.garbage_collection import pause_gc


@dataclass(frozen=True)
class TraceEvidence(TraceLayer):
    """A trace and its analysis. `findings` are the ranked findings on layout copies."""

    findings: tuple[Finding, ...]


def analyze_run(path: Path) -> TraceEvidence:
    """Analyse the trace at `path`. Raises `EvidenceError` if the file is not such a trace."""
    return analyze_parsed_trace(read_trace(path))


def analyze_parsed_trace(trace: TorchTrace) -> TraceEvidence:
    """Analyse a trace that has been read."""
    with pause_gc():
        analysis = prepare_trace(trace)
        findings = find_layout_copies(analysis)
        return TraceEvidence(analysis, analyze_timeline(analysis, findings), tuple(rank_findings(findings)))
