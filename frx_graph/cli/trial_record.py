"""Record trials in the ledger, and keep the fastest of several promoted plans active."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from frx_graph.autopilot.target_trial import TargetTrial, TrialJob, UntriedTarget, make_decisions
from frx_graph.engines.engine import Placement
from frx_graph.errors import LedgerError, LedgerUncertainError
from frx_graph.ledger.database.opening import open_ledger
from frx_graph.ledger.decision import Decision, Kind, make_process_author
from frx_graph.ledger.location import Location
from frx_graph.ledger.store import Ledger
from frx_graph.reports.render.document import to_json
from frx_graph.reports.trials.trial_document import PlacePart, TrialDocument, build_trial_document, report_nothing_tried
from frx_graph.trials.allocation_check import NAMES

AUTHOR = "frx trial"
NOT_EACH = (
    "Nothing is decided: the verdict is that of several graphs together, and says nothing of one. Mode autopilot "
    "tries each by itself"
)


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A trial's document, after its decision was recorded. If recording failed, the document says so, and the
    measurements are printed all the same."""

    document: TrialDocument
    error: LedgerError | None = None
    """The reason why the decision is not in the ledger."""
    promoted: tuple[tuple[Decision, float], ...] = ()
    """One for each graph and environment for which the plan was promoted, with its ratio of times."""


def record_trial(
    tried: TargetTrial | UntriedTarget, job: TrialJob, place: Location, placed: Placement | None
) -> TrialRecord:
    """Record a trial's decisions in the ledger, and return its document."""
    asked, policy = job.asked, job.policy
    if isinstance(tried, UntriedTarget):
        untried = report_nothing_tried(
            target=asked.workload.target,
            train=asked.train,
            inner=asked.inner,
            policy=policy,
            compared=tried.compared,
        )
        return TrialRecord(untried)

    def document(decision: str) -> TrialDocument:
        return build_trial_document(
            tried.run,
            target=asked.workload.target,
            train=asked.train,
            inner=asked.inner,
            candidates=tried.candidates,
            policy=policy,
            decision=decision,
            place=None if placed is None else PlacePart(**asdict(placed)),
        )

    if asked.against_itself:
        return TrialRecord(document("a baseline against itself is not recorded"))
    recorded = document(f"recorded in {place}")
    by = make_process_author(AUTHOR)
    verdicts = tried.run.list_verdicts()
    if not verdicts or not tried.graphs:
        return TrialRecord(document("not recorded: the trial ended before an arm reported its machine"))
    said, promoted = [], []
    try:
        ledger = open_ledger(place)
        for found in verdicts:
            allocation = found.environment.setup.allocation
            own = to_json(recorded.model_copy(update={"allocation": allocation}))
            wanted = make_decisions(tried, found, policy, json.dumps(own, allow_nan=False), by)
            if found is not verdicts[-1] and any(_was_rolled_back(ledger, decision) for decision in wanted):
                # Only its own users can ask for it again.
                continue
            events = ledger.append(wanted)
            named = [event for event in events if event.decision.kind is not Kind.PROPOSED]
            ends = [event for event in named if event.decision.kind is not Kind.TRIED]
            last = ", ".join(f"#{event.position} {event.decision.kind}" for event in ends or named)
            said.append(f"{last} with {NAMES[allocation]}" if len(verdicts) > 1 else last)
            made = [event.decision for event in ends if event.decision.kind is Kind.PROMOTED]
            promoted += [(decision, found.ratio or 0.0) for decision in made]
    except LedgerError as error:
        failed = "perhaps recorded" if isinstance(error, LedgerUncertainError) else "not recorded"
        return TrialRecord(document(f"{failed}: {error}"), error, tuple(promoted))
    undecided = f". {NOT_EACH}" if len(tried.plans) > 1 else ""
    return TrialRecord(document(f"recorded in {place}: {', '.join(said)}{undecided}"), None, tuple(promoted))


def _was_rolled_back(ledger: Ledger, decision: Decision) -> bool:
    known = ledger.read_standing(decision.signature, decision.environment).plans.get(decision.plan)
    return known is not None and known.state is Kind.ROLLED_BACK


@dataclass(frozen=True, slots=True)
class PromotedTrial:
    """A plan that one of several trials promoted."""

    number: int
    """Number of the trial, in the order of the command line."""
    decision: Decision
    ratio: float
    """Baseline time over candidate time of the trial."""


def promote_fastest_again(promoted: Iterable[PromotedTrial], place: Location) -> Iterator[tuple[int, str]]:
    """Promote the fastest plan again for each graph and environment in which another one is active. Of two equally fast
    plans the first one takes precedence. Yield the numbers of these trials, with a note. Raises `LedgerError`."""
    by_graph: defaultdict[tuple[str, str], list[PromotedTrial]] = defaultdict(list)
    for one in sorted(promoted, key=lambda one: one.number):
        by_graph[one.decision.signature, one.decision.environment].append(one)
    for (signature, environment), those in by_graph.items():
        plans = {one.decision.plan for one in those}
        if len(plans) < 2:
            continue
        ledger = open_ledger(place)
        standing = ledger.read_standing(signature, environment)
        left = [one for one in those if standing.plans[one.decision.plan].stands]
        if standing.current is None or standing.current.plan not in plans:
            continue
        best = max(left, key=lambda one: one.ratio)
        if best.decision.plan == standing.current.plan:
            continue
        reason = f"promoted again to be the active plan: the fastest of {len(plans)} promoted plans, {best.ratio:.3f}"
        policy = best.decision.policy
        (event,) = ledger.append(
            [
                best.decision.make_follow_up(
                    Kind.PROMOTED, reason=reason, by=make_process_author(AUTHOR), at=datetime.now(UTC), policy=policy
                )
            ]
        )
        yield best.number, f"#{event.position} once more, as the fastest of {len(plans)}"
