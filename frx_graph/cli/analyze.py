"""`frx analyze`: what evidence alone can tell: a run, a trace, an Nsight Compute export, PTX, CUDA source."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from frx_graph.analyze.layers import analyze_cuda, analyze_ncu, analyze_ptx, analyze_run
from frx_graph.analyze.run import analyze_bundle
from frx_graph.analyze.trace_advice import analyze_trace
from frx_graph.analyzers.run.steps import Scope
from frx_graph.cli.before_after import (
    After,
    AfterLabel,
    AfterNcu,
    AfterPtx,
    AfterSource,
    Baseline,
    Before,
    BeforeLabel,
    BeforeNcu,
    BeforePtx,
    BeforeSource,
    Optimized,
    SideFiles,
    analyze_sides,
    renamed,
)
from frx_graph.cli.kernels_code import kernels_code
from frx_graph.cli.options.gpu_option import GpuModel
from frx_graph.cli.options.run_bundle import RunScope, is_bundle, run_code
from frx_graph.cli.printing.output import QuietOption, is_json, stages
from frx_graph.cli.printing.report_output import ReportOptions, emit, write_report
from frx_graph.errors import OptionError
from frx_graph.evidence.file_kind import FileKind, file_kind
from frx_graph.reports.advice.render import DEFAULT_TOP
from frx_graph.reports.advice.terminal import Format, detect_terminal
from frx_graph.reports.kernels import cuda_document, kernel_document, ptx_document
from frx_graph.reports.kernels.cuda_report import render_cuda
from frx_graph.reports.kernels.kernel_report import render_kernels
from frx_graph.reports.kernels.ptx_report import render_ptx
from frx_graph.reports.render.document import to_json
from frx_graph.reports.render.source_path import checkout_root
from frx_graph.reports.runs import trace_document
from frx_graph.reports.runs.run_report import render_run
from frx_graph.reports.runs.trace_report import render_trace
from frx_graph.rules.gpu_profile import GpuProfile, cuda_gpu

_NO_GPU_MODEL = "--gpu-model is for kernels; a run and a trace name their own device"
_NO_SCOPE = "--scope chooses steps of a run's folder or zip"


def analyze(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="A run's folder or zip, a profiler trace, an Nsight Compute report or CSV export, kernel.ptx, or .cu."
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="A trace whose layout findings are wanted, and no more.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Name of the program in the report; the file's otherwise.")] = None,
    format: Annotated[Format, typer.Option("--format", help="Output format; text or json for exports.")] = Format.TEXT,
    as_document: Annotated[bool, typer.Option("--json", "--output-json", help="Short for --format json.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the report to this file.")] = None,
    select: Annotated[list[str] | None, typer.Option(help="Only these rules: FRX001, FRX00, hidden_copy.")] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="Leave these rules out.")] = None,
    exit_zero: Annotated[bool, typer.Option("--exit-zero", help="Exit 0 even if there are findings.")] = False,
    top: Annotated[int, typer.Option(min=1, help="Explain this many findings in full.")] = DEFAULT_TOP,
    scope: RunScope = None,
    gpu_model: GpuModel = None,
    before: Before = None,
    after: After = None,
    before_source: BeforeSource = None,
    before_ptx: BeforePtx = None,
    before_ncu: BeforeNcu = None,
    after_source: AfterSource = None,
    after_ptx: AfterPtx = None,
    after_ncu: AfterNcu = None,
    before_label: BeforeLabel = None,
    after_label: AfterLabel = None,
    baseline: Baseline = None,
    optimized: Optimized = None,
    _quiet: QuietOption = False,
) -> None:
    """Print what a file shows: what holds a run back in a trace, kernels in an export, or may, in PTX or source; of
    two, with --before and --after, which is better."""
    options = ReportOptions(
        format=Format.JSON if is_json(format, as_document) else format,
        output=output,
        top=top,
        select=select or (),
        ignore=ignore or (),
        exit_zero=exit_zero,
    )
    options.check()
    before = renamed(before, baseline, "--before", "--baseline")
    after = renamed(after, optimized, "--after", "--optimized")
    sides = (
        SideFiles("before", before, before_source, before_ptx, before_ncu, before_label),
        SideFiles("after", after, after_source, after_ptx, after_ncu, after_label),
    )
    if any(side.given for side in sides):
        if file is not None or trace is not None or model is not None or scope is not None:
            raise OptionError("a file is analysed by itself, or two sides are compared", "--before FILE --after FILE")
        _check_format(options, "leave them out")
        code = analyze_sides(
            *sides,
            cuda_gpu(gpu_model),
            gpu_model,
            as_document=options.format is Format.JSON,
            top=top,
            output=output,
        )
        raise typer.Exit(0 if code == 1 and exit_zero else code)
    if (file is None) is (trace is None):
        raise OptionError("one file is to be analysed", "frx analyze profile.json.gz, or frx analyze report.csv")
    given = trace or file
    assert given is not None
    if file is not None:
        if model is not None:
            raise OptionError("--model names the report on the layouts of a trace", "frx analyze --trace FILE --model")
        if is_bundle(file):
            if gpu_model is not None:
                raise OptionError(_NO_GPU_MODEL, "leave it out")
            raise typer.Exit(_analyze_run(file, options, scope or Scope.AUTO))
        if scope is not None:
            raise OptionError(_NO_SCOPE, "frx analyze RUN --scope steady_state")
        raise typer.Exit(_analyze_evidence(file, options, cuda_gpu(gpu_model)))
    if gpu_model is not None:
        raise OptionError(_NO_GPU_MODEL, "leave it out")
    if scope is not None:
        raise OptionError(_NO_SCOPE, "frx analyze RUN --scope steady_state")
    with stages() as progress:
        progress(f"reading {given}")
        advice = analyze_trace(given, model)
    raise typer.Exit(emit(advice, options))


def _analyze_run(path: Path, options: ReportOptions, scope: Scope) -> int:
    """The same codes as for other evidence."""
    _check_format(options, "leave them out")
    terminal = detect_terminal(sys.stdout, os.environ)
    color = terminal.color and options.output is None and options.format is Format.TEXT
    with stages() as progress:
        progress(f"reading {path}")
        advice = analyze_bundle(path)
    result, code = advice.document.result, run_code(advice.document.result, scope)
    if options.format is Format.JSON:
        text = _json(to_json(advice.document))
    else:
        text = render_run(result, scope, advice.read_from, top=options.top, width=terminal.width, color=color)
    write_report(text, options.output, color=color, for_people=options.format is Format.TEXT)
    return 0 if code == 1 and options.exit_zero else code


def _analyze_evidence(path: Path, options: ReportOptions, gpu: GpuProfile | None) -> int:
    """Reports on kernels and runs, and not on layouts alone: they have no rules to choose from. The code is 0
    where nothing was found, 1 where something was, 2 where the file does not tell."""
    kind = file_kind(path)
    if gpu is not None and kind is FileKind.TRACE:
        raise OptionError(_NO_GPU_MODEL, "leave it out")
    hint = "--trace reports the layout findings alone" if kind is FileKind.TRACE else "leave them out"
    _check_format(options, hint)
    terminal = detect_terminal(sys.stdout, os.environ)
    color = terminal.color and options.output is None and options.format is Format.TEXT
    with stages() as progress:
        progress(f"reading {path}")
        match kind:
            case FileKind.TRACE:
                text, code = _trace(path, options, terminal.width, color)
            case FileKind.PTX:
                text, code = _ptx(path, gpu, options, terminal.width, color)
            case FileKind.CUDA:
                text, code = _cuda(path, gpu, options, terminal.width, color)
            case FileKind.NCU_CSV | FileKind.NCU_REPORT:
                text, code = _ncu(kind, path, gpu, options, terminal.width, color)
    write_report(text, options.output, color=color, for_people=options.format is Format.TEXT)
    return 0 if code == 1 and options.exit_zero else code


def _check_format(options: ReportOptions, hint: str) -> None:
    """Raise `OptionError` for what only reports on layouts have."""
    if options.format not in (Format.TEXT, Format.JSON):
        raise OptionError(f"no --format {options.format.value} of kernels", f"take text or json; {hint}")
    if options.select or options.ignore:
        raise OptionError("--select and --ignore choose layout rules, of which kernels have none", hint)


def _ncu(
    kind: FileKind, path: Path, gpu: GpuProfile | None, options: ReportOptions, width: int, color: bool
) -> tuple[str, int]:
    """The report, and the exit code."""
    export, analysis = analyze_ncu(path, gpu, kind)
    document = kernel_document.ncu_document(export, analysis)
    code = kernels_code(analysis)
    if options.format is Format.JSON:
        return _json(to_json(document)), code
    return render_kernels(document.result, top=options.top, width=width, color=color), code


def _ptx(path: Path, gpu: GpuProfile | None, options: ReportOptions, width: int, color: bool) -> tuple[str, int]:
    """The same of PTX."""
    document = ptx_document.ptx_document(*analyze_ptx(path, gpu))
    code = int(bool(document.result.bottlenecks))
    if options.format is Format.JSON:
        return _json(to_json(document)), code
    return render_ptx(document.result, top=options.top, width=width, color=color), code


def _trace(path: Path, options: ReportOptions, width: int, color: bool) -> tuple[str, int]:
    """The same of a trace."""
    evidence = analyze_run(path)
    root = checkout_root(Path.cwd())
    document = trace_document.trace_document(evidence.trace, evidence.run, evidence.findings, root)
    code = int(evidence.run.primary is not None)
    if options.format is Format.JSON:
        return _json(to_json(document)), code
    return render_trace(document.result, top=options.top, width=width, color=color), code


def _cuda(path: Path, gpu: GpuProfile | None, options: ReportOptions, width: int, color: bool) -> tuple[str, int]:
    """The same of CUDA source."""
    document = cuda_document.cuda_document(*analyze_cuda(path, gpu))
    code = int(bool(document.result.findings))
    if options.format is Format.JSON:
        return _json(to_json(document)), code
    return render_cuda(document.result, top=options.top, width=width, color=color), code


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, allow_nan=False) + "\n"
