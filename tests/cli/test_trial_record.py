"""Which of several promoted plans stands, where others decide, too."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from frx_graph.cli.trial_record import PromotedTrial, promote_fastest_again
from frx_graph.ledger.database.opening import open_ledger
from frx_graph.ledger.decision import Decision, Kind
from frx_graph.ledger.location import Location, parse_location

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
