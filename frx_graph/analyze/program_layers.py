"""Build and measure a CUDA program: the layers of its source, its PTX, and a measured run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from frx_graph.analyze.layers import analyze_cuda, analyze_ptx
from frx_graph.analyze.ncu_profile import Filters, measure_kernels
from frx_graph.analyzers.layers import NcuLayer, PtxLayer, SourceLayer
from frx_graph.errors import EvidenceError
from frx_graph.evidence.ncu.presets import preset_named
from frx_graph.measure.nvcc import Nvcc
from frx_graph.rules.gpu_profile import GpuProfile

_PRESET = "full"
_STDERR = 2
_NO_PROGRAM = "measure it elsewhere, and give the exports: --ncu-a a.csv --ncu-b b.csv"


@dataclass(frozen=True, slots=True)
class Build:
    """Compiler settings: `flags`, and the `gpu` to compile for; None: nvcc's default."""

    nvcc: Nvcc
    flags: tuple[str, ...]
    gpu: GpuProfile | None

    @property
    def architecture(self) -> str | None:
        """`sm_90`."""
        return None if self.gpu is None else self.gpu.architecture.architecture


def source_layer(source: Path, gpu: GpuProfile | None) -> SourceLayer:
    """Analyse a source. Raises `EvidenceError` for a file that is no CUDA source."""
    return SourceLayer(*analyze_cuda(source, gpu))


def compiled_ptx(source: Path, build: Build, name: str) -> PtxLayer:
    """Compile `source` with `nvcc -ptx` into a file of that `name`, and analyse it. Raises `EvidenceError` if it does
    not compile."""
    output = build.nvcc.temporary / f"{name}.ptx"
    errors = build.nvcc.compile_ptx(source, output, arch=build.architecture, flags=build.flags)
    if errors is not None:
        hint = "--build-flags, --gpu-model" if build.gpu is None else "--build-flags"
        raise EvidenceError(f"{source} is not compiled to PTX: {_first(errors)}", f"what it needs goes into {hint}")
    try:
        module, analysis, reason = analyze_ptx(output, build.gpu)
    except EvidenceError as error:
        raise EvidenceError(
            f"{source}, as nvcc -ptx makes it: {error.message.partition(': ')[2]}", error.hint
        ) from None
    return PtxLayer(replace(module, source=f"{source} (nvcc -ptx)"), analysis, reason)


def compiled_program(source: Path, build: Build, name: str, *, arch: str = "native") -> Path:
    """Compile `source` to the program `name` for `arch`; `native`: the GPUs of this machine. Raises `EvidenceError` if
    that fails."""
    compiled = build.nvcc.compile_program(
        source, build.nvcc.temporary / name, arch=arch, flags=build.flags, cudart="static"
    )
    if compiled.lacks_main:
        raise EvidenceError(f"{source} has no main, and cannot be run", _NO_PROGRAM)
    if compiled.program is None:
        raise EvidenceError(f"{source} is not compiled: {_first(compiled.errors)}", "--build-flags for what it needs")
    return compiled.program


def measured_program(source: Path, program: Path, ncu: str, gpu: GpuProfile | None) -> NcuLayer:
    """Measure a whole run of `program` with `ncu`, without arguments and in this folder. Its output goes to standard
    error. Raises `EvidenceError` if not all was measured."""
    export, analysis, failed = measure_kernels(
        ncu, [str(program)], preset_named(_PRESET), Filters(), None, gpu=gpu, program_output=_STDERR
    )
    if failed is not None:
        raise EvidenceError(f"{source}: {failed.message}", failed.hint)
    return NcuLayer(replace(export, source=f"{source} (ncu)"), analysis)


def _first(errors: str) -> str:
    lines = errors.splitlines()
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else "no reason given").strip()
