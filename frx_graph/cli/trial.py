"""`frx trial`: is the program that frx would make of a model right, and is it faster? Tried in fresh processes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from frx_graph.cli.ledger import LedgerOption
from frx_graph.cli.output import (
    FormatOption,
    JsonOption,
    QuietOption,
    TextOrJson,
    is_json,
    notice,
    print_document,
    print_report,
    stages,
)
from frx_graph.cli.placement import check_device, check_dtype
from frx_graph.config import advise_config, policy_of
from frx_graph.errors import LedgerError, OptionError
from frx_graph.ledger.author import this_process
from frx_graph.ledger.decision import Kind
from frx_graph.ledger.location import Location, choose_location
from frx_graph.ledger.opening import check_writable, open_ledger
from frx_graph.options import PLANNED, check_inner
from frx_graph.reports.plain_text import one_line
from frx_graph.reports.terminal import detect_terminal
from frx_graph.reports.trial_document import NOTHING_TRIED, TrialDocument, as_json, nothing_tried, trial_document
from frx_graph.reports.trial_report import render_trial
from frx_graph.target_trial import Asked, Tried, decisions, try_target
from frx_graph.termination import cleaned_up_when_terminated
from frx_graph.trials.arm_messages import TargetWorkload
from frx_graph.trials.policy import TrialPolicy, read_policy

AUTHOR = "frx trial"
NOT_EACH = (
    ". Nothing is promoted: the gain is that of several graphs together, and proves none of them. Mode autopilot tries "
    "each by itself"
)


def trial(
    target: Annotated[
        str, typer.Argument(help="module:callable or file.py:callable, returning (model, args[, kwargs[, optimizer]]).")
    ],
    train: Annotated[
        bool, typer.Option("--train", help="Forward and backward, and the optimizer's step, if there is one.")
    ] = False,
    candidate: Annotated[
        str | None, typer.Option(help="Only this rewrite, or this way to compile; else all that pay, together.")
    ] = None,
    aa: Annotated[bool, typer.Option("--aa", help="Try the baseline against itself: it should not win.")] = False,
    policy: Annotated[Path | None, typer.Option(help="YAML; otherwise [tool.frx.policy], or the defaults.")] = None,
    inner: Annotated[str, typer.Option(help="What compiles both: inductor, eager, aot_eager.")] = "inductor",
    device: Annotated[str | None, typer.Option(help="Move model and inputs: cpu, cuda, cuda:1.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Cast model and inputs: float32, bfloat16, ...")] = None,
    ledger: LedgerOption = None,
    format: FormatOption = TextOrJson.TEXT,
    as_document: JsonOption = False,
    _quiet: QuietOption = False,
) -> None:
    """Try what frx would make of a model against what its compiler makes of it. Exit code 0: promoted, or nothing to
    try; 1: not promoted; 2: an error, or the decision could not be recorded. Decisions are kept in the ledger."""
    config = advise_config(Path.cwd())
    rules = read_policy(policy) if policy is not None else policy_of(config)
    _check_inner(inner)
    check_dtype(dtype)
    check_device(device)
    if aa and candidate is not None:
        raise OptionError("--aa tries the baseline against itself, --candidate something else", "leave one of them out")
    place = choose_location(ledger, config.ledger)
    asked = Asked(TargetWorkload(target, device, dtype), train, inner, candidate, aa)
    if not aa:
        check_writable(place)
    with cleaned_up_when_terminated(), stages() as progress:
        tried = try_target(asked, rules, progress)
    if tried is None:
        notice(f"{one_line(target)}: {NOTHING_TRIED}")
        if is_json(format, as_document):
            print_document(as_json(nothing_tried(target=target, train=train, inner=inner, policy=rules)))
        raise typer.Exit(0)
    document, unrecorded = _recorded(tried, asked, rules, place)
    if is_json(format, as_document):
        print_document(as_json(document))
    else:
        terminal = detect_terminal(sys.stdout, os.environ)
        print_report(render_trial(document, width=terminal.width, color=terminal.color), color=terminal.color)
    if unrecorded is not None:
        raise unrecorded
    raise typer.Exit(0 if tried.promotes else 1)


def _check_inner(name: str) -> None:
    """Raises `OptionError`, also for a compiler that torch has and that takes no plan."""
    check_inner(name)
    if name not in PLANNED:
        raise OptionError(f"nothing can be tried with --inner {name}", f"take one of {', '.join(sorted(PLANNED))}")


def _recorded(
    tried: Tried, asked: Asked, rules: TrialPolicy, place: Location
) -> tuple[TrialDocument, LedgerError | None]:
    """The trial's document, once its decision is in the ledger; that it is not is said there, too, so that what was
    measured is printed in any case."""

    def document(decision: str) -> TrialDocument:
        return trial_document(
            tried.run,
            target=asked.workload.target,
            train=asked.train,
            inner=asked.inner,
            candidates=tried.candidates,
            policy=rules,
            decision=decision,
        )

    if asked.against_itself:
        return document("nothing is recorded of a baseline against itself"), None
    text = json.dumps(as_json(document(f"recorded in {place}")), allow_nan=False)
    wanted = decisions(tried, rules, text, this_process(AUTHOR))
    if not wanted:
        return document("not recorded: it ended before an arm could say on what machine it runs"), None
    try:
        events = open_ledger(place).append(wanted)
    except LedgerError as error:
        return document(f"not recorded: {error}"), error
    named = [event for event in events if event.decision.kind is not Kind.PROPOSED]
    ends = [event for event in named if event.decision.kind is not Kind.TRIED]
    last = ", ".join(f"#{event.position} {event.decision.kind}" for event in ends or named)
    return document(f"recorded in {place}: {last}{'' if ends else NOT_EACH}"), None
