"""`frx_ledger_v1`: the JSON document of `frx ledger list` and `show`. Each line of an export is one event of that
document.

Within v1 fields may be added, but none is removed or changes its meaning, so readers ignore unknown fields. Unknown is
null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import ConfigDict, Field

from frx_graph.ledger.active_plans import PlanStates
from frx_graph.ledger.decision import Kind, RecordedEvent
from frx_graph.ledger.event_document import EventModel, LedgerModel, export_event
from frx_graph.ledger.trial_summary import TrialSummary

SCHEMA_NAME = "frx_ledger_v1"


class _DocumentModel(LedgerModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class PlanStateModel(_DocumentModel):
    """State of one plan in one environment."""

    environment: str
    plan: str
    state: Kind
    stands: bool
    """True if the plan may be applied there."""
    since: int = Field(ge=1)
    """The event that set this state."""
    promoted: int | None
    """The event of the plan's last promotion, even if inactive now."""


class ListedEventModel(EventModel):
    """An event, and the trial that it rests on."""

    trial_summary: TrialSummary | None = Field(default=None, description="Null: no trial is known.")


class LedgerDocument(_DocumentModel):
    """Decisions about layouts, with author, time, evidence and reason."""

    schema_name: Literal["frx_ledger_v1"] = Field(alias="schema")
    ledger: str
    """The ledger's file or URL, without passwords."""
    total: int = Field(ge=0)
    """Number of matching events, shown or not."""
    events: tuple[ListedEventModel, ...]
    """Oldest first."""
    plans: tuple[PlanStateModel, ...] | None
    """The plans' states for one graph; null if events of several graphs were requested."""


def build_ledger_document(
    ledger: str,
    total: int,
    events: Sequence[RecordedEvent],
    summaries: Mapping[int, TrialSummary],
    standings: Mapping[str, PlanStates] | None = None,
) -> dict[str, Any]:
    """Return the document as `LedgerDocument` describes it, with any other fields of the events. `summaries` holds the
    events' trials by position, `standings` one graph's states by environment."""
    return {
        "schema": SCHEMA_NAME,
        "ledger": ledger,
        "total": total,
        "events": [
            {
                **export_event(event),
                "trial_summary": None
                if (found := summaries.get(event.position)) is None
                else found.model_dump(mode="json"),
            }
            for event in events
        ],
        "plans": None
        if standings is None
        else [
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
        ],
    }
