"""Analyses for programs: each takes text or paths and returns the document that the command line prints as JSON.

They import no torch. Every function raises `EvidenceError` for input that cannot be read.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frx_graph.analyze.cuda_source import analyze_cuda
from frx_graph.analyze.layers import read_layers
from frx_graph.analyze.nsight_compute import analyze_ncu
from frx_graph.analyze.ptx import analyze_ptx
from frx_graph.analyze.run import analyze_bundle, analyze_files
from frx_graph.analyze.trace import analyze_run
from frx_graph.analyzers.comparison.comparison import compare_layers
from frx_graph.analyzers.reconcile.reconciliation import reconcile
from frx_graph.errors import EvidenceError
from frx_graph.evidence.run import bundle_layout
from frx_graph.evidence.run.bundle import open_bundle
from frx_graph.reports.kernels.compare_document import CompareResult, build_compare_document
from frx_graph.reports.kernels.compare_text import NextCommand
from frx_graph.reports.kernels.cuda_document import CudaResult, build_cuda_document
from frx_graph.reports.kernels.explain_document import ExplainDocument, explain_ncu
from frx_graph.reports.kernels.kernel_document import NcuResult, build_ncu_document
from frx_graph.reports.kernels.ptx_document import PtxResult, build_ptx_document
from frx_graph.reports.kernels.reconcile_document import MissingEvidencePart, ReconcileResult, build_reconcile_document
from frx_graph.reports.runs.run_document import RunResult
from frx_graph.reports.runs.trace_document import TraceResult, build_trace_document
from frx_graph.rules.gpu_profile import require_cuda_gpu


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence about one program, as text; None: not there."""

    cuda_source: str | None = None
    ptx_text: str | None = None
    ncu_csv: str | None = None
    trace_text: str | None = None
    """A trace of torch.profiler, as JSON."""


def analyze_ptx_text(ptx_text: str, *, gpu_model: str | None = None) -> PtxResult:
    """Analyse PTX; ptxas reports registers and spills if it is installed. `gpu_model` replaces the file's target."""
    with _write_files({"kernel.ptx": ptx_text}) as (path,):
        return build_ptx_document(*analyze_ptx(path, require_cuda_gpu(gpu_model))).result


def analyze_ncu_csv_text(csv_text: str, *, gpu_model: str | None = None) -> NcuResult:
    """Analyse an export of Nsight Compute. `gpu_model` replaces the device that it names."""
    with _write_files({"report.csv": csv_text}) as (path,):
        return build_ncu_document(*analyze_ncu(path, require_cuda_gpu(gpu_model))).result


def inspect_cuda_source(cuda_source: str, *, gpu_model: str | None = None) -> CudaResult:
    """Find problems in CUDA source, for `gpu_model` or for any GPU."""
    with _write_files({"kernel.cu": cuda_source}) as (path,):
        return build_cuda_document(*analyze_cuda(path, require_cuda_gpu(gpu_model))).result


def analyze_trace_file(path: Path) -> TraceResult:
    """Analyse a trace of torch.profiler."""
    found = analyze_run(path)
    return build_trace_document(found.trace, found.run, found.findings, Path.cwd()).result


def summarize_run(path: Path) -> RunResult:
    """Analyse the bundle of a run, a folder or a zip: all its steps, and its steady state."""
    return analyze_bundle(path).document.result


def summarize_run_with_steady_state(events: Iterable[Mapping[str, Any]]) -> RunResult:
    """Analyse the events of a run, in the order of writing, as `raw/trace.jsonl` has them: one mapping a line."""
    lines = "".join(json.dumps(dict(event)) + "\n" for event in events)
    with tempfile.TemporaryDirectory(prefix="frx-graph-") as folder:
        file = Path(folder) / "run" / bundle_layout.EVENTS
        file.parent.mkdir(parents=True)
        file.write_text(lines, encoding="utf-8")
        with open_bundle(Path(folder) / "run") as bundle:
            return analyze_files(bundle).result


def compare_evidence(
    a: Evidence, b: Evidence, *, labels: tuple[str, str] = ("a", "b"), gpu_model: str | None = None
) -> CompareResult:
    """Compare two programs by their source, PTX and counters."""
    gpu = require_cuda_gpu(gpu_model)
    with _write_evidence(a) as paths_a, _write_evidence(b) as paths_b:
        found = compare_layers(read_layers(paths_a, gpu), read_layers(paths_b, gpu), *labels)
    return build_compare_document(found, NextCommand(["frx", "compare"], for_ptx=(), for_gpu=(), for_ncu=())).result


def reconcile_evidence(evidence: Evidence, *, gpu_model: str | None = None) -> ReconcileResult:
    """Diagnose a program's kernels from all evidence together."""
    with _write_evidence(evidence) as paths:
        layers = read_layers(paths, require_cuda_gpu(gpu_model))
    return build_reconcile_document(layers, reconcile(layers)).result


def what_evidence_is_missing(evidence: Evidence, *, gpu_model: str | None = None) -> tuple[MissingEvidencePart, ...]:
    """Return the measurements that would confirm or refute the diagnoses of `reconcile_evidence`."""
    return reconcile_evidence(evidence, gpu_model=gpu_model).missing_evidence


def build_explain_result(ncu: NcuResult) -> ExplainDocument:
    """Return the brief of an export: diagnosis, metrics, kernels, advice and gaps."""
    return explain_ncu(ncu)


@contextmanager
def _write_evidence(evidence: Evidence) -> Iterator[tuple[Path, ...]]:
    files = {
        "kernel.cu": evidence.cuda_source,
        "kernel.ptx": evidence.ptx_text,
        "report.csv": evidence.ncu_csv,
        "trace.json": evidence.trace_text,
    }
    known = {name: text for name, text in files.items() if text is not None}
    if not known:
        raise EvidenceError("there is no evidence", "give one of cuda_source, ptx_text, ncu_csv and trace_text")
    with _write_files(known) as paths:
        yield paths


@contextmanager
def _write_files(texts: Mapping[str, str]) -> Iterator[tuple[Path, ...]]:
    """Write texts to files while the block runs: readers find the kind of a file by its name and content."""
    with tempfile.TemporaryDirectory(prefix="frx-graph-") as folder:
        paths = tuple(Path(folder) / name for name in texts)
        for path, text in zip(paths, texts.values(), strict=True):
            path.write_text(text, encoding="utf-8")
        yield paths
