"""Analyses for programs: each takes text or paths and returns the document that the command line prints as JSON.

They import no torch. Functions raise `EvidenceError` for input that cannot be read, and `OptionError` for a GPU that is
not known.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

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
from frx_graph.reports.render.document import Part
from frx_graph.reports.runs.run_document import RunResult
from frx_graph.reports.runs.trace_document import TraceResult, build_trace_document
from frx_graph.rules.gpu_profile import require_cuda_gpu

_Result = TypeVar("_Result", bound=Part)


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
    gpu = require_cuda_gpu(gpu_model)
    return _analyze(
        {"kernel.ptx": ptx_text}, lambda folder: build_ptx_document(*analyze_ptx(folder / "kernel.ptx", gpu)).result
    )


def analyze_ncu_csv_text(csv_text: str, *, gpu_model: str | None = None) -> NcuResult:
    """Analyse an export of Nsight Compute. `gpu_model` replaces the device that it names."""
    gpu = require_cuda_gpu(gpu_model)
    return _analyze(
        {"report.csv": csv_text}, lambda folder: build_ncu_document(*analyze_ncu(folder / "report.csv", gpu)).result
    )


def inspect_cuda_source(cuda_source: str, *, gpu_model: str | None = None) -> CudaResult:
    """Find problems in CUDA source, for `gpu_model` or for any GPU."""
    gpu = require_cuda_gpu(gpu_model)
    return _analyze(
        {"kernel.cu": cuda_source}, lambda folder: build_cuda_document(*analyze_cuda(folder / "kernel.cu", gpu)).result
    )


def analyze_trace_file(path: Path | str) -> TraceResult:
    """Analyse a trace of torch.profiler, or an export of Nsight Systems."""
    found = analyze_run(Path(path))
    return build_trace_document(found.trace, found.run, found.findings, Path.cwd()).result


def summarize_run(path: Path | str) -> RunResult:
    """Analyse the bundle of a run, a folder or a zip: all its steps, and its steady state."""
    return analyze_bundle(Path(path)).document.result


def summarize_run_with_steady_state(events: Iterable[Mapping[str, Any]]) -> RunResult:
    """Analyse the events of a run, in the order of writing, as `raw/trace.jsonl` has them: one mapping a line."""

    def read(folder: Path) -> RunResult:
        with open_bundle(folder / "run") as bundle:
            return analyze_files(bundle).result

    lines = "".join(map(_write_event, events))
    return _analyze({f"run/{bundle_layout.EVENTS}": lines}, read)


def compare_evidence(
    a: Evidence, b: Evidence, *, labels: tuple[str, str] = ("a", "b"), gpu_model: str | None = None
) -> CompareResult:
    """Compare two programs by their source, PTX and counters."""
    gpu = require_cuda_gpu(gpu_model)

    def compare(folder: Path) -> CompareResult:
        first, second = (read_layers(sorted((folder / side).iterdir()), gpu) for side in "ab")
        found = compare_layers(first, second, *labels)
        return build_compare_document(found, NextCommand(["frx", "compare"], for_ptx=(), for_gpu=(), for_ncu=())).result

    return _analyze(_name_files(a, "a/") | _name_files(b, "b/"), compare)


def reconcile_evidence(evidence: Evidence, *, gpu_model: str | None = None) -> ReconcileResult:
    """Diagnose a program's kernels from all evidence together."""
    gpu = require_cuda_gpu(gpu_model)

    def diagnose(folder: Path) -> ReconcileResult:
        layers = read_layers(sorted(folder.iterdir()), gpu)
        return build_reconcile_document(layers, reconcile(layers)).result

    return _analyze(_name_files(evidence, ""), diagnose)


def what_evidence_is_missing(evidence: Evidence, *, gpu_model: str | None = None) -> tuple[MissingEvidencePart, ...]:
    """Return the measurements that would confirm or refute the diagnoses of `reconcile_evidence`."""
    return reconcile_evidence(evidence, gpu_model=gpu_model).missing_evidence


def build_explain_result(ncu: NcuResult) -> ExplainDocument:
    """Return the brief of an export: diagnosis, metrics, kernels, advice and gaps."""
    return explain_ncu(ncu)


def _name_files(evidence: Evidence, folder: str) -> dict[str, str]:
    files = {
        "kernel.cu": evidence.cuda_source,
        "kernel.ptx": evidence.ptx_text,
        "report.csv": evidence.ncu_csv,
        "trace.json": evidence.trace_text,
    }
    known = {f"{folder}{name}": text for name, text in files.items() if text is not None}
    if not known:
        raise EvidenceError("there is no evidence", "give one of cuda_source, ptx_text, ncu_csv and trace_text")
    return known


def _write_event(event: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(event)) + "\n"
    except (TypeError, ValueError) as error:
        raise EvidenceError(f"an event cannot be written as JSON: {error}") from None


def _analyze(texts: Mapping[str, str], analyze: Callable[[Path], _Result]) -> _Result:
    """Analyse texts as files, since readers find the kind of a file by its name and content. Results and errors name
    them without the folder, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="frx-graph-") as folder:
        for name, text in texts.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", errors="replace")
        try:
            found = analyze(Path(folder))
        except EvidenceError as error:
            raise EvidenceError(error.message.replace(f"{folder}/", ""), error.hint.replace(f"{folder}/", "")) from None
        written = found.model_dump_json(by_alias=True)
    return type(found).model_validate_json(written.replace(f"{folder}/", ""))
