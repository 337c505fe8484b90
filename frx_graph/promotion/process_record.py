"""Remember for this process the plans applied and withdrawn, and unreachable ledgers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from datetime import datetime

from torch import distributed as dist

from frx_graph.distributed.consensus import has_several_ranks
from frx_graph.errors import LedgerUnreachableError
from frx_graph.ledger.decision import BACKEND, Decision, Kind, format_reason, make_process_author
from frx_graph.ledger.fast_path import append_decisions
from frx_graph.ledger.location import Location
from frx_graph.promotion.promoted_plan import Promotion, Subject

PATIENCE_SECONDS = 5.0
"""Longest wait of a compilation for other writers of the ledger, one of which may never end."""


class ProcessRecord:
    """Record the fate of plans in this process, in the ledger and in memory: an application before it happens, and a
    rollback even if the ledger cannot."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._applied: set[tuple[str, ...]] = set()
        self._withdrawn: set[tuple[str, ...]] = set()
        self._unreachable: dict[Location, tuple[str, str]] = {}

    def withdraw(self, promotion: Promotion, reason: str) -> bool:
        """Record that the plan is rolled back; return False if it was before. Raises `LedgerError`."""
        with self._lock:
            if promotion.key in self._withdrawn:
                return False
            self._withdrawn.add(promotion.key)
        promotion.withdraw(format_reason(reason))
        return True

    def is_withdrawn(self, promotion: Promotion) -> bool:
        """Return whether this process has rolled the plan back."""
        return promotion.key in self._withdrawn

    def has_withdrawn_any(self, subject: Subject) -> bool:
        """Return whether this process has rolled back a plan of the graph."""
        here = (str(subject.place), subject.signature, subject.environment)
        with self._lock:
            return any(key[:3] == here for key in self._withdrawn)

    def record_applied(self, promotion: Promotion, decision: Decision, now: datetime) -> None:
        """Record, once, that the plan that `decision` has promoted is applied. Raises `LedgerError`."""
        with self._lock:
            if promotion.key not in self._applied:
                reason = "promoted for this graph in this environment"
                if has_several_ranks():
                    reason += f", offered to {dist.get_world_size()} ranks"
                by = make_process_author(BACKEND)
                event = decision.make_follow_up(Kind.APPLIED, reason=reason, by=by, at=now, policy=decision.policy)
                append_decisions(promotion.subject.place, [event], patience_seconds=PATIENCE_SECONDS)
                self._applied.add(promotion.key)

    @contextlib.contextmanager
    def reach(self, place: Location) -> Iterator[None]:
        """Access the ledger at `place`; once its server could not be reached, raise that again without trying: each
        graph would wait for it. Rollbacks are still recorded, if the server is back by then."""
        if (known := self._unreachable.get(place)) is not None:
            raise LedgerUnreachableError(*known)
        try:
            yield
        except LedgerUnreachableError as error:
            self._unreachable[place] = (error.message, error.hint)
            raise
