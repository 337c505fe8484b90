"""`frx ledger`: decisions, with time, author, evidence and reason."""

from __future__ import annotations

import difflib
import re
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from frx_graph.cli.printing.output import (
    FormatOption,
    JsonOption,
    QuietOption,
    TextOrJson,
    is_json,
    print_document,
    print_report,
    print_text,
    write_output,
)
from frx_graph.config import read_advise_config
from frx_graph.errors import LedgerMissingError, OptionError
from frx_graph.ledger.active_plans import fold_steps
from frx_graph.ledger.database.opening import open_ledger, open_to_read
from frx_graph.ledger.decision import Kind, RecordedEvent, make_process_author, make_rollbacks
from frx_graph.ledger.event_document import export_lines
from frx_graph.ledger.location import Location, choose_location
from frx_graph.ledger.plain_file import TABLES_VERSION
from frx_graph.ledger.schema import build_ledger_document
from frx_graph.ledger.store import EventFilter, Ledger
from frx_graph.ledger.trial_summary import read_summaries
from frx_graph.ledger.verification import verify as verify_ledger
from frx_graph.reports.render.quantities import format_count
from frx_graph.reports.trials.event_text import parse_trial, render_event, render_list
from frx_graph.support.plain_text import clean_line

DEFAULT_LIMIT = 20

_NOTHING_YET = "{}: no decisions yet"

_SIGNATURE = re.compile(r"[0-9a-f]{16}")
_POSITION = re.compile(r"#?([0-9]{1,7})")
_HASH = re.compile(r"[0-9a-f]{8,64}")


LedgerOption = Annotated[
    str | None,
    typer.Option("--ledger", help="A file or SQLAlchemy URL; default: FRX_LEDGER, [tool.frx], or the data folder."),
]

ledger = typer.Typer(rich_markup_mode=None, add_completion=False)


@ledger.callback(invoke_without_command=True)
def _ledger(context: typer.Context) -> None:
    """Show and change the ledger of layout decisions."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


@ledger.command("list")
def list_events(
    signature: Annotated[str | None, typer.Option(help="Only this graph or workload, with its active plans.")] = None,
    environment: Annotated[str | None, typer.Option(help="Only this fingerprint.")] = None,
    kind: Annotated[list[str] | None, typer.Option(help="Only this kind: promoted, rolled-back; repeatable.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many of the latest events.")] = DEFAULT_LIMIT,
    separate: Annotated[
        bool, typer.Option("--all", help="Show proposed, tried and the verdict of a trial as separate events.")
    ] = False,
    format: FormatOption = TextOrJson.TEXT,
    as_document: JsonOption = False,
    at: LedgerOption = None,
) -> None:
    """List the last decisions, oldest first."""
    wanted = EventFilter(
        _check_hex_name(signature, "--signature"),
        _check_hex_name(environment, "--environment"),
        tuple(_parse_kind(name) for name in kind or ()),
    )
    place = _choose_place(at)
    source = _open_to_read(place)
    total = 0 if source is None else source.count_events(wanted)
    everything = 0 if source is None else source.count_events()
    events = () if source is None else source.read_events(wanted, newest=limit)
    summaries = {} if source is None else read_summaries(source, events)
    standings = None
    if signature is not None:
        steps = {} if source is None else source.read_steps_by_environment(signature)
        standings = {name: fold_steps(each) for name, each in steps.items() if environment in (None, name)}
    if is_json(format, as_document):
        print_document(build_ledger_document(str(place), total, events, summaries, standings))
        return
    if source is None:
        typer.echo(_NOTHING_YET.format(place))
        return
    shown = partial(render_list, events, summaries, standings or {}, total=total, everything=everything)
    print_text(partial(shown, ledger=str(place), now=datetime.now(UTC), separate=separate))


@ledger.command()
def show(
    event: Annotated[str, typer.Argument(help="An event's number, or at least 8 leading digits of the hash.")],
    format: FormatOption = TextOrJson.TEXT,
    as_document: JsonOption = False,
    at: LedgerOption = None,
) -> None:
    """Print one decision in full, with its trial. As JSON, the event with the trial follows if it is another."""
    place = _choose_place(at)
    source = _open_existing(place)
    found = _find(source, event)
    summaries = read_summaries(source, (found,))
    evidence = source.read_evidence(found)
    if is_json(format, as_document):
        events = (found,) if evidence is None or evidence.position == found.position else (found, evidence)
        print_document(build_ledger_document(str(place), len(events), events, summaries))
        return
    trial = parse_trial(evidence)
    print_text(partial(render_event, found, summaries.get(found.position), trial, now=datetime.now(UTC)))


@ledger.command()
def rollback(
    what: Annotated[
        str, typer.Argument(metavar="SIGNATURE|EVENT", help="A graph, in all environments, or one event's plan.")
    ],
    environment: Annotated[str | None, typer.Option(help="Only in this environment.")] = None,
    reason: Annotated[str, typer.Option(help="The reason, in one line.")] = "rolled back by hand",
    at: LedgerOption = None,
    _quiet: QuietOption = False,
) -> None:
    """Go back to the baseline. Promoted plans are no longer applied, nor tried again until you ask for it."""
    why = " ".join(clean_line(reason, 1000).split())
    if not why:
        raise OptionError("--reason is empty", "give the reason in one line")
    place = _choose_place(at)
    source = _open_existing(place)
    promotions = _find_promotions(source, what, _check_hex_name(environment, "--environment"))
    decisions = make_rollbacks(promotions, reason=why, by=make_process_author(), now=datetime.now(UTC))
    for event in open_ledger(place).append(decisions):
        decision = event.decision
        print_report(f"#{event.position} rolled back plan {decision.plan} of {decision.signature}", color=False)


@ledger.command()
def export(
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
    at: LedgerOption = None,
    _quiet: QuietOption = False,
) -> None:
    """Write all events as JSON Lines, oldest first."""
    source = _open_to_read(_choose_place(at))
    lines = iter(()) if source is None else export_lines(source.read_rows())
    if output is None:
        for line in lines:
            typer.echo(line)
        return
    write_output(output, "".join(f"{line}\n" for line in lines))


@ledger.command()
def verify(at: LedgerOption = None, _quiet: QuietOption = False) -> None:
    """Check that every event is intact, in order and was allowed. Exit code 0: sound; 1: not."""
    place = _choose_place(at)
    source = _open_to_read(place)
    if source is None:
        print_report(_NOTHING_YET.format(place), color=False)
        return
    found = verify_ledger(source)
    name = str(place)
    if found.problem is None:
        print_report(f"{name}: {format_count(found.sound, 'event')}, all sound", color=False)
        return
    where = "" if found.problem.position is None else f"event {found.problem.position}: "
    sound = "" if found.problem.position is None else f" ({format_count(found.sound, 'event')} before it sound)"
    print_report(f"{name}: {where}{clean_line(found.problem.what, 1000)}{sound}", color=False)
    raise typer.Exit(1)


@ledger.command()
def upgrade(at: LedgerOption = None, _quiet: QuietOption = False) -> None:
    """Upgrade the tables of an older ledger. Earlier versions of frx can then no longer use it. Appending to a file
    upgrades it automatically; a database on a server needs this command."""
    from frx_graph.ledger.database.migration import upgrade_ledger  # Alembic is slow to import

    place = _choose_place(at)
    try:
        before = upgrade_ledger(place)
    except LedgerMissingError:
        if place.named:
            raise
        print_report(_NOTHING_YET.format(place), color=False)
        return
    if before == TABLES_VERSION:
        print_report(f"{place}: has the tables of this version already", color=False)
    else:
        was = "none" if before is None else f"version {before}"
        print_report(f"{place}: tables of version {TABLES_VERSION}; it had {was}", color=False)


def _choose_place(option: str | None) -> Location:
    return choose_location(option, read_advise_config(Path.cwd()).ledger)


def _open_to_read(place: Location) -> Ledger | None:
    """Open the ledger for reading; None if the default ledger does not exist yet. A named ledger must exist."""
    try:
        return open_to_read(place)
    except LedgerMissingError:
        if place.named:
            raise
        return None


def _open_existing(place: Location) -> Ledger:
    """Open the ledger for reading. Raises `OptionError` if the default ledger does not exist yet."""
    source = _open_to_read(place)
    if source is None:
        raise OptionError(_NOTHING_YET.format(place), "the first trial creates the ledger")
    return source


def _find_promotions(source: Ledger, what: str, environment: str | None) -> list[RecordedEvent]:
    """Return the active promotions of a graph, or of the plan of an event."""
    if _SIGNATURE.fullmatch(what) and (environments := source.read_steps_by_environment(what)):
        names = [name for name in environments if environment in (None, name)]
        found = [event for name in names for event in source.read_promotions(what, name)]
        if not found:
            where = "" if environment is None else f" in environment {environment}"
            raise OptionError(f"no plan is active for {what}{where}", f"frx ledger list --signature {what}")
        return found
    decision = _find(source, what).decision
    if environment not in (None, decision.environment):
        raise OptionError(f"event {what} is from another environment than {environment}", "leave --environment out")
    standing = source.read_promotions(decision.signature, decision.environment)
    found = [event for event in standing if event.decision.plan == decision.plan]
    if not found:
        message = f"plan {decision.plan} is not active for {decision.signature}"
        raise OptionError(message, f"frx ledger list --signature {decision.signature}")
    return found


def _find(source: Ledger, name: str) -> RecordedEvent:
    if position := _POSITION.fullmatch(name):
        found = source.read_at(int(position[1]))
    elif _HASH.fullmatch(name):
        found = source.find_by_hash(name)
    else:
        hint = "give its number, or at least the first 8 digits of the hash"
        raise OptionError(f"{clean_line(name, 80)!r} is not the name of an event", hint)
    if found is None:
        raise OptionError(f"there is no event {name}", "frx ledger list shows them")
    return found


def _check_hex_name(name: str | None, option: str) -> str | None:
    if name is not None and not _SIGNATURE.fullmatch(name):
        raise OptionError(f"{option} {clean_line(name, 80)!r} is not sixteen hexadecimal digits", "frx ledger list")
    return name


def _parse_kind(name: str) -> Kind:
    known = {kind.value.replace(" ", "-"): kind for kind in Kind}
    plain = name.strip().lower().replace(" ", "-").replace("_", "-")
    if plain not in known:
        near = difflib.get_close_matches(plain, known, n=1)
        hint = f"did you mean {near[0]}?" if near else ", ".join(known)
        raise OptionError(f"unknown --kind {clean_line(name, 80)!r}", hint)
    return known[plain]
