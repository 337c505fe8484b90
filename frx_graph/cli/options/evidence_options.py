"""Options and exit codes of the commands that read runs, kernels and CUDA source."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from frx_graph.analyzers.run.steps import Scope
from frx_graph.cli.printing.output import print_notice
from frx_graph.errors import EvidenceError, OptionError
from frx_graph.evidence.ncu.profiler import find_ncu
from frx_graph.measure.nvcc import find_nvcc

if TYPE_CHECKING:
    from frx_graph.analyzers.kernels.analysis import KernelAnalysis
    from frx_graph.analyzers.timeline.analysis import RunAnalysis
    from frx_graph.reports.runs.run_document import RunResult

_ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
RunScope = Annotated[Scope | None, typer.Option("--scope", help="Steps of a run: all, the steady state, or auto.")]


def is_bundle(path: Path) -> bool:
    """Return True for a folder or a zip file. Only opening it shows if it holds a run."""
    if path.is_dir():
        return True
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(4) in _ZIP_MAGICS
    except OSError:
        return False


def get_run_exit_code(result: RunResult, scope: Scope) -> int:
    """Return the exit code of a scope: 0 for nothing found, 1 for findings, 2 if the record is inconclusive."""
    from frx_graph.analyzers.timeline.labels import INSUFFICIENT

    found = result.get_scope(scope)
    if found.diagnosis.user_facing_bottleneck == INSUFFICIENT:
        return 2
    return int(found.diagnosis.user_facing_bottleneck is not None or bool(found.layout_findings))


def get_trace_exit_code(run: RunAnalysis) -> int:
    """Return the exit code of a trace: 0 for nothing found, 1 for a bottleneck, 2 if it shows too little to tell."""
    from frx_graph.analyzers.timeline.labels import INSUFFICIENT

    if run.primary is not None:
        return 1
    return 2 if any(label.label == INSUFFICIENT for label in run.present) else 0


BuildFlags = Annotated[str, typer.Option(help="Flags of nvcc, as in a shell: '-O3 -lcublas'.")]


def split_flags(flags: str) -> tuple[str, ...]:
    """Split the flags like a shell. Raises `OptionError` for quotation marks that are not closed."""
    try:
        return tuple(shlex.split(flags))
    except ValueError as error:
        raise OptionError(f"--build-flags {flags!r}: {error}", "quote them as in a shell") from None


def require_nvcc() -> str:
    """Return the path of nvcc. Raises `EvidenceError` if there is none."""
    program = find_nvcc()
    if program is None:
        raise EvidenceError("nvcc was not found", "install the CUDA toolkit, or set CUDA_HOME")
    return program


def require_ncu(hint: str) -> str:
    """Return the path of ncu. Raises `EvidenceError` with this hint if there is none."""
    program = find_ncu()
    if program is None:
        raise EvidenceError("ncu was not found on the PATH or under CUDA_HOME", hint)
    return program


GpuModel = Annotated[
    str | None,
    typer.Option("--gpu-model", help="Judge kernels by this GPU, H100 or sm_90, instead of the file's."),
]


def get_kernels_exit_code(analysis: KernelAnalysis) -> int:
    """Return the exit code of a kernel report: 0 for no bottleneck, 1 for one, 2 if its metrics are inconclusive."""
    if analysis.primary is not None:
        return 1
    return 0 if analysis.tells else 2


def note_unused_gpu(gpu_model: str | None) -> None:
    """Print a notice that `--gpu-model` adds nothing, if it was given."""
    if gpu_model is not None:
        print_notice("frx: --gpu-model is not used: only kernels, PTX and CUDA source are judged for a GPU")


def note_useless_gpu(gpu_model: str | None, analysis: KernelAnalysis) -> None:
    """Print a notice if `--gpu-model` was given, and adds nothing to these kernels."""
    if gpu_model is not None and not analysis.uses_gpu:
        needed = "registers and shared memory of the launches, or bytes and times with a GPU whose peaks are known"
        print_notice(f"frx: --gpu-model {gpu_model} says nothing about these kernels: it needs {needed}")
