"""Render events for a terminal: a list, or one event in full. Names are shown as one line of printable text."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.text import Text

from frx_graph.ledger.active_plans import PlanStates
from frx_graph.ledger.canonical_json import parse_json
from frx_graph.ledger.decision import Kind, RecordedEvent
from frx_graph.records import Candidate
from frx_graph.reports.render.quantities import format_count, format_prediction
from frx_graph.reports.render.text_console import make_console
from frx_graph.support.plain_text import clean_line

CANDIDATES_SHOWN = 20
NODES_SHOWN = 6
_AUTHOR_LIMIT = 28
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


def render_list(
    events: Sequence[RecordedEvent],
    standings: Mapping[str, PlanStates],
    *,
    total: int,
    ledger: str,
    width: int,
    color: bool,
) -> str:
    """Render the last of `total` events, three lines each, oldest first; then the active plans by environment."""
    # Wrap prose only: paths and the line of names (79 columns) stay whole.
    out, console = make_console(width, color, soft_wrap=True)
    for event in events:
        decision = event.decision
        console.print(
            Text.assemble(
                (f"#{event.position}", "bold"),
                " ",
                _style_kind(decision.kind),
                f"  {_format_time(decision.recorded_at)}  by {clean_line(decision.decided_by, _AUTHOR_LIMIT)}",
            )
        )
        names = f"graph {decision.signature}  environment {decision.environment}  plan {decision.plan}"
        console.print(Text(f"{_INDENT}{names}", "dim"))
        console.print(Text("\n".join(_wrap_text(clean_line(decision.reason, 1000), _INDENT, _INDENT, width))))
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
    console.print(Text(f"{format_count(total, 'event')} in {ledger}"))
    return out.getvalue()


def render_event(event: RecordedEvent, evidence: RecordedEvent | None, *, width: int, color: bool) -> str:
    """Render one event in full. `evidence` is the last trial of the plan up to then."""
    out, console = make_console(width, color, soft_wrap=True)
    decision = event.decision
    console.print(Text.assemble((f"#{event.position}", "bold"), " ", _style_kind(decision.kind)))
    author = f"{clean_line(decision.decided_by)}, process {decision.process_id} on {clean_line(decision.host)}"
    hidden = len(decision.candidates) - CANDIDATES_SHOWN
    rows = [
        ("When", _format_time(decision.recorded_at)),
        ("By", author),
        ("Why", clean_line(decision.reason, 1000)),
        ("Graph", decision.signature),
        ("Environment", decision.environment),
        ("Plan", decision.plan),
        ("Policy", decision.policy or "none: a person's choice"),
        *(("Candidate", _format_candidate(candidate)) for candidate in decision.candidates[:CANDIDATES_SHOWN]),
        *([("", f"and {hidden} more: --format json shows all")] if hidden > 0 else []),
        *_make_evidence_rows(event, evidence),
        ("Hash", event.hash),
        ("Before it", event.previous),
    ]
    for label, text in rows:
        start = f"  {label:<{_LABEL - 2}}"
        console.print(Text("\n".join(_wrap_text(text, start, " " * _LABEL, width))))
    return out.getvalue()


def _style_kind(kind: Kind) -> tuple[str, str]:
    return kind.value, _STYLES.get(kind, "")


def _format_time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


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


def _make_evidence_rows(event: RecordedEvent, evidence: RecordedEvent | None) -> list[tuple[str, str]]:
    if event.decision.trial is not None:
        return [("Trial", summarize_trial(event.decision.trial))]
    if evidence is None or evidence.position == event.position or evidence.decision.trial is None:
        return []
    return [("Evidence", f"event {evidence.position}: {summarize_trial(evidence.decision.trial)}")]


def summarize_trial(text: str) -> str:
    """Return a trial's document as one line: verdict, ratio of the arms' times, amount measured, failed gates.

    Every part of the document may be missing.
    """
    document = parse_json(text)
    stats, gates = document.get("stats"), document.get("gates")
    parts = [
        clean_line(document["verdict"], 40) if isinstance(document.get("verdict"), str) else "",
        *(_format_stats(stats) if isinstance(stats, dict) else ()),
        *(
            f"failed at {clean_line(str(gate.get('name')), 40)}"
            for gate in (gates if isinstance(gates, list) else ())
            if isinstance(gate, dict) and gate.get("passed") is False
        ),
    ]
    return ", ".join(filter(None, parts)) or "no verdict"


def _format_stats(stats: dict[str, Any]) -> tuple[str, ...]:
    ratio, low, high = (_to_number(stats.get(name)) for name in ("ratio_median", "ci_low", "ci_high"))
    interval = f" ({low:.3f} to {high:.3f})" if low is not None and high is not None else ""
    counts = [
        f"{count:g} {name}" for name in ("quads", "processes") if (count := _to_number(stats.get(name))) is not None
    ]
    return ("" if ratio is None else f"ratio {ratio:.3f}{interval}", " in ".join(counts))


def _to_number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
