"""`frx tune`: find the environment variables that make a training script fastest, by interleaved trials of it."""

from __future__ import annotations

import re
import secrets
import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from frx_graph.cli.options.engine_option import (
    AddressOption,
    EngineOption,
    WorkingDirOption,
    check_engine,
    open_cluster,
)
from frx_graph.cli.printing.output import QuietOption, print_notice, print_result, show_stages
from frx_graph.engines.engine import EngineName, Holding
from frx_graph.errors import OptionError
from frx_graph.reports.trials.tune_report import render_tune
from frx_graph.runs.tune.examination import find_bottleneck
from frx_graph.runs.tune.families import CUSTOM, FAMILIES
from frx_graph.runs.tune.settings import TuneSettings
from frx_graph.runs.tune.tune_folder import make_tune_folder, open_tune_folder
from frx_graph.runs.tune.tune_run import MARKDOWN, REPORT, TuneRun
from frx_graph.support.plain_text import clean_line
from frx_graph.support.supervisor.process import Terminated, unwind_on_termination

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NEXT = re.compile(r",(?=[^,]*=)")
"""Matches a comma before a name, but not within a value, as in `CUDA_VISIBLE_DEVICES=0,1`."""


def tune(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments, behind -- .")],
    name: Annotated[str, typer.Option(help="Job name.")] = "frx-tune",
    out: Annotated[Path, typer.Option(help="Folder in which to create tune-<id>.")] = Path("runs"),
    max_trials: Annotated[int, typer.Option(min=1, help="Largest number of candidates to try.")] = 12,
    safe: Annotated[
        bool, typer.Option("--safe/--no-safe", help="Try only tier 0, or also candidates that change the model.")
    ] = True,
    allow_risky_actions: Annotated[bool, typer.Option("--allow-risky-actions", help="Try tier 2 as well.")] = False,
    time_budget_s: Annotated[float, typer.Option(help="Time limit of one process, in seconds.")] = 60.0,
    warmup_steps: Annotated[int, typer.Option(min=1, help="Warmup steps of each process; they are not counted.")] = 5,
    measure_steps: Annotated[int, typer.Option(min=2, help="Steps of each arm in a quad, and of a whole run.")] = 20,
    repeat_count: Annotated[int, typer.Option(min=1, help="Factor on the number of process pairs of a trial.")] = 1,
    race: Annotated[bool, typer.Option("--race/--no-race", help="A quick screening before full trials.")] = True,
    race_promote_count: Annotated[int, typer.Option(min=1, help="Candidates per stage that get a full trial.")] = 3,
    race_warmup_steps: Annotated[int, typer.Option(min=1, help="As --warmup-steps, in a race.")] = 1,
    race_measure_steps: Annotated[int, typer.Option(min=2, help="Steps of a block in a race.")] = 5,
    bottleneck: Annotated[str | None, typer.Option(help="Focus on this label instead of the diagnosis'.")] = None,
    family: Annotated[list[str] | None, typer.Option(help="Only this family; may be repeated.")] = None,
    candidate: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE[,NAME=VALUE]: your own candidate; may be repeated.")
    ] = None,
    min_speedup: Annotated[float, typer.Option(help="Smallest gain worth a change: 0.08 is 8 %.")] = 0.08,
    quality_checks: Annotated[
        bool,
        typer.Option(
            "--quality-checks/--no-quality-checks",
            help="Reject drifting outputs, and precision changes without a loss.",
        ),
    ] = True,
    max_final_loss_regression: Annotated[
        float, typer.Option(help="Largest rise over the baseline's final loss.")
    ] = 0.05,
    max_loss_divergence: Annotated[
        float, typer.Option(help="Largest rise of the loss, from a run's first quarter to its last.")
    ] = 0.5,
    output_abs_tolerance: Annotated[float, typer.Option(help="Absolute tolerance of metrics named output...")] = 0.005,
    allow_nonfinite_loss: Annotated[
        bool, typer.Option("--allow-nonfinite-loss", help="Accept losses that are NaN.")
    ] = False,
    sample_interval_ms: Annotated[int, typer.Option(min=10, help="Milliseconds between samples of memory.")] = 1000,
    one_at_a_time: Annotated[
        bool, typer.Option("--one-at-a-time", help="Run one process at a time; takes longer.")
    ] = False,
    ignore_load: Annotated[
        bool, typer.Option("--ignore-load", help="Use measurements even if other programs were running.")
    ] = False,
    engine: EngineOption = EngineName.LOCAL,
    address: AddressOption = None,
    working_dir: WorkingDirOption = None,
    resume: Annotated[Path | None, typer.Option(help="Resume the tune in this folder with the same arguments.")] = None,
    as_document: Annotated[bool, typer.Option("--json", help="As JSON: frx_tune_v1.")] = False,
    _quiet: QuietOption = False,
) -> None:
    """Find the environment variables that make a training script fastest, and measure the gain. Recommends only;
    changes nothing. Exit code 0: a recommendation; 1: none; 2: an error."""
    try:
        settings = TuneSettings(
            command=tuple(command),
            name=name,
            max_trials=max_trials,
            safe=safe,
            allow_risky_actions=allow_risky_actions,
            time_budget_s=time_budget_s,
            warmup_steps=warmup_steps,
            measure_steps=measure_steps,
            repeat_count=repeat_count,
            race=race,
            race_promote_count=race_promote_count,
            race_warmup_steps=race_warmup_steps,
            race_measure_steps=race_measure_steps,
            bottleneck=bottleneck,
            min_speedup=min_speedup,
            quality_checks=quality_checks,
            max_final_loss_regression=max_final_loss_regression,
            max_loss_divergence=max_loss_divergence,
            output_abs_tolerance=output_abs_tolerance,
            allow_nonfinite_loss=allow_nonfinite_loss,
            sample_interval_ms=sample_interval_ms,
            candidates=tuple(_parse_variables(text) for text in candidate or ()),
            families=tuple(family or ()),
            one_at_a_time=one_at_a_time,
            ignore_load=ignore_load,
            engine=engine,
        )
    except ValidationError as error:
        first = error.errors()[0]
        flag = "--" + str(first["loc"][0]).replace("_", "-")
        raise OptionError(f"{flag} {first['input']}: {first['msg']}", "frx tune --help") from None
    known = [*(one.name for one in FAMILIES), CUSTOM]
    if (unknown := next((one for one in settings.families if one not in known), None)) is not None:
        raise OptionError(f"no family {clean_line(unknown)}", f"one of {', '.join(known)}")
    labels = {label for one in FAMILIES for label in one.bottlenecks}
    if bottleneck is not None and bottleneck not in labels:
        raise OptionError(f"no family helps against {clean_line(bottleneck)}", f"one of {', '.join(sorted(labels))}")
    check_engine(engine, address, working_dir)
    if resume is not None:
        folder = open_tune_folder(resume, settings)
    else:
        folder = make_tune_folder(out, f"tune-{secrets.token_hex(4)}", settings)
    # A signal ends the process at the end of this block, so the report is announced inside it.
    with folder.hold(), unwind_on_termination():
        _print_line(f"frx autopilot — {'resuming' if resume else 'starting'} tune run {folder.name}")
        _print_line(f"Workload : {clean_line(' '.join(command))}")
        _print_line(f"Max trials: {max_trials} | Time budget: {time_budget_s:g}s/trial")
        try:
            with show_stages() as progress, open_cluster(engine, address, working_dir, Holding.NODE) as cluster:
                document = TuneRun(
                    settings, folder, diagnose=find_bottleneck, say=_print_line, progress=progress, cluster=cluster
                ).run()
        except (KeyboardInterrupt, Terminated):
            _print_line(
                f"Interrupted: the same command with --resume {shlex.quote(str(folder.path))} goes on from here"
            )
            raise
        finally:
            _print_line(f"Report saved: {folder.path / REPORT}")
            _print_line(f"Markdown report saved: {folder.path / MARKDOWN}")
    print_result(document, partial(render_tune, document), as_document=as_document)
    raise typer.Exit(0 if document.winner is not None else 1)


def _parse_variables(text: str) -> tuple[tuple[str, str], ...]:
    """Parse `A=1,B=2`. Raises `OptionError`."""
    pairs = []
    for part in _NEXT.split(text):
        name, equals, value = part.partition("=")
        if not equals or _VARIABLE.fullmatch(name) is None:
            raise OptionError(
                f"--candidate {clean_line(text)}: {clean_line(part)} sets no variable", "NAME=VALUE,NAME=VALUE"
            )
        pairs.append((name, value))
    return tuple(pairs)


def _print_line(text: str) -> None:
    """Print a line on standard error, keeping its indentation."""
    indent = len(text) - len(text.lstrip(" "))
    print_notice(" " * indent + clean_line(text, 400))
