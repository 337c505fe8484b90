"""`frx compare`: compare two runs, traces or advice files, or two CUDA sources with PTX and measurements."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from frx_graph.analyze.cuda_source import analyze_cuda
from frx_graph.analyze.layers import read_layers
from frx_graph.analyze.program_layers import Build, compile_program, compile_ptx_layer, measure_program
from frx_graph.analyzers.comparison.comparison import Comparison, compare_layers
from frx_graph.analyzers.comparison.matching import Winner
from frx_graph.analyzers.layers import Layers, SourceLayer
from frx_graph.cli.compare_records import compare_records
from frx_graph.cli.options.evidence_options import BuildFlags, GpuModel, require_ncu, require_nvcc, split_flags
from frx_graph.cli.printing.output import QuietOption, print_notice, print_result, show_stages
from frx_graph.errors import EvidenceError, OptionError
from frx_graph.evidence.file_kind import FileKind, detect_file_kind
from frx_graph.measure.machine.device_state import list_gpu_names
from frx_graph.measure.nvcc import Nvcc
from frx_graph.reports.advice.terminal import DEFAULT_TOP
from frx_graph.reports.kernels.compare_document import build_compare_document
from frx_graph.reports.kernels.compare_report import render_comparison
from frx_graph.reports.kernels.compare_text import NextCommand
from frx_graph.rules.gpu_profile import GpuProfile, require_cuda_gpu
from frx_graph.support.plain_text import clean_line
from frx_graph.support.supervisor.process import unwind_on_termination

_ELSEWHERE = "measure on a machine that has one, and pass the exports: --ncu-a a.csv --ncu-b b.csv"


def compare(
    a: Annotated[Path, typer.Argument(help="The old version: a CUDA source, run, trace or advice.")],
    b: Annotated[Path, typer.Argument(help="The new version, of the same kind.")],
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
    """Compare two CUDA sources, or two runs, traces or advice files: what changed, which is better, on what evidence,
    and what is unknown. Exit code 0: B is not shown to be worse, also if step times are undecided; 1: B is worse, or
    has regressions; 2: an error, two kernels without a verdict, or two records with nothing in common."""
    wants_kernels = with_ptx or with_ncu or build_flags or any(one is not None for one in (ncu_a, ncu_b, gpu_model))
    if not wants_kernels:
        code = compare_records(a, b, as_document=as_document, top=DEFAULT_TOP)
        if code is not None:
            raise typer.Exit(code)
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
        build = Build(Nvcc(require_nvcc(), Path(folder)), flags, gpu) if with_ptx or with_ncu else None
        sides: list[Layers] = []
        programs: list[Path] = []
        with show_stages() as progress:
            for path, name, export in ((a, "a", ncu_a), (b, "b", ncu_b)):
                progress(f"reading {path}")
                side = _read_side(path, name, export, gpu)
                if build is not None:
                    progress(f"compiling {path}")
                    side = replace(side, ptx=compile_ptx_layer(path, build, name) if with_ptx else None)
                    programs += [compile_program(path, build, name)] if with_ncu else []
                sides.append(side)
        # Both are compiled before the first one runs. No spinner: it would mix with their output.
        if ncu is not None:
            for number, (path, program) in enumerate(zip((a, b), programs, strict=True)):
                print_notice(f"frx: measuring {clean_line(str(path))} with ncu, which runs each kernel several times")
                sides[number] = replace(sides[number], ncu=measure_program(path, program, ncu, gpu))
    layers_a, layers_b = sides
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
    program = require_ncu(_ELSEWHERE)
    if not list_gpu_names():
        raise EvidenceError("ncu needs an NVIDIA GPU, and this machine has none", _ELSEWHERE)
    return program


def _read_side(path: Path, name: str, export: Path | None, gpu: GpuProfile | None) -> Layers:
    """Read a source, called `a` or `b`, and its existing measurement, if any."""
    source = SourceLayer(*analyze_cuda(path, gpu))
    given = Layers() if export is None else read_layers([export], gpu)
    if export is not None and given.ncu is None:
        raise OptionError(f"--ncu-{name} {export} was not written by Nsight Compute", "a .csv or .ncu-rep")
    return Layers(source, None, given.ncu)


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
