"""Build and measure a CUDA program for its layers: source, PTX, and a measured run."""

from __future__ import annotations

import contextlib
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from frx_graph.analyze.nsight_compute import analyze_ncu
from frx_graph.analyze.ptx import analyze_ptx
from frx_graph.analyzers.kernels.analysis import KernelAnalysis
from frx_graph.analyzers.layers import NcuLayer, PtxLayer
from frx_graph.errors import EvidenceError, FrxError
from frx_graph.evidence.ncu.launch import NcuExport
from frx_graph.evidence.ncu.presets import Preset, build_ncu_arguments, get_preset
from frx_graph.evidence.ncu.profiler import explain_failure, read_log, run_ncu
from frx_graph.measure.nvcc import Nvcc
from frx_graph.rules.gpu_profile import GpuProfile
from frx_graph.support.atomic_file import replace_on_success
from frx_graph.support.supervisor.process import unwind_on_termination


@dataclass(frozen=True, slots=True)
class Filters:
    """Launches to measure; None measures all."""

    kernel: str | None = None
    skip: int | None = None
    count: int | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return the options of the command line."""
        given = (("--kernel-name", self.kernel), ("--launch-skip", self.skip), ("--launch-count", self.count))
        return tuple(str(word) for name, value in given if value is not None for word in (name, value))

    def build_ncu_command(self, preset: Preset, command: Sequence[str], output: str) -> list[str]:
        """Return the command that takes this measurement, `ncu` first, and writes to the file `output`."""
        return build_ncu_arguments(
            preset, command, output=output, kernel=self.kernel, launch_skip=self.skip, launch_count=self.count
        )


def measure_kernels(
    ncu: str,
    command: Sequence[str],
    preset: Preset,
    filters: Filters,
    out: Path | None,
    *,
    gpu: GpuProfile | None = None,
    program_output: int | None = None,
) -> tuple[NcuExport, KernelAnalysis, FrxError | None]:
    """Run `command` under the Nsight Compute at `ncu`. Returns the measurement, its analysis, and an error if only a
    part was measured.

    The export stays in the file `out`, which is replaced when ncu has ended. The program's standard output goes to the
    file descriptor `program_output`; None leaves it unchanged. Raises `EvidenceError` if nothing was measured, and
    `OSError` if `out` cannot be written.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(unwind_on_termination())
        path = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="frx-ncu-")), "ncu_report.csv")
        with replace_on_success(path) as log:
            _, *arguments = filters.build_ncu_command(preset, command, str(log))
            code = run_ncu([ncu, *arguments], output=program_output)
            said = read_log(log)
            failed: FrxError | None = explain_failure(said, code, filters.kernel)
            if failed is not None and not said.table:
                raise failed
        export, analysis = analyze_ncu(path, gpu)
    return replace(export, source=shlex.join(command) if out is None else str(out)), analysis, failed


_STDERR = 2
_NO_PROGRAM = "measure it elsewhere, and give the exports: --ncu-a a.csv --ncu-b b.csv"


@dataclass(frozen=True, slots=True)
class Build:
    """Compiler settings: `flags`, and the `gpu` to compile for. None uses nvcc's default."""

    nvcc: Nvcc
    flags: tuple[str, ...]
    gpu: GpuProfile | None

    @property
    def architecture(self) -> str | None:
        """`sm_90`."""
        return None if self.gpu is None else self.gpu.architecture.architecture


def compile_ptx_layer(source: Path, build: Build, name: str) -> PtxLayer:
    """Compile `source` with `nvcc -ptx` into a file with that `name`, and analyse it. Raises `EvidenceError` if it does
    not compile."""
    output = build.nvcc.temporary / f"{name}.ptx"
    errors = build.nvcc.compile_ptx(source, output, arch=build.architecture, flags=build.flags)
    if errors is not None:
        hint = "--build-flags, --gpu-model" if build.gpu is None else "--build-flags"
        raise EvidenceError(
            f"{source} is not compiled to PTX: {_find_error_line(errors)}", f"what it needs goes into {hint}"
        )
    try:
        module, analysis, reason = analyze_ptx(output, build.gpu)
    except EvidenceError as error:
        raise EvidenceError(
            f"{source}, as nvcc -ptx makes it: {error.message.partition(': ')[2]}", error.hint
        ) from None
    return PtxLayer(replace(module, source=f"{source} (nvcc -ptx)"), analysis, reason)


def compile_program(source: Path, build: Build, name: str, *, arch: str = "native") -> Path:
    """Compile `source` to the program `name` for `arch`; `native` means the GPUs of this machine. Raises
    `EvidenceError` if that fails."""
    compiled = build.nvcc.compile_program(
        source, build.nvcc.temporary / name, arch=arch, flags=build.flags, cudart="static"
    )
    if compiled.lacks_main:
        raise EvidenceError(f"{source} has no main, and cannot be run", _NO_PROGRAM)
    if compiled.program is None:
        raise EvidenceError(
            f"{source} is not compiled: {_find_error_line(compiled.errors)}", "--build-flags for what it needs"
        )
    return compiled.program


def measure_program(source: Path, program: Path, ncu: str, gpu: GpuProfile | None) -> NcuLayer:
    """Measure a whole run of `program` with `ncu`, without arguments, in this folder. Its output goes to standard
    error. Raises `EvidenceError` unless everything was measured."""
    export, analysis, failed = measure_kernels(
        ncu, [str(program)], get_preset("full"), Filters(), None, gpu=gpu, program_output=_STDERR
    )
    if failed is not None:
        raise EvidenceError(f"{source}: {failed.message}", failed.hint)
    return NcuLayer(replace(export, source=f"{source} (ncu)"), analysis)


def _find_error_line(errors: str) -> str:
    lines = errors.splitlines()
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else "no reason given").strip()
