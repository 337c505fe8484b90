"""`frx advise`: ranked layout fixes for one call of a model, without a change to its code."""

from __future__ import annotations

import contextlib
import functools
import sys
from pathlib import Path
from typing import Annotated

import typer

from frx_graph.advisor.target import DTYPES, load_target, place
from frx_graph.cli.interrupt import exit_on_interrupt
from frx_graph.cli.options.placement import check_device, check_dtype
from frx_graph.cli.printing.output import JsonOption, QuietOption, is_json, show_stages
from frx_graph.cli.printing.report_output import ReportOptions, emit_report
from frx_graph.config import read_advise_config
from frx_graph.errors import TargetError
from frx_graph.measure.console_capture import STDERR, STDOUT, redirect_output
from frx_graph.reports.advice.terminal import DEFAULT_TOP, Format


def advise(
    target: Annotated[
        str, typer.Argument(help="module:callable or file.py:callable, returning (model, args[, kwargs]).")
    ],
    train: Annotated[bool | None, typer.Option("--train/--no-train", help="Include the backward pass.")] = None,
    dtype: Annotated[str | None, typer.Option(help=f"Cast model and inputs: {', '.join(DTYPES)}.")] = None,
    device: Annotated[str | None, typer.Option(help="Move model and inputs: cpu, cuda, cuda:1.")] = None,
    inner: Annotated[str | None, typer.Option(help="Compiler of the model: eager, inductor, aot_eager.")] = None,
    observe: Annotated[
        bool | None, typer.Option("--observe/--no-observe", help="Run one step and show the copies it really made.")
    ] = None,
    measure: Annotated[
        bool | None,
        typer.Option(
            "--measure/--no-measure",
            help="Time operators and the device once; without it, rules that need times are skipped.",
        ),
    ] = None,
    evidence: Annotated[
        list[Path] | None,
        typer.Option(help="A trace, Nsight Compute export, oneDNN log or Inductor code of a run; may be repeated."),
    ] = None,
    format: Annotated[Format | None, typer.Option("--format", help="Output format.")] = None,
    as_document: JsonOption = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the report to this file.")] = None,
    select: Annotated[list[str] | None, typer.Option(help="Only these rules: FRX001, FRX00, hidden_copy.")] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="Leave these rules out.")] = None,
    baseline: Annotated[Path | None, typer.Option(help="Hide the findings in this file.")] = None,
    write_baseline: Annotated[Path | None, typer.Option(help="Write the findings to a baseline file.")] = None,
    exit_zero: Annotated[
        bool | None, typer.Option("--exit-zero/--no-exit-zero", help="Exit 0 even if there are findings.")
    ] = None,
    top: Annotated[int | None, typer.Option(min=1, help="Explain this many findings in full.")] = None,
    _quiet: QuietOption = False,
) -> None:
    """Print ranked layout fixes for a model. The model is not changed."""
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
    cast_to = check_dtype(dtype or config.dtype)
    run_on = check_device(device or config.device)
    # What the model prints, its native code and its child processes too, must not end up in the report.
    with show_stages() as progress, redirect_output(STDOUT, STDERR), contextlib.redirect_stdout(sys.stderr):
        progress("importing torch's compiler")
        with exit_on_interrupt():
            from frx_graph.advisor.advisor import advise as advise_model
            from frx_graph.advisor.allocation_cost import measure_allocation_cost
            from frx_graph.trial_worker.launch import start_arm
            from frx_graph.trials.arm_messages import TargetWorkload

        progress(f"loading {target}")
        workload = place(load_target(target), run_on, cast_to)
        trains = config.train if train is None else train
        observes = config.observe if observe is None else observe
        compiler = inner or config.inner or "eager"
        measures = config.measure if measure is None else measure
        cost_allocations = functools.partial(
            measure_allocation_cost,
            TargetWorkload(target, run_on, dtype or config.dtype),
            lambda environment: start_arm(environment=environment),
            train=trains,
            inner=compiler,
            compare_times=measures,
        )
        try:
            report = advise_model(
                workload.model,
                workload.args,
                workload.kwargs,
                train=trains,
                observe=observes,
                inner=compiler,
                measure=measures,
                target=target,
                evidence=evidence or (),
                progress=progress,
                # Eager frees and allocates around every operator: only what Inductor compiles is worth the wait.
                cost_allocations=cost_allocations if observes and compiler == "inductor" else None,
            )
        except SystemExit as error:
            message = f"the model ended the program with exit code {error.code!r}"
            raise TargetError(message, "guard its sys.exit") from error
    raise typer.Exit(emit_report(report.advice, options))
