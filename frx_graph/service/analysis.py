"""Run the service's analyses, the same as on the command line. The working directory is the job's folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from pydantic import BaseModel

from frx_graph.advice import Advice
from frx_graph.analyze.cuda_source import analyze_cuda
from frx_graph.analyze.layers import read_layers
from frx_graph.analyze.nsight_compute import analyze_ncu
from frx_graph.analyze.ptx import analyze_ptx
from frx_graph.analyze.run import analyze_bundle
from frx_graph.analyze.trace import analyze_run
from frx_graph.analyzers.comparison.comparison import compare_layers
from frx_graph.analyzers.layers import Layers
from frx_graph.analyzers.reconcile.reconciliation import reconcile
from frx_graph.errors import EvidenceError, OptionError
from frx_graph.evidence.file_kind import EXPECTED, FileKind, detect_file_kind
from frx_graph.reports.advice.advice_file import is_advice, read_advice
from frx_graph.reports.kernels.compare_document import build_compare_document
from frx_graph.reports.kernels.compare_text import NextCommand
from frx_graph.reports.kernels.cuda_document import build_cuda_document
from frx_graph.reports.kernels.kernel_document import NcuDocument, build_ncu_document
from frx_graph.reports.kernels.ptx_document import PtxDocument, build_ptx_document
from frx_graph.reports.kernels.reconcile_document import build_reconcile_document
from frx_graph.reports.runs.trace_document import build_trace_document
from frx_graph.rules.gpu_profile import GpuProfile, require_cuda_gpu
from frx_graph.service.analysis_job import AnalysisJob, Task
from frx_graph.service.static_inspection import build_inspection

Result: TypeAlias = BaseModel | Advice
_ZIP = b"PK\x03\x04"
_ANY = f"a zip of a run, advice (frx_advice_v1), {EXPECTED}"


def run_analysis(job: AnalysisJob) -> Result:
    """Return the document of a job's files. Raises `EvidenceError` and `OptionError`, like the analyses."""
    for file in job.files:
        if file.kind is not None and (kind := detect_file_kind(Path(file.name))) is not file.kind:
            raise EvidenceError(f"{file.name}: is {kind.value}, expected {file.kind.value}")
    return _ANALYSES[job.task](job, require_cuda_gpu(job.gpu_model))


def _analyze_file(job: AnalysisJob, gpu: GpuProfile | None) -> Result:
    path = Path(job.files[0].name)
    with path.open("rb") as file:
        start = file.read(len(_ZIP))
    if start == _ZIP:
        return analyze_bundle(path).document
    if is_advice(path):
        return read_advice(path)
    return _analyze_evidence(path, detect_file_kind(path, _ANY), gpu)


def _analyze_evidence(path: Path, kind: FileKind, gpu: GpuProfile | None) -> Result:
    match kind:
        case FileKind.TRACE:
            found = analyze_run(path)
            return build_trace_document(found.trace, found.run, found.findings, Path.cwd())
        case FileKind.PTX:
            return build_ptx_document(*analyze_ptx(path, gpu))
        case FileKind.CUDA:
            return build_cuda_document(*analyze_cuda(path, gpu))
        case FileKind.NCU_CSV | FileKind.NCU_REPORT:
            return build_ncu_document(*analyze_ncu(path, gpu, kind))
        case FileKind.TORCH_LOG | FileKind.CUDNN_LOG | FileKind.MEMORY:
            raise EvidenceError(f"{path}: the service does not read this kind of file", f"frx analyze {path}")


def _analyze_kind(job: AnalysisJob, gpu: GpuProfile | None) -> Result:
    """Return the result in the endpoint's declared form, without the wrapper."""
    path = Path(job.files[0].name)
    document = _analyze_evidence(path, detect_file_kind(path), gpu)
    assert isinstance(document, (NcuDocument, PtxDocument))
    return document.result


def _inspect_source(job: AnalysisJob, gpu: GpuProfile | None) -> Result:
    documents = [build_cuda_document(*analyze_cuda(Path(file.name), gpu)) for file in job.files]
    return build_inspection([document.result for document in documents])


def _compare_sides(job: AnalysisJob, gpu: GpuProfile | None) -> Result:
    label_a, label_b = job.labels
    found = compare_layers(_read_side(job, "a", gpu), _read_side(job, "b", gpu), label_a, label_b)
    names = {side: [file.name for file in job.files if file.side == side] for side in ("a", "b")}
    before, after = ([f"--{word}={name}" for name in names[side]] for word, side in (("before", "a"), ("after", "b")))
    typed = ["frx", "analyze", *before, *after]
    again = NextCommand(typed, for_ptx=(), for_gpu=(), for_ncu=())
    return build_compare_document(found, again).result


def _read_side(job: AnalysisJob, side: str, gpu: GpuProfile | None) -> Layers:
    layers = read_layers([Path(file.name) for file in job.files if file.side == side], gpu)
    if layers.trace is not None:
        raise OptionError(f"side {side} is a trace", "source, PTX and Nsight Compute's files are compared")
    return layers


def _reconcile_layers(job: AnalysisJob, gpu: GpuProfile | None) -> Result:
    layers = read_layers([Path(file.name) for file in job.files], gpu)
    return build_reconcile_document(layers, reconcile(layers)).result


_ANALYSES: Mapping[Task, Callable[[AnalysisJob, GpuProfile | None], Result]] = {
    Task.FILE: _analyze_file,
    Task.CUDA: _inspect_source,
    Task.NCU: _analyze_kind,
    Task.PTX: _analyze_kind,
    Task.COMPARE: _compare_sides,
    Task.RECONCILE: _reconcile_layers,
}
