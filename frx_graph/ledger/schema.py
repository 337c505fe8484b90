"""`frx_ledger_v1`: the JSON document of `frx ledger list` and `show`; each line of an export is one of its events.

Within v1 fields may be added; none is removed and none changes its meaning, so readers pass over fields they do not
know. Unknown is null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import ConfigDict, Field

from frx_graph.ledger.active_plans import PlanStates
from frx_graph.ledger.decision import Kind, RecordedEvent
from frx_graph.ledger.event_document import EventModel, LedgerModel, export_event

SCHEMA_NAME = "frx_ledger_v1"


class _DocumentModel(LedgerModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class PlanStateModel(_DocumentModel):
    """Where one plan has come to in one environment."""

    environment: str
    plan: str
    state: Kind
    stands: bool
    """Whether it may be applied there."""
    since: int = Field(ge=1)
    """The event that brought it there."""
    promoted: int | None
    """The event of its last promotion, whether or not it still stands."""


class LedgerDocument(_DocumentModel):
    """Decisions about layouts: who decided what, when, on what evidence, and why."""

    schema_name: Literal["frx_ledger_v1"] = Field(alias="schema")
    ledger: str
    """Its file or URL, without passwords."""
    total: int = Field(ge=0)
    """Events that match, whether or not they are shown."""
    events: tuple[EventModel, ...]
    """Oldest first."""
    plans: tuple[PlanStateModel, ...] | None
    """What the events of one graph come to; null where events of several were asked for."""


def build_ledger_document(
    ledger: str, total: int, events: Sequence[RecordedEvent], standings: Mapping[str, PlanStates] | None = None
) -> dict[str, Any]:
    """The document as `LedgerDocument` describes it, with whatever else the events hold. `standings` are those of one
    graph, by environment."""
    return {
        "schema": SCHEMA_NAME,
        "ledger": ledger,
        "total": total,
        "events": [export_event(event) for event in events],
        "plans": None if standings is None else _dump_plans(standings),
    }


def _dump_plans(standings: Mapping[str, PlanStates]) -> list[dict[str, Any]]:
    return [
        {
            "environment": environment,
            "plan": plan.plan,
            "state": plan.state.value,
            "stands": plan.stands,
            "since": plan.last.position,
            "promoted": None if plan.promoted is None else plan.promoted.position,
        }
        for environment, standing in standings.items()
        for plan in standing.plans.values()
    ]
