"""Read and analyse the evidence files of one program: CUDA source, PTX, Nsight Compute exports and profiler traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from frx_graph.analyze.cuda_source import analyze_cuda
from frx_graph.analyze.nsight_compute import analyze_ncu
from frx_graph.analyze.ptx import analyze_ptx
from frx_graph.analyze.trace import analyze_run
from frx_graph.analyzers.layers import Layers, NcuLayer, PtxLayer, SourceLayer
from frx_graph.errors import OptionError
from frx_graph.evidence.file_kind import FileKind, detect_file_kind
from frx_graph.rules.gpu_profile import GpuProfile


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
            case FileKind.TORCH_LOG | FileKind.CUDNN_LOG | FileKind.MEMORY:
                raise OptionError(f"{path} does not describe kernels", f"frx analyze {path}")
    return Layers(source, ptx, ncu, trace)
