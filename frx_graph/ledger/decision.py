"""Decisions about a plan for one graph in one environment, and the decisions that follow from them."""

from __future__ import annotations

import enum
import getpass
import math
import os
import platform
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta

from frx_graph.ledger.canonical_json import dump_canonical, parse_json
from frx_graph.records import Candidate
from frx_graph.support.plain_text import clean_line


@dataclass(frozen=True, slots=True)
class Author:
    """The person or program part that decides, with its machine and process."""

    decided_by: str
    host: str
    process_id: int


def make_process_author(decided_by: str | None = None) -> Author:
    """Return the author for this process; without `decided_by`, the user who runs it."""
    return Author(decided_by or _get_user_name(), clean_line(platform.node()) or "unknown host", os.getpid())


def _get_user_name() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # OSError since Python 3.13; a container's user may have no name
        name = ""
    return clean_line(name) or f"user {os.getuid()}"


AUTOPILOT = "autopilot"
"""`decided_by` of trials that the autopilot makes unasked."""
BACKEND = 'backend="frx"'
"""`decided_by` of a program that applies, expires or rolls back a promoted plan, in any mode."""

TRIAL_SCHEMA = "frx_trial_v1"

_NAME = re.compile(r"[0-9a-f]{16}")
_NOT_ONE_LINE = re.compile(r"[\0\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")
_REASON_LIMIT = 1000
"""Characters of a program's error, which may be the only reason."""


class Kind(enum.StrEnum):
    """Kind of a decision."""

    PROPOSED = "proposed"
    """Worth trying. Unless the autopilot made it, it also allows a rolled-back plan to be tried again."""
    TRIED = "tried"
    """A trial ended; its measurements are the evidence."""
    PROMOTED = "promoted"
    """The trial showed that the plan is correct and faster: it may be applied."""
    REJECTED = "rejected"
    INCONCLUSIVE = "inconclusive"
    APPLIED = "applied"
    """A process runs with the plan."""
    ROLLED_BACK = "rolled back"
    """The plan did harm, or a user withdrew it: back to the baseline."""
    EXPIRED = "expired"
    """Too old to rely on: it must be tried again before it is applied."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision about a plan: its kind, author, time, evidence and reason.

    `signature` names a graph or a workload, `environment` is the fingerprint of the machine and versions, `plan` is the
    hash of a `frx_graph.plan.Plan`, and `policy` is the hash of the applied policy (None: a person's choice): sixteen
    hexadecimal digits each. `trial` is the text of an `frx_trial_v1` document, and is stored in canonical form.
    `recorded_at` has a time zone and is stored in UTC. Raises ValueError for anything else.
    """

    kind: Kind
    signature: str
    environment: str
    plan: str
    reason: str
    """One line."""
    decided_by: str
    """`autopilot`, `frx trial`, the name of a person."""
    host: str
    process_id: int
    recorded_at: datetime
    policy: str | None = None
    candidates: tuple[Candidate, ...] = ()
    trial: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("signature", "environment", "plan", "policy"):
            value = getattr(self, name)
            if not (value is None and name == "policy") and not _NAME.fullmatch(value):
                raise ValueError(f"{name} is not sixteen hexadecimal digits: {value[:40]!r}")
        for name in ("reason", "decided_by", "host"):
            value = getattr(self, name)
            if not value.strip() or _NOT_ONE_LINE.search(value):
                raise ValueError(f"{name} is not one line of text: {value[:40]!r}")
        if self.process_id < 0:
            raise ValueError(f"no process has the id {self.process_id}")
        if self.recorded_at.utcoffset() is None:
            raise ValueError("recorded_at has no time zone")
        object.__setattr__(self, "recorded_at", self.recorded_at.astimezone(UTC))
        predictions = [s for one in self.candidates for s in (one.predicted_seconds, one.run_seconds)]
        if not all(math.isfinite(seconds) for seconds in predictions if seconds is not None):
            raise ValueError("a candidate's predicted seconds are not a finite number")
        if self.trial is not None:
            object.__setattr__(self, "trial", _canonicalize_trial(self.trial))

    def make_follow_up(
        self, kind: Kind, *, reason: str, by: Author, at: datetime, policy: str | None = None
    ) -> Decision:
        """Return the next decision about the same plan, without a trial."""
        return replace(self, kind=kind, reason=reason, recorded_at=at, policy=policy, trial=None, **asdict(by))


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """A decision in a ledger, with its position from 1, its content's hash and the previous event's hash. `document` is
    the hashed text."""

    position: int
    hash: str
    previous: str
    decision: Decision
    document: str = field(repr=False)


def format_reason(text: str) -> str:
    """Return `text`, which may come from a program, as one printable line: a decision's reason."""
    return clean_line(text, _REASON_LIMIT)


def _canonicalize_trial(text: str) -> str:
    try:
        document = parse_json(text)
        canonical_text = dump_canonical(document)
    except ValueError as error:
        raise ValueError(f"the trial is not JSON: {error}") from error
    found = document.get("schema") if isinstance(document, dict) else None
    if found != TRIAL_SCHEMA:
        raise ValueError(f"the trial is not an {TRIAL_SCHEMA} document: its schema is {str(found)[:40]!r}")
    return canonical_text


def make_rollbacks(
    promotions: Iterable[RecordedEvent], *, reason: str, by: Author, now: datetime, policy: str | None = None
) -> tuple[Decision, ...]:
    """Return the decisions that withdraw these promotions, to be appended together. `policy` is None for a person's
    choice."""
    return tuple(
        event.decision.make_follow_up(Kind.ROLLED_BACK, reason=reason, by=by, at=now, policy=policy)
        for event in promotions
    )


def make_expiry(promotion: Decision, max_age: timedelta, *, now: datetime, by: Author) -> Decision | None:
    """Return the decision that expires a promotion older than `max_age`; None if it is younger. A promotion dated in
    the future, by another machine's clock, counts as young."""
    age = now - promotion.recorded_at
    if age <= max_age:
        return None
    reason = f"promoted {_format_days(age)} ago, which is more than {_format_days(max_age)}"
    return promotion.make_follow_up(Kind.EXPIRED, reason=reason, by=by, at=now, policy=promotion.policy)


def _format_days(span: timedelta) -> str:
    return f"{span / timedelta(days=1):.1f} days"
