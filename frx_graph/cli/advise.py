"""`frx advise`: ranked layout fixes for one call of a model, or of several, without a change to their code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from frx_graph.advice import Advice
from frx_graph.advisor.target import DTYPES
from frx_graph.advisor.target_search import find_targets
from frx_graph.cli.advised_target import AdviseSettings, advise_target
from frx_graph.cli.options.placement import check_device, check_dtype, check_gpu
from frx_graph.cli.printing.output import JsonOption, QuietOption, is_json, print_notice
from frx_graph.cli.printing.report_output import ReportOptions, check_several, emit_report, emit_reports
from frx_graph.config import read_advise_config
from frx_graph.errors import FrxError
from frx_graph.reports.advice.terminal import DEFAULT_TOP, Format
from frx_graph.support.plain_text import clean_line


def advise(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TARGET...",
            help="module:callable or file.py:callable, returning (model, args[, kwargs]), or a folder: all build "
            "functions in it. Default: targets of [tool.frx].",
        ),
    ] = None,
    train: Annotated[bool | None, typer.Option("--train/--no-train", help="Include the backward pass.")] = None,
    dtype: Annotated[str | None, typer.Option(help=f"Cast model and inputs: {', '.join(DTYPES)}.")] = None,
    device: Annotated[str | None, typer.Option(help="Move model and inputs: cpu, cuda, cuda:1.")] = None,
    gpu: Annotated[
        str | None,
        typer.Option("--for", help="Advise for this GPU, which need not be here: h100, a100, l4, mi300x, ..."),
    ] = None,
    inner: Annotated[
        str | None, typer.Option(help="Compiler of the model: eager (the default), inductor, aot_eager.")
    ] = None,
    observe: Annotated[
        bool | None,
        typer.Option("--observe/--no-observe", help="Run one step and show the copies it really made; off by default."),
    ] = None,
    measure: Annotated[
        bool | None,
        typer.Option(
            "--measure/--no-measure",
            help="Time operators and the device once; on by default. Without it, rules that need times are skipped.",
        ),
    ] = None,
    evidence: Annotated[
        list[Path] | None,
        typer.Option(help="A trace, Nsight Compute export, oneDNN log or Inductor code of a run; may be repeated."),
    ] = None,
    format: Annotated[Format | None, typer.Option("--format", help="Output format.")] = None,
    as_document: JsonOption = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the report to this file.")] = None,
    select: Annotated[
        list[str] | None, typer.Option(help="Only these rules: FRX001, hidden_copy, or a prefix, FRX00.")
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="Leave these rules out.")] = None,
    baseline: Annotated[Path | None, typer.Option(help="Hide the findings in this file.")] = None,
    write_baseline: Annotated[Path | None, typer.Option(help="Write the findings to a baseline file.")] = None,
    exit_zero: Annotated[
        bool | None, typer.Option("--exit-zero/--no-exit-zero", help="Exit 0 even if there are findings.")
    ] = None,
    top: Annotated[
        int | None, typer.Option(min=1, help=f"Explain this many findings in full; {DEFAULT_TOP} by default.")
    ] = None,
    _quiet: QuietOption = False,
) -> None:
    """Print ranked layout fixes for a model, or for several. The models are not changed."""
    config = read_advise_config(Path.cwd())
    options = ReportOptions(
        format=Format.JSON if is_json(format, as_document) else format or config.format or Format.TEXT,
        output=output,
        top=top or config.top or DEFAULT_TOP,
        select=select or config.select,
        ignore=ignore or config.ignore,
        baseline=baseline or config.baseline,
        write_baseline=write_baseline,
        exit_zero=config.exit_zero if exit_zero is None else exit_zero,
    )
    options.check()
    # Options of the command overrule those of the file.
    gpu = gpu or (config.gpu if device is None else None)
    observes = observe or (observe is None and config.observe and gpu is None)
    settings = AdviseSettings(
        train=config.train if train is None else train,
        observe=observes,
        measure=config.measure if measure is None else measure,
        inner=inner or config.inner or "eager",
        dtype=check_dtype(dtype or config.dtype),
        dtype_name=dtype or config.dtype,
        device=check_device(device or config.device) if gpu is None else None,
        gpu=check_gpu(gpu, device=device, observe=observes),
        evidence=tuple(evidence or ()),
    )
    names = find_targets(targets or config.targets)
    if len(names) == 1:
        raise typer.Exit(emit_report(advise_target(names[0], settings), options))
    check_several(options)
    raise typer.Exit(_advise_all(names, settings, options))


def _advise_all(names: Sequence[str], settings: AdviseSettings, options: ReportOptions) -> int:
    """Advise on several targets, and return the exit code. A target that fails is named, and the others go on."""
    made: list[Advice] = []
    failed = 0
    for number, name in enumerate(names, start=1):
        print_notice(f"frx: {number} of {len(names)}: {clean_line(name, 200)}")
        try:
            made.append(advise_target(name, settings))
        except FrxError as error:
            failed += 1
            # Like every error, also with --quiet.
            typer.echo(f"frx: {clean_line(str(error), 1000)}", err=True)
    code = emit_reports(made, options) if made else 2
    return 2 if failed else code
