"""Render events for a terminal: a list, or one event in full. Names are shown as one line of printable text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from rich.text import Text

from frx_graph.ledger.active_plans import PlanStates
from frx_graph.ledger.decision import Decision, Kind, RecordedEvent
from frx_graph.ledger.trial_summary import TrialSummary
from frx_graph.passes import inner_choice
from frx_graph.records import Candidate
from frx_graph.reports.render.quantities import format_count, format_prediction
from frx_graph.reports.render.text_console import make_console
from frx_graph.reports.trials.trial_document import TrialDocument
from frx_graph.reports.trials.trial_report import render_trial
from frx_graph.support.allocator import Allocation
from frx_graph.support.plain_text import clean_line
from frx_graph.trials.allocation_check import DESCRIPTIONS, NAMES
from frx_graph.trials.verdict import format_gain, format_percent

CANDIDATES_SHOWN = 20
NODES_SHOWN = 6
_NAME_LIMIT = 60
_AUTHOR_LIMIT = 28
_REWRITES_SHOWN = 3
_INDENT = "    "
_LABEL = 14

_STYLES = {
    Kind.PROMOTED: "green",
    Kind.APPLIED: "bold green",
    Kind.REJECTED: "red",
    Kind.ROLLED_BACK: "bold red",
    Kind.INCONCLUSIVE: "yellow",
    Kind.EXPIRED: "yellow",
}
_VERDICTS = frozenset([Kind.TRIED, Kind.PROMOTED, Kind.REJECTED, Kind.INCONCLUSIVE])
"""Kinds whose reason is the verdict, which has the gain."""
_FOLLOWS = {
    Kind.TRIED: (Kind.PROPOSED,),
    Kind.PROMOTED: (Kind.TRIED,),
    Kind.REJECTED: (Kind.TRIED,),
    Kind.INCONCLUSIVE: (Kind.TRIED,),
}
"""Kinds of one trial, and the kind before each."""


def render_list(
    events: Sequence[RecordedEvent],
    summaries: Mapping[int, TrialSummary],
    standings: Mapping[str, PlanStates],
    *,
    total: int,
    ledger: str,
    now: datetime,
    width: int,
    color: bool,
    everything: int | None = None,
    separate: bool = False,
) -> str:
    """Render the last of `total` matching events, oldest first: target, rewrites, reason, machine, age and author, and
    hashes last. Then the active plans by environment. The events of one trial are shown as the last of them, unless
    they are to be `separate`. `everything` is the number of events in the ledger if that is more than `total`."""
    # Wrap prose only: paths and the line of names (79 columns) stay whole.
    out, console = make_console(width, color, soft_wrap=True)
    for group in group_trials(events) if not separate else [(event,) for event in events]:
        event = group[-1]
        decision, trial = event.decision, summaries.get(event.position)
        target = "" if trial is None or trial.target is None else f"  {clean_line(trial.target, _NAME_LIMIT)}"
        first = f"#{group[0].position} to " if len(group) > 1 else ""
        name = (f"{first}#{event.position}", "bold")
        console.print(Text.assemble(name, " ", _style_kind(decision.kind), target))
        for line in (
            format_rewrites(decision.candidates),
            "" if decision.kind in _VERDICTS else format_trial_gain(trial),
            clean_line(decision.reason, 1000),
            _describe_origin(decision, trial, now),
        ):
            if line:
                console.print(Text("\n".join(_wrap_text(line, _INDENT, _INDENT, width))))
        names = f"graph {decision.signature}  environment {decision.environment}  plan {decision.plan}"
        console.print(Text(f"{_INDENT}{names}", "dim"))
    for environment, standing in standings.items():
        current = standing.current
        runs = f"plan {current.plan} is active" if current is not None else "no active plan, the baseline runs"
        console.print(Text(f"Environment {environment}: {runs}", "bold"))
        for plan in standing.plans.values():
            since = f" since event {plan.last.position}"
            console.print(Text.assemble(f"{_INDENT}plan {plan.plan} ", _style_kind(plan.state), since))
    hidden = total - len(events)
    if hidden:
        console.print(Text(f"{format_count(hidden, 'older event')}: --limit {total} shows all.", "dim"))
    counted = format_count(total, "event")
    if everything is not None and everything > total:
        counted = f"{total} of {format_count(everything, 'event')}"
    console.print(Text(f"{counted} in {ledger}"))
    return out.getvalue()


def render_event(
    event: RecordedEvent,
    summary: TrialSummary | None,
    trial: TrialDocument | None,
    *,
    now: datetime,
    width: int,
    color: bool,
) -> str:
    """Render one event in full, then the last trial of the plan up to that event, with gates and samples. Without
    `trial`, which another version has written, only the `summary` is shown."""
    out, console = make_console(width, color, soft_wrap=True)
    decision = event.decision
    console.print(Text.assemble((f"#{event.position}", "bold"), " ", _style_kind(decision.kind)))
    author = f"{clean_line(decision.decided_by)}, process {decision.process_id} on {clean_line(decision.host)}"
    hidden = len(decision.candidates) - CANDIDATES_SHOWN
    rows = [
        ("Target", "" if summary is None else clean_line(summary.target or "", 200)),
        ("When", f"{_format_time(decision.recorded_at)}, {format_age(now - decision.recorded_at)}"),
        ("By", author),
        ("Why", clean_line(decision.reason, 1000)),
        *(("Candidate", _format_candidate(candidate)) for candidate in decision.candidates[:CANDIDATES_SHOWN]),
        *([("", f"and {hidden} more: --format json shows all")] if hidden > 0 else []),
        ("Gain", format_trial_gain(summary)),
        ("Machine", format_machine(summary)),
        ("Allocator", _describe_allocator(summary, DESCRIPTIONS)),
        ("Trial", _describe_trial(event, summary)),
        ("Policy", decision.policy or "none: a person's choice"),
        ("Graph", decision.signature),
        ("Environment", decision.environment),
        ("Plan", decision.plan),
        ("Hash", event.hash),
        ("Before it", event.previous),
    ]
    for label, text in rows:
        if text:
            start = f"  {label:<{_LABEL - 2}}"
            console.print(Text("\n".join(_wrap_text(text, start, " " * _LABEL, width))))
    if trial is None:
        return out.getvalue()
    console.print()
    return out.getvalue() + render_trial(trial, width=width, color=color, samples=True)


def parse_trial(event: RecordedEvent | None) -> TrialDocument | None:
    """Return the event's trial; None if it has none, or one that another version has written."""
    if event is None or event.decision.trial is None:
        return None
    try:
        return TrialDocument.model_validate_json(event.decision.trial)
    except ValueError:
        return None


def format_rewrites(candidates: Sequence[Candidate]) -> str:
    """Return the names of the rewrites and compiler settings, each once, with the number of operators that they
    change."""
    counts: dict[str, int] = {}
    for one in candidates:
        name = one.choices[0] if one.rewrite == inner_choice.NAME and one.choices else one.rewrite
        counts[name] = counts.get(name, 0) + len(one.nodes)
    said = [
        clean_line(name, _NAME_LIMIT) + (f" of {format_count(count, 'operator')}" if count else "")
        for name, count in counts.items()
    ]
    hidden = len(said) - _REWRITES_SHOWN
    return ", ".join(said[:_REWRITES_SHOWN]) + (f" and {hidden} more" if hidden > 0 else "")


def format_trial_gain(trial: TrialSummary | None) -> str:
    """Return the gain that a trial measured, with its interval: `12.5 % faster (+10.0 to +15.0 %)`. Empty if none."""
    if trial is None or trial.ratio is None:
        return ""
    if trial.low is None or trial.high is None:
        return format_gain(trial.ratio)
    return f"{format_gain(trial.ratio)} ({format_percent(trial.low)} to {format_percent(trial.high)} %)"


def shorten_reason(decision: Decision) -> str:
    """Return the part of a decision's reason that a table has room for: without the gain, up to the first semicolon."""
    reason = clean_line(decision.reason, 1000).partition(";")[0]
    if decision.kind not in _VERDICTS:
        return reason
    return reason.partition("%): ")[2] or reason.partition(": between ")[0]


def format_machine(trial: TrialSummary | None) -> str:
    """Return a trial's device, threads and version of torch, as far as they are known."""
    if trial is None:
        return ""
    parts = (
        clean_line(trial.device or "", _NAME_LIMIT),
        "" if trial.threads is None else format_count(trial.threads, "thread"),
        "" if trial.torch is None else f"torch {clean_line(trial.torch, _NAME_LIMIT)}",
    )
    return ", ".join(filter(None, parts))


def format_age(age: timedelta) -> str:
    """Return an age in one unit: `3 hours ago`. Another machine's clock may be ahead."""
    minutes = age // timedelta(minutes=1)
    if minutes < 1:
        return "just now"
    for unit, size in (("day", 24 * 60), ("hour", 60)):
        if minutes >= 2 * size:
            return f"{format_count(minutes // size, unit)} ago"
    return f"{format_count(minutes, 'minute')} ago"


def group_trials(events: Iterable[RecordedEvent]) -> list[tuple[RecordedEvent, ...]]:
    """Return the events in order, those of one trial together: proposed, tried, and its verdict."""
    groups: list[tuple[RecordedEvent, ...]] = []
    for event in events:
        if groups and _continues(groups[-1][-1], event):
            groups[-1] += (event,)
        else:
            groups.append((event,))
    return groups


def _continues(before: RecordedEvent, event: RecordedEvent) -> bool:
    one, other = before.decision, event.decision
    follows = event.position == before.position + 1 and one.kind in _FOLLOWS.get(other.kind, ())
    return follows and (one.signature, one.environment, one.plan) == (other.signature, other.environment, other.plan)


def _describe_allocator(trial: TrialSummary | None, words: Mapping[Allocation, str]) -> str:
    """Return the allocator that a trial was decided for, in these words; empty if unknown."""
    name = None if trial is None else trial.allocation
    return words[Allocation(name)] if name in set(Allocation) else ""


def _style_kind(kind: Kind) -> tuple[str, str]:
    return kind.value, _STYLES.get(kind, "")


def _format_time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _describe_origin(decision: Decision, trial: TrialSummary | None, now: datetime) -> str:
    author = f"by {clean_line(decision.decided_by, _AUTHOR_LIMIT)}"
    when = f"{decision.recorded_at:%Y-%m-%d %H:%M} UTC, {format_age(now - decision.recorded_at)}"
    machine = ", ".join(filter(None, (format_machine(trial), _describe_allocator(trial, NAMES))))
    return "; ".join(filter(None, (f"{when}, {author}", machine)))


def _describe_trial(event: RecordedEvent, trial: TrialSummary | None) -> str:
    if trial is None:
        return ""
    counts = [
        format_count(count, name, names)
        for name, names, count in (
            ("round", "rounds", trial.quads),
            ("process pair", "process pairs", trial.processes),
        )
        if count is not None
    ]
    parts = [
        "" if trial.event == event.position else f"event {trial.event}",
        clean_line(trial.verdict or "no verdict", 40),
        " in ".join(counts),
        *(f"failed at {clean_line(name, 40)}" for name in trial.failed),
    ]
    return ", ".join(filter(None, parts))


def _wrap_text(text: str, first: str, rest: str, width: int) -> list[str]:
    lines = textwrap.wrap(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    return lines or [first.rstrip()]


def _format_candidate(candidate: Candidate) -> str:
    # A change without operators applies to the whole graph.
    shown = candidate.nodes or candidate.choices
    nodes = [clean_line(node, 60) for node in shown[:NODES_SHOWN]]
    hidden = len(shown) - len(nodes)
    where = ", ".join(nodes) + (f" and {hidden} more" if hidden else "")
    expected = format_prediction(candidate)
    of = f"of {where or 'the whole graph'}" if candidate.nodes or not where else where
    return f"{clean_line(candidate.rewrite, 60)} {of}{expected and f', {expected}'}"
