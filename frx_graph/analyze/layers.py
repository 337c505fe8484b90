"""Read and analyse the evidence files of one program: CUDA source, PTX, Nsight Compute exports and profiler traces."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from frx_graph.analyzers.cuda.analysis import CudaAnalysis, detect_cuda_defects
from frx_graph.analyzers.kernels.analysis import KernelAnalysis, analyze_kernels
from frx_graph.analyzers.kernels.kernel_totals import KernelTotals
from frx_graph.analyzers.kernels.ptx_analysis import PtxAnalysis, analyze_ptx_module, resolve_target_gpu
from frx_graph.analyzers.layers import Layers, NcuLayer, PtxLayer, SourceLayer, TraceLayer
from frx_graph.analyzers.timeline.analysis import analyze_timeline
from frx_graph.analyzers.trace.analysis import prepare_trace
from frx_graph.analyzers.trace.findings import find_layout_copies
from frx_graph.errors import EvidenceError, OptionError
from frx_graph.evidence.cuda.parsing import read_cuda
from frx_graph.evidence.cuda.source import CudaSource
from frx_graph.evidence.file_kind import FileKind, detect_file_kind
from frx_graph.evidence.ncu.csv_file import read_ncu_csv
from frx_graph.evidence.ncu.launch import NcuExport
from frx_graph.evidence.ncu.report_file import read_ncu_report
from frx_graph.evidence.ptx.module import PtxModule
from frx_graph.evidence.ptx.parsing import EXPECTED, MOST_CHARACTERS, find_fatbin_modules, is_fatbin, read_ptx
from frx_graph.evidence.ptx.ptxas import Assembled, assemble, find_oldest_target
from frx_graph.evidence.text_lines import read_whole_text
from frx_graph.evidence.trace.torch_trace import TorchTrace, read_torch_trace
from frx_graph.passes.severity import rank_findings
from frx_graph.records import Finding
from frx_graph.rules.gpu_profile import GpuProfile
from frx_graph.support.garbage_collection import pause_gc


@dataclass(frozen=True)
class TraceEvidence(TraceLayer):
    """A trace and its analysis. `findings` are the ranked findings on layout copies."""

    findings: tuple[Finding, ...]


def analyze_run(path: Path) -> TraceEvidence:
    """Analyse the trace at `path`. Raises `EvidenceError` if the file is not such a trace."""
    return analyze_parsed_trace(read_torch_trace(path))


def analyze_parsed_trace(trace: TorchTrace) -> TraceEvidence:
    """Analyse a trace that has been read."""
    with pause_gc():
        analysis = prepare_trace(trace)
        findings = find_layout_copies(analysis)
        return TraceEvidence(analysis, analyze_timeline(analysis, findings), tuple(rank_findings(findings)))


def analyze_ptx(path: Path, gpu: GpuProfile | None = None) -> tuple[PtxModule, PtxAnalysis, str | None]:
    """Analyse the PTX at `path` for `gpu`, or for the architecture that its target names. The third result says why the
    assembler did not run; it is None if it ran. Raises `EvidenceError` if the file is not PTX or has no kernel, and
    `OptionError` if `gpu` cannot run it."""
    module = read_ptx(path)
    if not module.kernels:
        functions = f"{len(module.functions)} functions" if module.functions else "nothing"
        raise EvidenceError(f"{path}: {functions}, and no .entry: no kernel is in it", "was a template instantiated?")
    device = resolve_target_gpu(module.target, gpu)
    if gpu is not None and device is None:
        raise OptionError(f"{path} is for {module.target}, which {gpu.name} cannot run", "name a later GPU")
    asked = module.target if device is None else device.target
    assembled: Mapping[str, Assembled] = {}
    reason = instead = None
    try:
        try:
            assembled = _assemble_parts(path, asked)
        except EvidenceError:
            instead = find_oldest_target(asked)
            if instead is None:
                raise
            assembled = _assemble_parts(path, instead)
    except EvidenceError as error:
        reason = str(error)
    return module, analyze_ptx_module(module, assembled, device, None if reason else instead), reason


def _assemble_parts(path: Path, target: str) -> Mapping[str, Assembled]:
    """Assemble the file at `path`, or each part of cuobjdump's output."""
    text = read_whole_text(path, EXPECTED, longest=MOST_CHARACTERS)
    if not is_fatbin(text):
        return assemble(path, target)
    found: dict[str, Assembled] = {}
    with tempfile.TemporaryDirectory(prefix="frx-ptx-") as folder:
        part = Path(folder) / path.name
        for begin, end in find_fatbin_modules(text):
            part.write_text(text[begin:end], encoding="utf-8")
            found.update(assemble(part, target))
    return found


def analyze_ncu(
    path: Path, gpu: GpuProfile | None = None, kind: FileKind = FileKind.NCU_CSV
) -> tuple[NcuExport, KernelAnalysis]:
    """Analyse the export or report at `path`, for `gpu` instead of the device that it names. Raises `EvidenceError` for
    a file of another kind, and `OptionError` if `gpu` adds nothing."""
    totals = KernelTotals()
    read = read_ncu_report if kind is FileKind.NCU_REPORT else read_ncu_csv
    export = read(path, totals.add)
    analysis = analyze_kernels(totals.summarize_kernels(), gpu)
    if gpu is not None and not any(kernel.gpu is not None and kernel.gpu.tells for kernel in analysis.kernels):
        raise OptionError(
            f"--gpu-model {gpu.name} says nothing about the kernels in {path}",
            "it needs registers and shared memory of the launches, or bytes and times with a GPU whose peaks are known",
        )
    return export, analysis


_NAMED, _LONGEST_NAME = 3, 100
"""Kernels that an error names, and the longest text for each."""


def analyze_cuda(path: Path, gpu: GpuProfile | None = None) -> tuple[CudaSource, CudaAnalysis]:
    """Analyse the CUDA source at `path`, for `gpu` or for any GPU. Raises `EvidenceError` if the file is not CUDA
    source or cannot be read."""
    source = read_cuda(path)
    if source.unread and not source.kernels and not source.launches:
        names = ", ".join(name[:_LONGEST_NAME] for name in source.unread[:_NAMED])
        raise EvidenceError(f"{path}: no kernel in it can be read ({names})", "does nvcc compile it?")
    return source, detect_cuda_defects(source, gpu)


def read_layers(paths: Sequence[Path], gpu: GpuProfile | None = None) -> Layers:
    """Return the layers in `paths`, one file each. Raises `EvidenceError` for a file of unknown kind, and `OptionError`
    for two files of one layer."""
    source, ptx, ncu, trace = None, None, None, None
    files: dict[str, Path] = {}
    for path in paths:
        kind = detect_file_kind(path)
        layer = FileKind.NCU_CSV if kind is FileKind.NCU_REPORT else kind
        if (other := files.setdefault(layer, path)) is not path:
            raise OptionError(f"{other} and {path} are both {layer}", "name one file of a kind")
        match kind:
            case FileKind.CUDA:
                source = SourceLayer(*analyze_cuda(path, gpu))
            case FileKind.PTX:
                ptx = PtxLayer(*analyze_ptx(path, gpu))
            case FileKind.NCU_CSV | FileKind.NCU_REPORT:
                ncu = NcuLayer(*analyze_ncu(path, gpu, kind))
            case FileKind.TRACE:
                trace = analyze_run(path)
    return Layers(source, ptx, ncu, trace)
