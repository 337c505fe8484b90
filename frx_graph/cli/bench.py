"""`frx bench`: compile two CUDA programs and time them against each other."""

from __future__ import annotations

import math
import re
import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from frx_graph.analyze.program_layers import Build, compile_program, measure_program
from frx_graph.analyzers.comparison.ncu_diff import NcuDiff, compare_ncu, match_measured
from frx_graph.cli.options.evidence_options import BuildFlags, require_ncu, require_nvcc, split_flags
from frx_graph.cli.printing.output import QuietOption, print_notice, print_result, show_stages
from frx_graph.errors import FrxError, OptionError
from frx_graph.measure.machine.device_state import list_gpu_names
from frx_graph.measure.nvcc import Nvcc
from frx_graph.reports.kernels.bench_document import build_bench_document
from frx_graph.reports.kernels.bench_report import render_bench
from frx_graph.rules.gpu_profile import require_cuda_gpu
from frx_graph.support.supervisor.process import unwind_on_termination
from frx_graph.trials.program_bench import BenchOptions, BenchRun, bench_programs
from frx_graph.trials.program_times import FEWEST_RUNS, RUNS_PER_QUAD

_ARCH = re.compile(r"sm_\d{2,3}[af]?")


def bench(
    before: Annotated[Path, typer.Argument(help="A CUDA source with a main.")],
    after: Annotated[Path, typer.Argument(help="A CUDA source that should be faster.")],
    runs: Annotated[int, typer.Option(min=FEWEST_RUNS, help="Measured runs of each program; even.")] = 20,
    warmup: Annotated[int, typer.Option(min=0, help="Warmup runs of each program; they are not counted.")] = 5,
    build_flags: BuildFlags = "",
    arch: Annotated[str | None, typer.Option(help="sm_90, ...; default: the GPUs of this machine.")] = None,
    gpu_model: Annotated[
        str | None, typer.Option(help="Compile for this GPU, such as H100, instead of --arch.")
    ] = None,
    with_ncu: Annotated[
        bool, typer.Option("--with-ncu", help="Run both once more under Nsight Compute, and report its metrics.")
    ] = False,
    time_limit: Annotated[float, typer.Option(min=0.1, help="Time limit of one run, in seconds.")] = 120.0,
    as_document: Annotated[bool, typer.Option("--json", help="As JSON: frx_bench_v0.")] = False,
    _quiet: QuietOption = False,
) -> None:
    """Compile two CUDA sources, run them in turns, and compare times and outputs. Exit code 0: measured; 1: the second
    is slower, or prints something else; 2: an error, or the programs could not run (no GPU)."""
    gpu = require_cuda_gpu(gpu_model)
    if gpu is not None and arch is not None:
        raise OptionError("--gpu-model and --arch both choose the GPU to compile for", "take one of them")
    if runs % RUNS_PER_QUAD:
        raise OptionError(f"--runs {runs} is odd", f"the programs take turns in fours, two runs of each: {runs + 1}")
    if arch is not None and _ARCH.fullmatch(arch) is None:
        raise OptionError(f"no --arch {arch}", "sm_75, sm_80, sm_90a, ...")
    flags = split_flags(build_flags)
    if not math.isfinite(time_limit):
        raise OptionError(f"--time-limit must be finite, not {time_limit}", "a number of seconds")
    options = BenchOptions(runs, warmup, arch if gpu is None else gpu.architecture.architecture, flags, time_limit)
    nvcc = require_nvcc()
    ncu = require_ncu("leave --with-ncu out, or install it") if with_ncu else None
    with (
        unwind_on_termination(),
        tempfile.TemporaryDirectory(prefix="frx-bench-", ignore_cleanup_errors=True) as folder,
    ):
        build = Build(Nvcc(nvcc, Path(folder)), options.flags, gpu)
        with show_stages() as progress:
            run = bench_programs(before, after, options, gpus=list_gpu_names(), nvcc=build.nvcc, progress=progress)
        # No spinner: it would mix with the output of the programs.
        diff = None if ncu is None or run.wall is None else _measure_with_ncu(run, build, ncu)
    document = build_bench_document(run, diff)
    print_result(document, partial(render_bench, document), as_document=as_document)
    if document.outputs is None:
        raise typer.Exit(2)
    raise typer.Exit(1 if document.verdict == "slower" or document.outputs.agreement == "different" else 0)


def _measure_with_ncu(run: BenchRun, build: Build, ncu: str) -> NcuDiff | str:
    """Return Nsight Compute's measurement of one run of each program, or the reason why there is none. The programs are
    compiled again, with a statically linked runtime."""
    layers = []
    try:
        for side, word in ((run.before, "before"), (run.after, "after")):
            print_notice(f"frx: measuring {word} with ncu, which runs each kernel several times")
            program = compile_program(side.source, build, f"{word}-ncu", arch=run.options.arch or "native")
            # Measured on a local GPU, which may differ from the GPU that the program was compiled for.
            layers.append(measure_program(side.source, program, ncu, None))
    except FrxError as error:
        return str(error)
    a, b = layers
    return compare_ncu(a, b, match_measured(a, b))
