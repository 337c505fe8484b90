from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis_profiles import FEW_EXAMPLES
from sqlalchemy.pool import NullPool

from frx_graph.errors import LedgerError
from frx_graph.ledger import active_plans, store
from frx_graph.ledger.active_plans import NOTHING, Step, find_active_elsewhere, fold_steps
from frx_graph.ledger.database.opening import open_ledger, open_to_read
from frx_graph.ledger.decision import Author, Decision, Kind, make_rollbacks
from frx_graph.ledger.store import EventFilter, Ledger
from frx_graph.ledger.verification import verify

GRAPH, HERE, THERE = "a" * 16, "b" * 16, "c" * 16


@pytest.fixture
def ledger(location):
    return open_ledger(location)


def test_what_is_appended_is_read_back_by_anybody(ledger, location, promoted):
    decisions = promoted()
    recorded = ledger.append(decisions)
    assert [event.decision for event in recorded] == decisions
    assert [event.position for event in recorded] == [1, 2, 3]
    for reader in (ledger, open_ledger(location), open_to_read(location)):
        assert reader.read_events() == recorded
        assert reader.read_at(2) == recorded[1]
        assert reader.find_by_hash(recorded[2].hash[:8]) == recorded[2]
        assert reader.read_at(4) is None
        assert reader.find_by_hash("0" * 64) is None
    assert ledger.append([]) == ()


def test_each_event_holds_the_hash_of_the_one_before(ledger, promoted):
    ledger.append(promoted()[:1])
    ledger.append(promoted("2"))
    events = ledger.read_events()
    assert [event.previous for event in events] == ["0" * 64, *(event.hash for event in events[:-1])]


def test_all_of_an_append_or_none(ledger, decide, promoted):
    with pytest.raises(LedgerError, match=r"plan 1{16} cannot be applied .* is rolled back since event 4"):
        ledger.append([*promoted(), decide(Kind.ROLLED_BACK), decide(Kind.APPLIED)])
    assert ledger.count_events() == 0


def test_only_legal_decisions_are_appended(ledger, decide, promoted):
    with pytest.raises(LedgerError, match="was never proposed"):
        ledger.append([decide(Kind.APPLIED)])
    ledger.append(promoted())
    ledger.append([decide(Kind.APPLIED)])
    with pytest.raises(LedgerError, match=f"{GRAPH} in environment {THERE}: there it was never proposed"):
        ledger.append([decide(Kind.APPLIED, environment=THERE)])
    ledger.append([decide(Kind.ROLLED_BACK)])
    with pytest.raises(LedgerError, match=r"cannot be proposed .* rolled back"):
        ledger.append([decide(Kind.PROPOSED)])
    ledger.append([decide(Kind.PROPOSED, decided_by="frx trial")])
    assert ledger.count_events() == 6


def test_active_plans_are_those_of_this_graph_and_environment(ledger, decide, promoted):
    first = ledger.append(promoted())
    second = ledger.append(promoted("2"))
    other = ledger.append(promoted("3", environment=THERE))
    ledger.append(promoted("4", signature="e" * 16))
    assert ledger.read_standing(GRAPH, HERE).current.plan == "2" * 16
    assert ledger.read_promotions(GRAPH, HERE) == (second[2], first[2])
    assert ledger.read_standing(GRAPH, "f" * 16) == NOTHING
    steps = ledger.read_steps_by_environment(GRAPH)
    assert {name: [s.plan for s in states] for name, states in find_active_elsewhere(steps, HERE).items()} == {
        THERE: ["3" * 16]
    }
    assert steps[THERE] == tuple(Step.from_event(event) for event in other)


def test_a_plan_that_many_processes_applied(ledger, decide, promoted):
    ledger.append([*promoted(), *(decide(Kind.APPLIED) for _ in range(5)), *promoted("2"), decide(Kind.APPLIED, "2")])
    ledger.append([decide(Kind.APPLIED)])
    steps = ledger.read_steps_by_environment(GRAPH)[HERE]
    assert [(step.position, step.plan[0]) for step in steps if step.kind is Kind.APPLIED] == [(12, "2"), (13, "1")]
    assert ledger.read_standing(GRAPH, HERE) == fold_steps(Step.from_event(event) for event in ledger.read_events())


def test_rolling_back_all_active_plans(ledger, promoted):
    ledger.append([*promoted(), *promoted("2")])
    by = Author("ada", "here", 1)
    standing = ledger.read_promotions(GRAPH, HERE)
    now = standing[0].decision.recorded_at + timedelta(days=1)
    events = ledger.append(make_rollbacks(standing, reason="wrong colours", by=by, now=now))
    assert [(event.decision.kind, event.decision.plan[0], event.decision.policy) for event in events] == [
        (Kind.ROLLED_BACK, "2", None),
        (Kind.ROLLED_BACK, "1", None),
    ]
    assert ledger.read_promotions(GRAPH, HERE) == ()
    states = [plan.state for plan in ledger.read_standing(GRAPH, HERE).plans.values()]
    assert states == [Kind.ROLLED_BACK] * 2
    assert verify(ledger).problem is None


def test_filters_and_the_newest(ledger, decide, promoted):
    ledger.append([*promoted(), *promoted("2", environment=THERE)])
    assert [event.position for event in ledger.read_events(newest=2)] == [5, 6]
    kinds = EventFilter(kinds=(Kind.PROMOTED, Kind.TRIED))
    assert [event.position for event in ledger.read_events(kinds)] == [2, 3, 5, 6]
    assert [event.position for event in ledger.read_events(kinds, newest=3)] == [3, 5, 6]
    assert ledger.count_events(EventFilter(signature=GRAPH, environment=THERE)) == 3
    assert ledger.count_events(EventFilter(signature=THERE)) == 0


def test_evidence_is_the_last_trial_before(ledger, decide, promoted):
    ledger.append([*promoted(), *promoted("2"), decide(Kind.TRIED), decide(Kind.APPLIED)])
    events = ledger.read_events()
    found = [None if (trial := ledger.read_evidence(event)) is None else trial.position for event in events]
    assert found == [None, 2, 2, None, 5, 5, 7, 7]


def test_a_hash_that_several_events_have(ledger, promoted):
    ledger.append(promoted())
    with pytest.raises(LedgerError, match="several events"):
        ledger.find_by_hash("")
    assert ledger.find_by_hash("%") is None


def test_more_rows_than_are_read_at_once(ledger, decide, monkeypatch):
    monkeypatch.setattr(store, "_BATCH", 3)
    for count in (3, 4):
        ledger.append([decide(Kind.PROPOSED, str(count)) for _ in range(count)])
        assert [row["position"] for row in ledger.read_rows()] == list(range(1, ledger.count_events() + 1))


def test_a_kind_that_this_version_does_not_know(ledger, changed_by_hand, decide):
    ledger.append([decide(Kind.PROPOSED)])
    changed_by_hand("UPDATE frx_ledger_events SET kind = 'dreamt'")
    with pytest.raises(LedgerError, match=r"event 1 is malformed.*verify"):
        ledger.read_standing(GRAPH, HERE)


@pytest.fixture
def without_locks(location):
    """The ledger as in a database that takes no lock before the first write: SQLAlchemy's ordinary engine."""
    open_ledger(location)

    def made(**fields) -> Ledger:
        return Ledger(location, sqlalchemy.create_engine(location.url, poolclass=NullPool), **fields)

    return made


def interrupted_by(monkeypatch, other, decisions):
    """Whenever the next event is made, somebody else appends the next of `decisions` first."""
    record = active_plans.record_event
    waiting = list(decisions)
    theirs = False

    def late(*given):
        nonlocal theirs
        made = record(*given)
        if waiting and not theirs:
            theirs = True
            other.append([waiting.pop(0)])
            theirs = False
        return made

    monkeypatch.setattr(active_plans, "record_event", late)


def test_second_writer_reads_again(without_locks, ledger, decide, monkeypatch):
    first, second = [decide(Kind.PROPOSED, plan) for plan in "12"], decide(Kind.PROPOSED, "3")
    interrupted_by(monkeypatch, ledger, first)
    (event,) = without_locks().append([second])
    assert [(e.position, e.decision) for e in ledger.read_events()] == [(1, first[0]), (2, first[1]), (3, second)]
    assert event == ledger.read_at(3)
    assert verify(ledger).problem is None


def test_second_writer_may_find_its_decision_illegal(without_locks, ledger, decide, promoted, monkeypatch):
    ledger.append(promoted())
    interrupted_by(monkeypatch, ledger, [decide(Kind.ROLLED_BACK)])
    with pytest.raises(LedgerError, match=r"cannot be applied .* rolled back since event 4"):
        without_locks().append([decide(Kind.APPLIED)])
    assert ledger.count_events() == 4


def test_writer_that_is_always_second_gives_up(without_locks, ledger, decide, monkeypatch):
    interrupted_by(monkeypatch, ledger, [decide(Kind.PROPOSED, "1")])
    with pytest.raises(LedgerError, match="busy with other writers"):
        without_locks(patience_seconds=0).append([decide(Kind.PROPOSED, "2")])
    assert ledger.count_events() == 1


choices = st.lists(
    st.tuples(st.sampled_from(Kind), st.sampled_from("12"), st.sampled_from(["autopilot", "ada"])), max_size=12
)


@pytest.mark.in_a_file
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(choices)
def test_a_ledger_holds_what_may_be_decided_and_nothing_else(new_location, decide, promoted, chosen):
    decide_and_compare(new_location(), decide, promoted, chosen)


@settings(FEW_EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(choices)
def test_so_does_one_in_any_database(new_location, decide, promoted, chosen):
    decide_and_compare(new_location(), decide, promoted, chosen)


def decide_and_compare(location, decide, promoted, chosen):
    ledger = open_ledger(location)
    ledger.append(promoted())
    accepted: list[Decision] = []
    for kind, plan, by in chosen:
        decision = decide(kind, plan, decided_by=by)
        stood = {state.plan for state in ledger.read_standing(GRAPH, HERE).promoted}
        allowed = ledger.read_standing(GRAPH, HERE).find_objection(decision) is None
        try:
            ledger.append([decision])
        except LedgerError:
            assert not allowed
        else:
            assert allowed
            assert kind is not Kind.APPLIED or decision.plan in stood
            accepted.append(decision)
    assert [event.decision for event in ledger.read_events()][3:] == accepted
    assert verify(open_to_read(location)).problem is None
