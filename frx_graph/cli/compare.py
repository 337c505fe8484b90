"""`frx compare`: compare two CUDA sources, optionally with PTX and measurements."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from frx_graph.analyze.layers import read_layers
from frx_graph.analyze.program_layers import (
    Build,
    compile_program,
    compile_ptx_layer,
    measure_program,
    read_source_layer,
)
from frx_graph.analyzers.comparison.comparison import Comparison, compare_layers
from frx_graph.analyzers.comparison.matching import Winner
from frx_graph.analyzers.layers import Layers
from frx_graph.cli.options.evidence_options import BuildFlags, GpuModel, split_flags
from frx_graph.cli.printing.output import QuietOption, print_notice, print_result, show_stages
from frx_graph.errors import EvidenceError, OptionError
from frx_graph.evidence.file_kind import FileKind, detect_file_kind
from frx_graph.evidence.ncu.profiler import find_ncu
from frx_graph.measure.machine.device_state import list_gpu_names
from frx_graph.measure.nvcc import Nvcc, find_nvcc
from frx_graph.reports.advice.render import DEFAULT_TOP
from frx_graph.reports.kernels.compare_document import build_compare_document
from frx_graph.reports.kernels.compare_gaps import NextCommand
from frx_graph.reports.kernels.compare_report import render_comparison
from frx_graph.rules.gpu_profile import GpuProfile, require_cuda_gpu
from frx_graph.support.plain_text import clean_line
from frx_graph.support.supervisor.process import unwind_on_termination

_ELSEWHERE = "measure on a machine that has one, and pass the exports: --ncu-a a.csv --ncu-b b.csv"


def compare(
    a: Annotated[Path, typer.Argument(help="A CUDA source: the old version.")],
    b: Annotated[Path, typer.Argument(help="A CUDA source: the new version.")],
    with_ptx: Annotated[bool, typer.Option("--with-ptx", help="Compile both to PTX: registers, spills.")] = False,
    with_ncu: Annotated[
        bool, typer.Option("--with-ncu", help="Compile and run both under Nsight Compute; needs a GPU.")
    ] = False,
    ncu_a: Annotated[Path | None, typer.Option(help="Nsight Compute measurement of A; A is not run.")] = None,
    ncu_b: Annotated[Path | None, typer.Option(help="Nsight Compute measurement of B.")] = None,
    build_flags: BuildFlags = "",
    gpu_model: GpuModel = None,
    as_document: Annotated[bool, typer.Option("--json", help="As JSON: frx_compare_v1.")] = False,
    _quiet: QuietOption = False,
) -> None:
    """Compare two CUDA sources: what changed, which is better, on what evidence, and what is unknown. Exit code 0: B is
    not worse; 1: B is worse, or has regressions; 2: an error, or inconclusive evidence."""
    if with_ncu and (ncu_a is not None or ncu_b is not None):
        raise OptionError("--with-ncu measures again what --ncu-a and --ncu-b hold", "take one of both")
    flags = split_flags(build_flags)
    if flags and not (with_ptx or with_ncu):
        raise OptionError("--build-flags needs something to compile", "--with-ptx or --with-ncu")
    for path in (a, b):
        if (kind := detect_file_kind(path)) is not FileKind.CUDA:
            raise OptionError(f"{path} is not CUDA source but {kind.value}", f"frx analyze --before {a} --after {b}")
    gpu = require_cuda_gpu(gpu_model)
    ncu = _find_ncu() if with_ncu else None
    with contextlib.ExitStack() as stack:
        stack.enter_context(unwind_on_termination())
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="frx-compare-", ignore_cleanup_errors=True))
        build = Build(Nvcc(_require_nvcc(), Path(folder)), flags, gpu) if with_ptx or with_ncu else None
        with show_stages() as progress:
            sides = [
                _SourceSide(source, name, export, build).read(with_ptx, with_ncu, progress, gpu)
                for source, name, export in ((a, "a", ncu_a), (b, "b", ncu_b))
            ]
        # Both are compiled before the first one runs. No spinner: it would mix with their output.
        layers_a, layers_b = (side.layers if ncu is None else side.measure(ncu, gpu) for side in sides)
    found = compare_layers(layers_a, layers_b, str(a), str(b), whole_runs=with_ncu)
    typed = ["frx", "compare", str(a), str(b)]
    typed += ["--with-ptx"] if with_ptx else []
    for option, value in (("--ncu-a", ncu_a), ("--ncu-b", ncu_b), ("--gpu-model", gpu_model)):
        typed += [] if value is None else [option, str(value)]
    typed += ["--build-flags", build_flags] if flags else []
    for_gpu = ("--gpu-model", "H100") if gpu_model is None and not flags else ()
    again = NextCommand(typed, for_ptx=("--with-ptx",), for_gpu=for_gpu, for_ncu=_suggest_ncu_options(ncu_a, ncu_b))
    raise typer.Exit(show_comparison(found, again, as_document=as_document))


def _suggest_ncu_options(ncu_a: Path | None, ncu_b: Path | None) -> tuple[tuple[str, ...], ...]:
    """Return the options to add: to measure both programs here, or to name existing exports."""
    files = (*(("--ncu-a", "a.csv") if ncu_a is None else ()), *(("--ncu-b", "b.csv") if ncu_b is None else ()))
    return (("--with-ncu",), files) if ncu_a is None and ncu_b is None else (files,)


def _find_ncu() -> str:
    """Return the path of ncu. Raises `EvidenceError` if there is none, or no GPU to measure on."""
    program = find_ncu()
    if program is None:
        raise EvidenceError("ncu was not found on the PATH or under CUDA_HOME", _ELSEWHERE)
    if not list_gpu_names():
        raise EvidenceError("ncu needs an NVIDIA GPU, and this machine has none", _ELSEWHERE)
    return program


@dataclass(frozen=True, slots=True)
class _PreparedSide:
    """One side before any program runs; `program` is None if nothing has to run."""

    source: Path
    layers: Layers
    program: Path | None

    def measure(self, ncu: str, gpu: GpuProfile | None) -> Layers:
        """Return the layers with the measurement of the program."""
        assert self.program is not None
        print_notice(f"frx: measuring {clean_line(str(self.source))} with ncu, which runs each kernel several times")
        return replace(self.layers, ncu=measure_program(self.source, self.program, ncu, gpu))


@dataclass(frozen=True, slots=True)
class _SourceSide:
    """A source, called `a` or `b`, with its existing measurement and how to compile it, if any."""

    path: Path
    name: str
    export: Path | None
    build: Build | None

    def read(
        self, with_ptx: bool, with_ncu: bool, progress: Callable[[str], None], gpu: GpuProfile | None
    ) -> _PreparedSide:
        """Read everything about a side that needs no run."""
        progress(f"reading {self.path}")
        source = read_source_layer(self.path, gpu)
        given = Layers() if self.export is None else read_layers([self.export], gpu)
        if self.export is not None and given.ncu is None:
            said = f"--ncu-{self.name} {self.export} was not written by Nsight Compute"
            raise OptionError(said, "a .csv or .ncu-rep")
        ptx, program = None, None
        if self.build is not None:
            progress(f"compiling {self.path}")
            ptx = compile_ptx_layer(self.path, self.build, self.name) if with_ptx else None
            program = compile_program(self.path, self.build, self.name) if with_ncu else None
        return _PreparedSide(self.path, Layers(source, ptx, given.ncu), program)


def _require_nvcc() -> str:
    program = find_nvcc()
    if program is None:
        raise EvidenceError("nvcc was not found", "install the CUDA toolkit, or set CUDA_HOME")
    return program


def show_comparison(
    found: Comparison, again: NextCommand, *, as_document: bool, top: int = DEFAULT_TOP, output: Path | None = None
) -> int:
    """Write the comparison, and return the exit code: 0 if B is not worse; 1 if B is worse, or has regressions; 2 if
    the evidence is inconclusive."""
    document = build_compare_document(found, again)
    print_result(document, partial(render_comparison, document.result, top=top), as_document=as_document, output=output)
    if found.verdict.winner is Winner.A or found.regressions:
        return 1
    return 2 if found.verdict.winner is Winner.UNKNOWN else 0
