"""`frx profile`: measure a program with Nsight Compute, or read a measurement, and report what to fix first."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel

from frx_graph.analyze.nsight_compute import analyze_ncu
from frx_graph.analyze.program_layers import Filters, measure_kernels
from frx_graph.analyze.ptx import analyze_ptx
from frx_graph.analyzers.kernels.analysis import KernelAnalysis
from frx_graph.cli.options.evidence_options import GpuModel, get_kernels_exit_code, note_useless_gpu
from frx_graph.cli.printing.explanation_files import ExplanationFiles
from frx_graph.cli.printing.output import QuietOption, print_notice, print_result, show_stages
from frx_graph.errors import EvidenceError, OptionError
from frx_graph.evidence.file_kind import FileKind, detect_file_kind
from frx_graph.evidence.ncu.launch import NcuExport
from frx_graph.evidence.ncu.presets import Preset, format_shell_line, get_preset
from frx_graph.evidence.ncu.profiler import find_ncu
from frx_graph.reports.advice.terminal import DEFAULT_TOP
from frx_graph.reports.kernels import kernel_document, ptx_document
from frx_graph.reports.kernels.explain_document import ExplainDocument, explain_ncu, explain_ptx
from frx_graph.reports.kernels.kernel_report import render_kernels
from frx_graph.reports.kernels.ptx_report import render_ptx
from frx_graph.reports.render.recommendation_part import YOUR_PROGRAM
from frx_graph.rules.gpu_profile import require_cuda_gpu

_EXPORT = "ncu_report.csv"
_DEFAULT_PRESET = "full"
_STDERR = 2


def profile(
    command: Annotated[list[str] | None, typer.Argument(help="The program: frx profile -- python train.py")] = None,
    ncu: Annotated[Path | None, typer.Option(help="Report on this Nsight Compute file; run nothing.")] = None,
    ptx: Annotated[Path | None, typer.Option(help="Report on this PTX file; run nothing.")] = None,
    preset: Annotated[
        str | None, typer.Option(help="Preset to measure: memory, tensor, occupancy, stalls or full (the default).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Keep ncu's export in this file.")] = None,
    kernel_name: Annotated[str | None, typer.Option(help="Only kernels of this name; regex:... for a pattern.")] = None,
    launch_skip: Annotated[int | None, typer.Option(min=0, help="Leave the first launches out.")] = None,
    launch_count: Annotated[int | None, typer.Option(min=1, help="Measure this many launches.")] = None,
    gpu_model: GpuModel = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Write the files of `frx explain` too, beside --out or here.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="Explain this many recommendations in full.")] = DEFAULT_TOP,
    as_document: Annotated[
        bool, typer.Option("--json", help="The report as JSON; what the program prints goes to standard error.")
    ] = False,
    exit_zero: Annotated[bool, typer.Option("--exit-zero", help="Exit 0 even if there are bottlenecks.")] = False,
    _quiet: QuietOption = False,
) -> None:
    """Measure a program's kernels with Nsight Compute. Print their bottlenecks and fixes."""
    if sum(given is not None for given in (command or None, ncu, ptx)) != 1:
        raise OptionError("name one program or file to profile", "-- PROGRAM, or --ncu FILE, or --ptx FILE")
    filters = Filters(kernel_name, launch_skip, launch_count)
    if not command and (out is not None or preset is not None or filters != Filters()):
        raise OptionError("--out, --preset and filters need a program to run", "leave them out")
    explanations = None
    if explain:
        explanations = ExplanationFiles(Path() if out is None else out.parent)
        explanations.check()
    gpu = require_cuda_gpu(gpu_model)

    def show(document: BaseModel, render: Callable[..., str], explained: Callable[[], ExplainDocument]) -> None:
        print_result(document, partial(render, top=top), as_document=as_document)
        if explanations is not None:
            explanations.write(explained())

    def show_ncu(export: NcuExport, analysis: KernelAnalysis, measured: Sequence[str]) -> int:
        document = kernel_document.build_ncu_document(export, analysis)
        render = partial(render_kernels, document.result, measured=measured)
        show(document, render, partial(explain_ncu, document.result, measured=measured))
        return get_kernels_exit_code(analysis)

    failed = None
    if ptx is not None:
        with show_stages() as progress:
            progress(f"reading {ptx}")
            document = ptx_document.build_ptx_document(*analyze_ptx(ptx, gpu))
        show(document, partial(render_ptx, document.result), partial(explain_ptx, document.result))
        code = int(bool(document.result.bottlenecks))
    elif ncu is not None:
        with show_stages() as progress:
            progress(f"reading {ncu}")
            # Any other file is read as an export; the error then names the expected formats.
            kind = FileKind.NCU_REPORT if detect_file_kind(ncu) is FileKind.NCU_REPORT else FileKind.NCU_CSV
            export, analysis = analyze_ncu(ncu, gpu, kind)
        note_useless_gpu(gpu_model, analysis)
        code = show_ncu(export, analysis, ("--", *YOUR_PROGRAM))
    else:
        assert command
        wanted = get_preset(preset or _DEFAULT_PRESET)
        program = _find_ncu(command, wanted, filters, out)
        count = len(wanted.counters)
        print_notice(f"frx: measuring {count} metrics with ncu, which runs each kernel several times")
        sys.stdout.flush()
        export, analysis, failed = measure_kernels(
            program, command, wanted, filters, out, gpu=gpu, program_output=_STDERR if as_document else None
        )
        note_useless_gpu(gpu_model, analysis)
        code = show_ncu(export, analysis, (*filters.arguments, "--", *command))
    if failed is not None:
        # Only some of the kernels were measured.
        raise failed
    raise typer.Exit(0 if code == 1 and exit_zero else code)


def _find_ncu(command: Sequence[str], preset: Preset, filters: Filters, out: Path | None) -> str:
    """Return the path of ncu. Without one, print the command to run elsewhere. Raises `FrxError`, also for problems
    that would otherwise show only after the run."""
    program = find_ncu()
    if program is None:
        export = str(out or _EXPORT)
        typer.echo(format_shell_line(filters.build_ncu_command(preset, command, export)), err=True)
        install = "install Nsight Compute, or run the command above where there is one, then here"
        raise EvidenceError("ncu was not found on the PATH or under CUDA_HOME", f"{install} frx profile --ncu {export}")
    if shutil.which(command[0]) is None:
        is_file = Path(command[0]).is_file()
        hint = f"if it is an export, frx profile --ncu {command[0]}" if is_file else "the program comes after --"
        raise OptionError(f"{command[0]} is not an executable program", hint)
    if out is not None and out.exists() and not out.is_file():
        raise OptionError(f"--out {out} is not a regular file", "choose another")
    if out is not None and not os.access(out.absolute().parent, os.W_OK):
        raise OptionError(f"--out {out}: its folder cannot be written to", "create it first")
    return program
