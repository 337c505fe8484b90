"""Advice on a run that was only seen through a profiler trace: what held it back, kernels, copies, waits, layouts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from frx_graph.analyzers.timeline.analysis import RunAnalysis, analyse_run
from frx_graph.analyzers.trace.analysis import TraceAnalysis, analyse_trace
from frx_graph.analyzers.trace.findings import copy_findings
from frx_graph.evidence.trace.torch_trace import TorchTrace, read_torch_trace
from frx_graph.passes.severity import rank
from frx_graph.records import Finding
from frx_graph.support.gc_paused import uncollected


@dataclass(frozen=True)
class TraceEvidence:
    """A trace that was read, and what it says. `findings` are those on layout copies, ranked."""

    trace: TraceAnalysis
    run: RunAnalysis
    findings: tuple[Finding, ...]


def analyze_run(path: Path) -> TraceEvidence:
    """What the trace at `path` says of the run. Raises `EvidenceError` for a file that is no such trace."""
    return evidence_of(read_torch_trace(path))


def evidence_of(trace: TorchTrace) -> TraceEvidence:
    """The same of a trace that was read."""
    with uncollected():
        analysis = analyse_trace(trace)
        findings = copy_findings(analysis)
        return TraceEvidence(analysis, analyse_run(analysis, findings), tuple(rank(findings)))
