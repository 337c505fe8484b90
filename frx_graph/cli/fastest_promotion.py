"""Which plan stands where one command has promoted several for the same graph: the fastest, whichever trial ended last.

What is promoted is recorded at once, in whatever order trials end, and of several plans the last promoted stands. So
the fastest is promoted once more where it was not the last. What somebody else has decided since holds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from frx_graph.cli.printing.trial_record import AUTHOR
from frx_graph.ledger.author import this_process
from frx_graph.ledger.database.opening import open_ledger
from frx_graph.ledger.decision import Decision, Kind
from frx_graph.ledger.location import Location


@dataclass(frozen=True, slots=True)
class Promoted:
    """What one trial of several has promoted."""

    number: int
    """The trial's, in the order in which they were asked for."""
    decision: Decision
    ratio: float
    """Of the trial, time of the baseline over time of the candidate."""


@dataclass(frozen=True, slots=True)
class Again:
    """A trial whose plan was promoted once more."""

    number: int
    position: int
    """Of that event in the ledger."""
    plans: int
    """Of how many it is the fastest."""


def fastest_promoted_again(promoted: Iterable[Promoted], place: Location) -> Iterator[Again]:
    """For each graph in each environment, where another than the fastest plan would stand. Of two that are as fast, it
    is the one that was asked for first. Raises `LedgerError`."""
    by_graph: defaultdict[tuple[str, str], list[Promoted]] = defaultdict(list)
    for one in sorted(promoted, key=lambda one: one.number):
        by_graph[one.decision.signature, one.decision.environment].append(one)
    for (signature, environment), those in by_graph.items():
        plans = {one.decision.plan for one in those}
        if len(plans) < 2:
            continue
        ledger = open_ledger(place)
        standing = ledger.standing(signature, environment)
        left = [one for one in those if standing.plans[one.decision.plan].stands]
        if standing.current is None or standing.current.plan not in plans:
            continue
        best = max(left, key=lambda one: one.ratio)
        if best.decision.plan == standing.current.plan:
            continue
        reason = f"once more, so that it stands: of {len(plans)} promoted plans it is the fastest, {best.ratio:.3f}"
        policy = best.decision.policy
        (event,) = ledger.append(
            [
                best.decision.followed_by(
                    Kind.PROMOTED, reason=reason, by=this_process(AUTHOR), at=datetime.now(UTC), policy=policy
                )
            ]
        )
        yield Again(best.number, event.position, len(plans))
