"""What is kept of a trial: its decisions in the ledger, written here alone, and its document."""

from __future__ import annotations

import json
from dataclasses import asdict

from frx_graph.engines.engine import Placed
from frx_graph.errors import LedgerError
from frx_graph.ledger.author import this_process
from frx_graph.ledger.decision import Kind
from frx_graph.ledger.location import Location
from frx_graph.ledger.opening import open_ledger
from frx_graph.reports.trial_document import PlacePart, TrialDocument, as_json, nothing_tried, trial_document
from frx_graph.target_trial import Tried, decisions
from frx_graph.trial_matrix import TrialJob

AUTHOR = "frx trial"
NOT_EACH = (
    ". Nothing is promoted: the gain is that of several graphs together, and proves none of them. Mode autopilot tries "
    "each by itself"
)


def recorded(
    tried: Tried | None, job: TrialJob, place: Location, placed: Placed | None
) -> tuple[TrialDocument, LedgerError | None]:
    """The trial's document, once its decision is in the ledger; that it is not is said there, too, so that what was
    measured is printed in any case."""
    asked, policy = job.asked, job.policy
    if tried is None:
        target = asked.workload.target
        return nothing_tried(target=target, train=asked.train, inner=asked.inner, policy=policy), None

    def document(decision: str) -> TrialDocument:
        return trial_document(
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
        return document("nothing is recorded of a baseline against itself"), None
    text = json.dumps(as_json(document(f"recorded in {place}")), allow_nan=False)
    wanted = decisions(tried, policy, text, this_process(AUTHOR))
    if not wanted:
        return document("not recorded: it ended before an arm could say on what machine it runs"), None
    try:
        events = open_ledger(place).append(wanted)
    except LedgerError as error:
        return document(f"not recorded: {error}"), error
    named = [event for event in events if event.decision.kind is not Kind.PROPOSED]
    ends = [event for event in named if event.decision.kind is not Kind.TRIED]
    last = ", ".join(f"#{event.position} {event.decision.kind}" for event in ends or named)
    return document(f"recorded in {place}: {last}{'' if ends else NOT_EACH}"), None
