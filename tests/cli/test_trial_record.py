"""Which of several promoted plans stands, where others decide, too."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

from frx_graph.autopilot.target_trial import TargetTrial, TrialJob, TrialRequest
from frx_graph.cli.trial_record import PromotedTrial, promote_fastest_again, record_trial
from frx_graph.compiler.code_fingerprint import compute_environment_key
from frx_graph.ledger.database.opening import open_ledger
from frx_graph.ledger.decision import Decision, Kind, make_process_author
from frx_graph.ledger.location import Location, parse_location
from frx_graph.ledger.trial_summary import read_summaries
from frx_graph.passes import inner_choice
from frx_graph.records import Candidate
from frx_graph.reports.trials.event_text import format_rewrites, render_event
from frx_graph.support.allocator import Allocation
from frx_graph.trials.allocation_check import AllocationCheck
from frx_graph.trials.arm_messages import MadeGraph, TargetWorkload
from frx_graph.trials.environment import read_trial_environment
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.trial_run import TrialRun
from frx_graph.trials.verdict import Outcome, TrialStatistics, Verdict

HERE = ("5" * 16, "e" * 16)
FAST, SLOW, OTHERS = ("1" * 16, "2" * 16, "3" * 16)


@pytest.fixture
def place(tmp_path: Path) -> Location:
    return parse_location(str(tmp_path / "ledger.sqlite3"))


def decided(place: Location, plan: str, *kinds: Kind) -> Decision:
    """The last of these decisions about a plan."""
    decisions = [
        Decision(
            kind=kind,
            signature=HERE[0],
            environment=HERE[1],
            plan=plan,
            reason="as measured",
            decided_by="frx trial",
            host="host",
            process_id=1,
            recorded_at=datetime.now(UTC),
            policy="f" * 16,
        )
        for kind in kinds
    ]
    return open_ledger(place).append(decisions)[-1].decision


def promoted(place: Location, number: int, plan: str, ratio: float) -> PromotedTrial:
    return PromotedTrial(number, decided(place, plan, Kind.PROPOSED, Kind.TRIED, Kind.PROMOTED), ratio)


def stands(place: Location) -> str | None:
    current = open_ledger(place).read_standing(*HERE).current
    return None if current is None else current.plan


def test_the_fastest_is_promoted_once_more_by_the_same_rules(place: Location) -> None:
    those = [promoted(place, 0, FAST, 1.3), promoted(place, 1, SLOW, 1.1)]
    (again,) = promote_fastest_again(those, place)
    assert again == (0, "#7 once more, as the fastest of 2")
    assert stands(place) == FAST
    event = open_ledger(place).read_at(7)
    assert event is not None
    assert event.decision.policy == "f" * 16
    assert not list(promote_fastest_again(those, place)), "once is enough"


def test_of_two_equally_fast_candidates_the_first_requested_wins(place: Location) -> None:
    those = [promoted(place, 1, SLOW, 1.2), promoted(place, 0, FAST, 1.2)]
    assert not list(promote_fastest_again(those, place))
    assert stands(place) == FAST
    those = [promoted(place, 0, FAST, 1.2), promoted(place, 1, SLOW, 1.2)]
    assert [number for number, _ in promote_fastest_again(reversed(those), place)] == [0]


def test_a_plan_that_was_promoted_by_two_trials_is_one(place: Location) -> None:
    those = [promoted(place, 0, FAST, 1.3), promoted(place, 1, FAST, 1.1)]
    assert not list(promote_fastest_again(those, place))


def test_plan_rejected_since_is_not_promoted_again(place: Location) -> None:
    those = [promoted(place, 0, FAST, 1.3), promoted(place, 1, SLOW, 1.1)]
    decided(place, FAST, Kind.TRIED, Kind.REJECTED)
    assert not list(promote_fastest_again(those, place))
    assert stands(place) == SLOW


def test_decisions_made_meanwhile_are_kept(place: Location) -> None:
    those = [promoted(place, 0, FAST, 1.3), promoted(place, 1, SLOW, 1.1)]
    promoted(place, 0, OTHERS, 1.0)
    assert not list(promote_fastest_again(those, place))
    assert stands(place) == OTHERS
    decided(place, OTHERS, Kind.ROLLED_BACK)
    assert not list(promote_fastest_again(those, place))
    assert stands(place) is None


def make_trial(*, shows: bool) -> tuple[TargetTrial, TrialJob]:
    """Return a trial that was measured with pooled memory and promoted, and checked without."""
    environment = read_trial_environment(torch.device("cpu"))
    pooled = replace(environment, setup=replace(environment.setup, allocation=Allocation.POOLED))
    stats = TrialStatistics(1.3, 1.2, 1.4, 36, 6, (1.3,) * 6, 0)
    check = AllocationCheck(Allocation.DEFAULT, shows, 1.1, (1.1, 1.1))
    verdict = Verdict(Outcome.PROMOTE, "30 % faster", stats, early=False)
    check = replace(check, verdict=check.derive_verdict(verdict))
    made = Candidate("propagate_layout", "a" * 16, ("convolution",), ("0,2,3,1",))
    run = TrialRun((), verdict, (), pooled, ("5" * 16,), check=check)
    asked = TrialRequest(TargetWorkload("model.py:build"), False, "inductor", None, against_itself=False)
    return TargetTrial(run, (MadeGraph("5" * 16, (made,)),)), TrialJob(asked, TrialPolicy())


def list_standing(place: Location) -> dict[Allocation, bool]:
    """Return whether a plan stands, by the environment's allocation."""
    environment = read_trial_environment(torch.device("cpu"))
    keys = {
        allocation: compute_environment_key(replace(environment.setup, allocation=allocation))
        for allocation in (Allocation.POOLED, Allocation.DEFAULT)
    }
    ledger = open_ledger(place)
    return {name: ledger.read_standing("5" * 16, key).current is not None for name, key in keys.items()}


@pytest.mark.parametrize("shows", [True, False])
def test_each_allocation_has_its_own_decision(place: Location, shows: bool) -> None:
    record = record_trial(*make_trial(shows=shows), place, None)
    assert list_standing(place) == {Allocation.POOLED: True, Allocation.DEFAULT: shows}
    assert [ratio for _, ratio in record.promoted] == [1.3, 1.1][: 1 + shows]
    last = "promoted" if shows else "rejected"
    assert record.document.decision.endswith(f"#3 promoted with pooled memory, #6 {last} with the default allocator")


@pytest.mark.parametrize("shows", [True, False])
def test_each_decision_has_its_own_reason_and_gain_and_names_its_allocator(place: Location, shows: bool) -> None:
    record_trial(*make_trial(shows=shows), place, None)
    ledger = open_ledger(place)
    events = ledger.read_events()
    summaries = read_summaries(ledger, events)
    pooled, own = summaries[3], summaries[6]
    assert (pooled.allocation, pooled.ratio, pooled.low, pooled.verdict) == ("pooled", 1.3, 1.2, "promote")
    assert (own.allocation, own.ratio, own.low, own.verdict) == (
        "default",
        1.1,
        None,
        "promote" if shows else "reject",
    )
    end = "" if shows else ": the gain does not show"
    assert [events[position].decision.reason for position in (2, 5)] == [
        "30 % faster",
        f"10.0 % faster (process pairs +10.0, +10.0 %){end}",
    ]
    text = render_event(events[5], own, None, now=datetime.now(UTC), width=100, color=False)
    assert "  Allocator   the default allocator: large freed blocks go back to the system\n" in text
    assert "  Gain        10.0 % faster\n" in text


def test_nothing_is_decided_is_said_once_for_both_allocations(place: Location) -> None:
    tried, job = make_trial(shows=True)
    (graph,) = tried.graphs
    tried = replace(tried, graphs=(graph, replace(graph, signature="6" * 16)))
    decision = record_trial(tried, job, place, None).document.decision
    assert decision.count("Nothing is decided") == 1
    assert "#2 tried, #4 tried with pooled memory, #6 tried, #8 tried with the default allocator. Noth" in decision


def test_a_plan_that_was_rolled_back_with_pooled_memory_stays_so_for_a_trial_without(place: Location) -> None:
    record_trial(*make_trial(shows=True), place, None)
    ledger = open_ledger(place)
    event = ledger.read_at(3)
    assert event is not None
    by, now = make_process_author("ada"), datetime.now(UTC)
    ledger.append([event.decision.make_follow_up(Kind.ROLLED_BACK, reason="it did harm", by=by, at=now)])
    record = record_trial(*make_trial(shows=True), place, None)
    assert list_standing(place) == {Allocation.POOLED: False, Allocation.DEFAULT: True}
    assert "pooled" not in record.document.decision


@pytest.mark.parametrize(("ratio", "outcome"), [(1.04, Outcome.INCONCLUSIVE), (0.96, Outcome.REJECT)])
def test_gain_in_one_pair_of_a_check_does_not_prove_a_loss(ratio: float, outcome: Outcome) -> None:
    slower = Verdict(Outcome.REJECT, "8 % slower", None, early=True)
    found = AllocationCheck(Allocation.DEFAULT, False, ratio, (ratio,)).derive_verdict(slower)
    assert found.outcome is outcome


def test_list_of_decisions_names_the_compiler_setting() -> None:
    pooled = Candidate(inner_choice.NAME, "a" * 16, (), (inner_choice.POOLED,))
    rewrite = Candidate("hoist_copy", "a" * 16, ("clone", "clone_1"))
    assert format_rewrites((pooled, rewrite)) == f"{inner_choice.POOLED}, hoist_copy of 2 operators"
