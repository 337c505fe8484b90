"""Read from a trial's document what a list of decisions shows: the target, the gain and the machine.

Documents of other versions are read, too: every part may be missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field

from frx_graph.ledger.canonical_json import parse_json
from frx_graph.ledger.decision import RecordedEvent
from frx_graph.ledger.event_document import LedgerModel
from frx_graph.ledger.store import Ledger

_MOST = 1e15


class TrialSummary(LedgerModel):
    """The trial that a decision rests on. Null: unknown."""

    event: int = Field(ge=1, description="The event with the trial.")
    target: str | None = Field(description="The model that was tried, or the place of the graph.")
    verdict: str | None
    failed: tuple[str, ...] = Field(description="Gates that the candidate failed.")
    ratio: float | None = Field(description="Median of baseline time over candidate time.")
    low: float | None = Field(description="Lower end of the ratio's interval.")
    high: float | None = Field(description="Upper end of it.")
    quads: int | None
    processes: int | None
    device: str | None = Field(description="The GPU, or the processor.")
    threads: int | None
    torch: str | None
    allocation: str | None = Field(default=None, description="The allocation of host memory that it was decided for.")


def read_summaries(ledger: Ledger, events: Iterable[RecordedEvent]) -> dict[int, TrialSummary]:
    """Return the summary of the trial that each event rests on, by the event's position; without one, no entry. Raises
    LedgerError."""
    found = {event.position: summarize_evidence(ledger.read_evidence(event)) for event in events}
    return {position: summary for position, summary in found.items() if summary is not None}


def summarize_evidence(evidence: RecordedEvent | None) -> TrialSummary | None:
    """Return the summary of the trial that an event holds; None without one."""
    if evidence is None or evidence.decision.trial is None:
        return None
    return summarize_trial(evidence.position, evidence.decision.trial)


def summarize_trial(position: int, text: str) -> TrialSummary:
    """Return the summary of the trial in `text`, which the event at `position` holds."""
    document = _get_mapping(parse_json(text))
    setup = _get_mapping(_get_mapping(document.get("environment")).get("setup"))
    check = _get_mapping(document.get("check"))
    # Earlier versions do not say which of two allocations was decided for.
    allocation = _get_text(document, "allocation") or (None if check else _get_text(setup, "allocation"))
    checked = bool(check) and allocation == check.get("allocation")
    stats = _count_check(check) if checked else _get_mapping(document.get("stats"))
    operators = _get_mapping(setup.get("operators"))
    gates = document.get("gates")
    passed = map(_get_mapping, gates if isinstance(gates, list) else ())
    return TrialSummary(
        event=position,
        target=_get_text(document, "target"),
        verdict=_get_text(check if checked else document, "verdict"),
        failed=tuple(str(gate.get("name")) for gate in passed if gate.get("passed") is False),
        ratio=_get_number(stats, "ratio_median"),
        low=_get_number(stats, "ci_low"),
        high=_get_number(stats, "ci_high"),
        quads=_get_count(stats, "quads"),
        processes=_get_count(stats, "processes"),
        device=_get_text(setup, "processor")
        if operators.get("device") == "cpu"
        else _get_text(operators, "device_name"),
        threads=_get_count(operators, "threads"),
        torch=_get_text(operators, "torch"),
        allocation=allocation,
    )


def _count_check(check: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the figures of a check with another allocation, under the names of a trial's figures; it has no bounds."""
    samples, pairs = (each if isinstance(each := check.get(name), list) else [] for name in ("samples", "pair_medians"))
    return {
        "ratio_median": check.get("ratio_median"),
        "quads": sum(_get_mapping(quad).get("void") is False for quad in samples),
        "processes": len(pairs),
    }


def _get_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _get_text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    return value if isinstance(value, str) and value.strip() else None


def _get_number(fields: Mapping[str, Any], name: str) -> float | None:
    value = fields.get(name)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    # An integer may be larger than any float.
    return float(value) if abs(value) < _MOST and math.isfinite(value) else None


def _get_count(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST else None
