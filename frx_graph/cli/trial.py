"""`frx trial`: test in fresh processes if frx's changes keep a model correct and make it faster."""

from __future__ import annotations

import contextlib
import textwrap
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from frx_graph.cli.interrupt import exit_on_interrupt
from frx_graph.cli.ledger import LedgerOption
from frx_graph.cli.options.engine_option import (
    AddressOption,
    EngineOption,
    WorkingDirOption,
    check_engine,
    open_engine,
)
from frx_graph.cli.printing.output import (
    FormatOption,
    JsonOption,
    QuietOption,
    TextOrJson,
    is_json,
    is_quiet,
    print_notice,
    print_result,
    show_stages,
)
from frx_graph.config import read_advise_config, read_policy_table
from frx_graph.engines.engine import EngineName, Holding
from frx_graph.errors import OptionError
from frx_graph.ledger.database.opening import check_writable
from frx_graph.ledger.location import choose_location
from frx_graph.measure.machine.busy_programs import MachineLoad, describe_load, sample_machine_load
from frx_graph.passes.inner_choice import FROZEN_INDUCTOR
from frx_graph.reports.trials.trial_document import TrialMatrixDocument
from frx_graph.reports.trials.trial_report import render_matrix, render_trial
from frx_graph.support.plain_text import clean_line
from frx_graph.support.supervisor.process import unwind_on_termination
from frx_graph.trial_worker.launch import share_warm_arms
from frx_graph.trials.policy import TrialPolicy, read_policy

_SAMPLE_SECONDS = 0.5
"""Time in which programs are watched before the first trial."""
_NOTICE_WIDTH = 80


def trial(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET...",
            help="module:callable or file.py:callable, returning (model, args[, kwargs[, optimizer]]).",
        ),
    ],
    train: Annotated[
        bool, typer.Option("--train", help="Run forward, backward and the optimizer's step, if any.")
    ] = False,
    candidate: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this rewrite or compiler setting; default: all that save time, together. May be repeated; each "
            "gets a separate trial."
        ),
    ] = None,
    frozen: Annotated[
        bool,
        typer.Option(
            "--frozen",
            help="Also try Inductor with constant weights, called from Python and from C++, each in a separate trial; "
            "inference only.",
        ),
    ] = False,
    aa: Annotated[bool, typer.Option("--aa", help="Try the baseline against itself, to check the method.")] = False,
    policy: Annotated[
        Path | None, typer.Option(help="Policy as a YAML file; default: [tool.frx.policy], or the built-in policy.")
    ] = None,
    ignore_load: Annotated[
        bool, typer.Option("--ignore-load", help="Use measurements even if other programs were running.")
    ] = False,
    inner: Annotated[str, typer.Option(help="Compiler of both arms: inductor, eager, aot_eager.")] = "inductor",
    device: Annotated[
        str | None,
        typer.Option(help="Move model and inputs: cpu, cuda, cuda:1. On a cluster, GPUs need cuda."),
    ] = None,
    dtype: Annotated[
        list[str] | None, typer.Option(help="Cast model and inputs: float32, bfloat16, ... May be repeated.")
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SIZE[,NAME=SIZE...]",
            help="Call the target with these sizes, e.g. batch=8,size=224. Repeatable; each gets a separate trial.",
        ),
    ] = None,
    engine: EngineOption = EngineName.LOCAL,
    address: AddressOption = None,
    working_dir: WorkingDirOption = None,
    ledger: LedgerOption = None,
    format: FormatOption = TextOrJson.TEXT,
    as_document: JsonOption = False,
    _quiet: QuietOption = False,
) -> None:
    """Test a model with frx's changes against the same model without them. The baseline is the model under
    torch.compile with Inductor (see --inner), not eager PyTorch. Decisions are kept in the ledger. Exit code 0:
    promoted, or nothing to try; 1: not promoted, or not all, or the compiler alone computes something else than eager;
    2: an error, or a decision could not be recorded."""
    config = read_advise_config(Path.cwd())
    rules = read_policy(policy) if policy is not None else read_policy_table(config)
    check_engine(engine, address, working_dir)
    if aa and (candidate or frozen):
        other = "--candidate" if candidate else "--frozen"
        raise OptionError(f"--aa tries the baseline against itself, without {other}", "leave one of them out")
    if frozen and (train or inner != "inductor"):
        reason = "trains them" if train else "does not use Inductor"
        other = "--train" if train else f"--inner {inner}"
        raise OptionError(f"--frozen makes weights constants for Inductor, but {other} {reason}", "leave one out")
    place = choose_location(ledger, config.ledger)
    if not aa:
        check_writable(place)
    here = engine is EngineName.LOCAL
    # Before arms are prepared, which use the processors.
    load = sample_machine_load(_SAMPLE_SECONDS) if here and not is_quiet() else None
    with unwind_on_termination(), share_warm_arms() if here else contextlib.nullcontext():
        # Not at the top: torch takes seconds to import, and the process that forks arms does the same meanwhile.
        with exit_on_interrupt():
            from frx_graph.cli.trial_advice import suggest_next
            from frx_graph.cli.trial_jobs import TrialResults, build_jobs

        jobs = build_jobs(
            targets,
            shape or (),
            dtype or (),
            (*(candidate or (None,)), *(FROZEN_INDUCTOR if frozen else ())),
            device=device,
            train=train,
            inner=inner,
            against_itself=aa,
            policy=rules,
            ignore_load=ignore_load,
            here=here,
        )
        _warn_if_busy(load, rules, ignore_load=ignore_load)
        kept = TrialResults(jobs, place)
        holding = Holding.GPU if device == "cuda" else Holding.CORES
        with show_stages() as progress, open_engine(engine, address, working_dir, holding) as chosen:
            kept.record_all(chosen, progress)
    as_asked = is_json(format, as_document)
    if len(jobs) > 1:
        table = TrialMatrixDocument(trials=kept.entries)
        print_result(table, partial(render_matrix, table), as_document=as_asked)
    elif as_asked or not kept.untried:
        advice = suggest_next(kept.only)
        print_result(kept.only, partial(render_trial, kept.only, advice=advice), as_document=as_asked)
    kept.raise_errors()
    raise typer.Exit(0 if all(kept.good) else 1)


def _warn_if_busy(load: MachineLoad | None, policy: TrialPolicy, *, ignore_load: bool) -> None:
    """Print a notice if other programs use the processors."""
    if load is None or not load.is_busy:
        return
    advice = "measurements count all the same (--ignore-load)"
    if not ignore_load:
        limit = f"at most {policy.time_budget_seconds:.0f} s for each trial"
        advice = f"disturbed measurements are repeated, {limit}: close these programs, or use --ignore-load"
    text = clean_line(f"frx: the machine is busy: {describe_load(load)}; {advice}", 1000)
    print_notice(textwrap.fill(text, _NOTICE_WIDTH, subsequent_indent="     ", break_on_hyphens=False))
