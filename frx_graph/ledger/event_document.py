"""Write an event as text to hash, store and export, and read it back."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from frx_graph.errors import LedgerError
from frx_graph.ledger.canonical_json import dump_canonical, hash_content, parse_json
from frx_graph.ledger.decision import Decision, Kind, RecordedEvent
from frx_graph.records import Candidate
from frx_graph.support.plain_text import escape_surrogates

EVENT_SCHEMA = "frx_ledger_event_v1"

NO_EVENT = "0" * 64
"""The hash of the event before the first."""

_Name = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
_Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class LedgerModel(BaseModel):
    """Base of the parts of a ledger's documents, whose readers ignore unknown fields. `Field` describes them: for
    docstrings pydantic would read this file at every start."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class CandidateModel(LedgerModel):
    """A rewrite bound to operators of a graph."""

    rewrite: str
    graph_id: str
    nodes: tuple[str, ...] = Field(description="The operators that it changes.")
    choices: tuple[str, ...] = Field(description="The new value for each, if the rewrite has a choice.")
    predicted_seconds: float | None = Field(description="Predicted saving per run of the graph.")
    run_seconds: float | None = Field(default=None, description="Price of a run, or a step, without any rewrite.")


class HashedEvent(LedgerModel):
    """An event without its own hash."""

    schema_name: Literal["frx_ledger_event_v1"] = Field(alias="schema")
    position: int = Field(ge=1, description="Position in the ledger, from 1, without gaps.")
    previous: _Hash = Field(description="Hash of the previous event; zeros for the first.")
    kind: Kind
    signature: _Name = Field(description="The graph or the workload.")
    environment: _Name = Field(description="Fingerprint of versions, device and settings.")
    plan: _Name = Field(description="Hash of the plan.")
    candidates: tuple[CandidateModel, ...]
    trial: dict[str, Any] | None = Field(description="The evidence: an frx_trial_v1 document.")
    reason: str
    decided_by: str = Field(description='autopilot, frx trial, backend="frx", or a person.')
    policy: _Name | None = Field(description="Hash of the applied policy; null if a person chose.")
    host: str
    process_id: int = Field(ge=0)
    recorded_at: str = Field(description="ISO 8601, UTC, microseconds.")


class EventModel(HashedEvent):
    """One event, as `frx ledger export` writes it on one line."""

    hash: _Hash = Field(
        description="SHA-256 of the event without this field, as JSON with sorted keys, no spaces, and ASCII only."
    )


def record_event(decision: Decision, position: int, previous: str) -> RecordedEvent:
    """Return `decision` as the event at `position`, after the event with the hash `previous`."""
    document = dump_canonical(
        {
            **dataclasses.asdict(decision),
            "schema": EVENT_SCHEMA,
            "position": position,
            "previous": previous,
            "trial": None if decision.trial is None else parse_json(decision.trial),
            "recorded_at": format_time(decision.recorded_at),
        }
    )
    return RecordedEvent(position, hash_content(document), previous, decision, document)


def read_event(document: str, stored_hash: str) -> RecordedEvent:
    """Return the event in `document`, its hash unchecked. Raises LedgerError if this version does not understand it."""
    try:
        fields = parse_json(document)
        schema = fields.get("schema") if isinstance(fields, dict) else None
        if isinstance(schema, str) and schema.startswith("frx_ledger_event_v") and schema != EVENT_SCHEMA:
            raise LedgerError(f"an event has the schema {schema[:40]!r}", "a newer frx-graph wrote it: update this one")
        event = HashedEvent.model_validate(fields)
        stored: dict[str, Any] = {field.name: getattr(event, field.name) for field in dataclasses.fields(Decision)}
        stored["recorded_at"] = datetime.fromisoformat(event.recorded_at)
        stored["candidates"] = tuple(Candidate(**candidate.model_dump()) for candidate in event.candidates)
        stored["trial"] = None if event.trial is None else dump_canonical(event.trial)
        decision = Decision(**stored)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "all of it"
        raise LedgerError(f"an event is malformed: {where}: {first['msg']}") from error
    except ValueError as error:
        raise LedgerError(f"an event is malformed: {error}") from error
    return RecordedEvent(event.position, stored_hash, event.previous, decision, document)


def export_event(event: RecordedEvent) -> dict[str, Any]:
    """Return the event as `EventModel` describes it, with all other stored fields."""
    return {**parse_json(event.document), "hash": event.hash}


def format_time(at: datetime) -> str:
    """Return a time in UTC as text that sorts chronologically."""
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def make_event_row(event: RecordedEvent) -> dict[str, object]:
    """Return the event's row, by column."""
    decision = event.decision
    return {
        "position": event.position,
        "hash": event.hash,
        "previous": event.previous,
        "kind": decision.kind.value,
        "signature": decision.signature,
        "environment": decision.environment,
        "plan": decision.plan,
        "decided_by": escape_surrogates(decision.decided_by),
        "recorded_at": format_time(decision.recorded_at),
        "document": event.document,
    }


def export_lines(rows: Iterable[Mapping[str, object]]) -> Iterator[str]:
    """Yield a JSON line for each row, oldest first. Raises LedgerError, with the number, for an invalid row."""
    for row in rows:
        try:
            event = read_event(str(row["document"]), str(row["hash"]))
        except LedgerError as error:
            raise LedgerError(f"event {row['position']}: {error.message}", "frx ledger verify") from error
        yield dump_canonical(export_event(event))
