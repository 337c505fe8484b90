"""`frx analyze`: report on a run, a trace, an Nsight Compute export, PTX or CUDA source."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from pydantic import BaseModel

from frx_graph.analyzers.run.steps import Scope
from frx_graph.cli import before_after
from frx_graph.cli.options.evidence_options import (
    GpuModel,
    RunScope,
    get_kernels_exit_code,
    get_run_exit_code,
    get_trace_exit_code,
    is_bundle,
    note_unused_gpu,
    note_useless_gpu,
)
from frx_graph.cli.printing.output import QuietOption, is_json, print_result, show_stages
from frx_graph.cli.printing.report_output import ReportOptions, emit_report
from frx_graph.errors import OptionError
from frx_graph.evidence.file_kind import FileKind, detect_file_kind
from frx_graph.reports.advice.terminal import DEFAULT_TOP, Format
from frx_graph.rules.gpu_profile import GpuProfile, require_cuda_gpu

_NO_SCOPE = "--scope chooses the steps of a run's folder or zip"
_LOGS = (FileKind.TORCH_LOG, FileKind.CUDNN_LOG)
"""Kinds that are reported as advice, in every format."""


def analyze(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="A run's folder or zip, a profiler trace, an Nsight Compute report or CSV export, kernel.ptx, or .cu."
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Report only the layout findings of this trace.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Name of the program in the report; default: the file's name.")
    ] = None,
    format: Annotated[Format, typer.Option("--format", help="Output format; text or json for exports.")] = Format.TEXT,
    as_document: Annotated[bool, typer.Option("--json", "--output-json", help="Same as --format json.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the report to this file.")] = None,
    select: Annotated[
        list[str] | None, typer.Option(help="Only these rules: FRX001, hidden_copy, or a prefix, FRX00.")
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="Leave these rules out.")] = None,
    exit_zero: Annotated[bool, typer.Option("--exit-zero", help="Exit 0 even if there are findings.")] = False,
    top: Annotated[int, typer.Option(min=1, help="Explain this many findings in full.")] = DEFAULT_TOP,
    scope: RunScope = None,
    gpu_model: GpuModel = None,
    before: before_after.Before = None,
    after: before_after.After = None,
    before_source: before_after.BeforeSource = None,
    before_ptx: before_after.BeforePtx = None,
    before_ncu: before_after.BeforeNcu = None,
    after_source: before_after.AfterSource = None,
    after_ptx: before_after.AfterPtx = None,
    after_ncu: before_after.AfterNcu = None,
    before_label: before_after.BeforeLabel = None,
    after_label: before_after.AfterLabel = None,
    baseline: before_after.Baseline = None,
    optimized: before_after.Optimized = None,
    _quiet: QuietOption = False,
) -> None:
    """Report what slows a run or its kernels down, from a trace, an export, PTX or source. With --before and --after,
    report which of two sides is better. Exit code 0: nothing found, or after is not worse; 1: a bottleneck or finding,
    or after is worse; 2: an error, or too little data."""
    options = ReportOptions(
        format=Format.JSON if is_json(format, as_document) else format,
        output=output,
        top=top,
        select=select or (),
        ignore=ignore or (),
        exit_zero=exit_zero,
    )
    options.check()
    before = before_after.resolve_renamed_option(before, baseline, "--before", "--baseline")
    after = before_after.resolve_renamed_option(after, optimized, "--after", "--optimized")
    sides = (
        before_after.SideFiles("before", before, before_source, before_ptx, before_ncu, before_label),
        before_after.SideFiles("after", after, after_source, after_ptx, after_ncu, after_label),
    )
    if any(side.given for side in sides):
        if file is not None or trace is not None or model is not None or scope is not None:
            raise OptionError("analyse one file, or compare two sides", "--before FILE --after FILE")
        _check_format(options, "leave them out")
        code = before_after.analyze_sides(
            *sides,
            require_cuda_gpu(gpu_model),
            gpu_model,
            as_document=options.format is Format.JSON,
            top=top,
            output=output,
        )
        raise typer.Exit(0 if code == 1 and exit_zero else code)
    if (file is None) is (trace is None):
        raise OptionError("name one file to analyse", "frx analyze profile.json.gz, or frx analyze report.csv")
    given = trace or file
    assert given is not None
    if file is not None:
        if model is not None:
            raise OptionError("--model names the report on the layouts of a trace", "frx analyze --trace FILE --model")
        if is_bundle(file):
            note_unused_gpu(gpu_model)
            raise typer.Exit(_analyze_run(file, options, scope or Scope.AUTO))
        if scope is not None:
            raise OptionError(_NO_SCOPE, "frx analyze RUN --scope steady_state")
        raise typer.Exit(_analyze_evidence(file, options, require_cuda_gpu(gpu_model)))
    note_unused_gpu(gpu_model)
    if scope is not None:
        raise OptionError(_NO_SCOPE, "frx analyze RUN --scope steady_state")
    from frx_graph.analyze.trace_advice import analyze_trace

    with show_stages() as progress:
        progress(f"reading {given}")
        advice = analyze_trace(given, model)
    raise typer.Exit(emit_report(advice, options))


def _analyze_run(path: Path, options: ReportOptions, scope: Scope) -> int:
    """Report on a run's bundle, and return the same exit code as for other evidence."""
    from frx_graph.analyze.run import analyze_bundle
    from frx_graph.reports.runs.run_report import render_run

    _check_format(options, "leave them out")
    with show_stages() as progress:
        progress(f"reading {path}")
        advice = analyze_bundle(path)
    result = advice.document.result
    render = partial(render_run, result, scope, advice.read_from)
    return _write(advice.document, render, get_run_exit_code(result, scope), options)


def _analyze_evidence(path: Path, options: ReportOptions, gpu: GpuProfile | None) -> int:
    """Report on kernels or a trace, and return the exit code: 0 for nothing found, 1 for findings, 2 if the file is not
    conclusive. These reports have no layout rules to select."""
    kind = detect_file_kind(path)
    if kind in (FileKind.TRACE, FileKind.MEMORY, *_LOGS):
        note_unused_gpu(None if gpu is None else gpu.name)
    if kind in _LOGS:
        return _report_log(kind, path, options)
    hint = "--trace reports the layout findings alone" if kind is FileKind.TRACE else "leave them out"
    _check_format(options, hint)
    with show_stages() as progress:
        progress(f"reading {path}")
        found = _read_evidence(kind, path, gpu)
    return _write(*found, options)


def _check_format(options: ReportOptions, hint: str) -> None:
    """Raise `OptionError` for options that only layout reports have."""
    if options.format not in (Format.TEXT, Format.JSON):
        raise OptionError(f"--format {options.format.value} is only for layout findings", f"use text or json; {hint}")
    if options.select or options.ignore:
        raise OptionError("--select and --ignore are only for layout findings", hint)


_Report: TypeAlias = tuple[BaseModel, Callable[..., str], int]
"""The document of a file, the function that renders it as text, and the exit code."""


def _read_evidence(kind: FileKind, path: Path, gpu: GpuProfile | None) -> _Report:
    """Report on a file. Each kind imports its own readers only: a small file is read before all are imported."""
    match kind:
        case FileKind.TRACE:
            return _report_trace(path)
        case FileKind.PTX:
            return _report_ptx(path, gpu)
        case FileKind.CUDA:
            return _report_cuda(path, gpu)
        case FileKind.NCU_CSV | FileKind.NCU_REPORT:
            return _report_kernels(path, gpu, kind)
        case FileKind.MEMORY:
            return _report_memory(path)
        case FileKind.TORCH_LOG | FileKind.CUDNN_LOG:
            raise AssertionError("logs are reported as advice")


def _report_log(kind: FileKind, path: Path, options: ReportOptions) -> int:
    from frx_graph.analyze.compiler_logs import READERS

    with show_stages() as progress:
        progress(f"reading {path}")
        advice = READERS[kind](path)
    return emit_report(advice, options)


def _report_memory(path: Path) -> _Report:
    from frx_graph.analyzers.memory import analyze_memory
    from frx_graph.evidence.memory_snapshot import read_memory_snapshot
    from frx_graph.reports.runs.memory_document import build_memory_document
    from frx_graph.reports.runs.memory_report import render_memory

    document = build_memory_document(str(path), analyze_memory(read_memory_snapshot(path)))
    return document, partial(render_memory, document.result), int(bool(document.result.findings))


def _report_trace(path: Path) -> _Report:
    from frx_graph.analyze.trace import analyze_run
    from frx_graph.reports.render.source_path import find_checkout_root
    from frx_graph.reports.runs.trace_document import build_trace_document
    from frx_graph.reports.runs.trace_report import render_trace

    found = analyze_run(path)
    document = build_trace_document(found.trace, found.run, found.findings, find_checkout_root(Path.cwd()))
    return document, partial(render_trace, document.result), get_trace_exit_code(found.run)


def _report_ptx(path: Path, gpu: GpuProfile | None) -> _Report:
    from frx_graph.analyze.ptx import analyze_ptx
    from frx_graph.reports.kernels.ptx_document import build_ptx_document
    from frx_graph.reports.kernels.ptx_report import render_ptx

    document = build_ptx_document(*analyze_ptx(path, gpu))
    return document, partial(render_ptx, document.result), int(bool(document.result.bottlenecks))


def _report_cuda(path: Path, gpu: GpuProfile | None) -> _Report:
    from frx_graph.analyze.cuda_source import analyze_cuda
    from frx_graph.reports.kernels.cuda_document import build_cuda_document
    from frx_graph.reports.kernels.cuda_report import render_cuda

    document = build_cuda_document(*analyze_cuda(path, gpu))
    return document, partial(render_cuda, document.result), int(bool(document.result.findings))


def _report_kernels(path: Path, gpu: GpuProfile | None, kind: FileKind) -> _Report:
    from frx_graph.analyze.nsight_compute import analyze_ncu
    from frx_graph.reports.kernels.kernel_document import build_ncu_document
    from frx_graph.reports.kernels.kernel_report import render_kernels

    export, analysis = analyze_ncu(path, gpu, kind)
    note_useless_gpu(None if gpu is None else gpu.name, analysis)
    document = build_ncu_document(export, analysis)
    return document, partial(render_kernels, document.result), get_kernels_exit_code(analysis)


def _write(document: BaseModel, render: Callable[..., str], code: int, options: ReportOptions) -> int:
    """Write a report, and return the exit code as `--exit-zero` changes it."""
    as_document = options.format is Format.JSON
    print_result(document, partial(render, top=options.top), as_document=as_document, output=options.output)
    return 0 if code == 1 and options.exit_zero else code
