"""What stands was promoted and not withdrawn since; whatever is decided, in whatever order."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.ledger.active_plans import (
    NOTHING,
    STANDING,
    TRANSITIONS,
    PlanState,
    PlanStates,
    Step,
    find_active_elsewhere,
    fold_steps,
    get_next_state,
)
from frx_graph.ledger.decision import AUTOPILOT, Kind

AT = datetime(2026, 3, 1, tzinfo=UTC)
P, T, I, R = Kind.PROPOSED, Kind.TRIED, Kind.INCONCLUSIVE, Kind.REJECTED  # noqa: E741 - as in the table
M, A, B, E = Kind.PROMOTED, Kind.APPLIED, Kind.ROLLED_BACK, Kind.EXPIRED

ways_to_promotion = st.sampled_from([(P, T, M), (P, T, M, A), (P, T, I), (P, T, R)])
moves = st.lists(
    st.tuples(ways_to_promotion | st.sampled_from(Kind).map(lambda kind: (kind,)), st.sampled_from("123"))
).map(lambda groups: [(kind, plan) for kinds, plan in groups for kind in kinds])
deciders = st.sampled_from([AUTOPILOT, "ada"])


def steps(*kinds: Kind, plan: str = "1", by: str = AUTOPILOT, start: int = 1) -> list[Step]:
    return [Step(start + index, kind, plan, by, AT) for index, kind in enumerate(kinds)]


def rolled_back(standing: PlanStates) -> set[str]:
    return {plan.plan for plan in standing.plans.values() if plan.state is B}


def state_of(kinds: tuple[Kind, ...]) -> Kind:
    standing = fold_steps(steps(*kinds))
    assert standing.illegal == ()
    return standing.plans["1"].state


@given(moves, st.data())
def test_active_plans_were_promoted_and_not_withdrawn_since(chosen, data):
    standing, taken = NOTHING, []
    for position, (kind, plan) in enumerate(chosen, start=1):
        step = Step(position, kind, plan, data.draw(deciders), AT)
        stood = {state.plan for state in standing.promoted}
        after = standing.apply_step(step)
        if after.illegal != standing.illegal:
            assert after.plans == standing.plans
            standing = after
            continue
        taken.append(step)
        if kind is Kind.APPLIED:
            assert plan in stood
        standing = after
    for state in standing.promoted:
        own = [step for step in taken if step.plan == state.plan]
        promotions = [step.position for step in own if step.kind is Kind.PROMOTED]
        assert promotions
        assert state.promoted is not None
        assert state.promoted.position == promotions[-1]
        assert not [step for step in own if step.kind in (R, B, E) and step.position > promotions[-1]]
        tried = [step.position for step in own if step.kind is Kind.TRIED and step.position < promotions[-1]]
        assert tried
    assert standing.current == max(standing.promoted, key=lambda s: s.promoted.position, default=None)
    assert fold_steps(taken).plans == standing.plans


@given(moves)
def test_autopilot_never_promotes_a_rolled_back_plan_again(chosen):
    standing = NOTHING
    gone: set[str] = set()
    for position, (kind, plan) in enumerate(chosen, start=1):
        standing = standing.apply_step(Step(position, kind, plan, AUTOPILOT, AT))
        gone |= rolled_back(standing)
        assert gone == rolled_back(standing)
        assert gone.isdisjoint(state.plan for state in standing.promoted)


@given(moves)
def test_only_the_last_application_decides_the_active_plans(chosen):
    every = [Step(position, kind, plan, "ada", AT) for position, (kind, plan) in enumerate(chosen, start=1)]
    legal = [step for step in every if step not in fold_steps(every).illegal]
    last = {step.plan: step for step in legal if step.kind is Kind.APPLIED}
    fewer = [step for step in legal if step.kind is not Kind.APPLIED or step == last[step.plan]]
    assert fold_steps(fewer) == fold_steps(legal)


@given(moves)
def test_rolling_back_the_active_plan_leaves_the_baseline(chosen):
    standing = fold_steps(
        Step(position, kind, plan, "ada", AT) for position, (kind, plan) in enumerate(chosen, start=1)
    )
    if standing.current is not None:
        after = standing.apply_step(Step(10_000, Kind.ROLLED_BACK, standing.current.plan, AUTOPILOT, AT))
        assert after.current is None
        assert {state.state for state in after.plans.values()}.isdisjoint(STANDING)


@pytest.mark.parametrize(
    ("kinds", "state"),
    [
        ((P,), P),
        ((P, T), T),
        ((P, T, P), T),
        ((P, T, I), I),
        ((P, T, I, T, M), M),
        ((P, T, R), R),
        ((P, T, R, P, T, M), M),
        ((P, T, M), M),
        ((P, T, M, P, T, I), M),
        ((P, T, M, A), A),
        ((P, T, M, A, T, M), A),
        ((P, T, M, A, T, R), R),
        ((P, T, M, A, B), B),
        ((P, T, M, B, T, B), B),
        ((P, T, M, E), E),
        ((P, T, M, E, E, T, M), M),
        ((P, T, M, E, B), B),
        ((P, T, M, R, B), B),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_legal_decisions_change_the_state(kinds, state):
    assert state_of(kinds) is state


@pytest.mark.parametrize(
    ("before", "kind"),
    [
        *(((), kind) for kind in Kind if kind is not P),
        *(((P,), kind) for kind in (M, R, I, A, B, E)),
        *(((P, T), kind) for kind in (A, B, E)),
        *(((P, T, I), kind) for kind in (M, R, I, A, B, E)),
        *(((P, T, R), kind) for kind in (M, A, B, E)),
        *(((P, T, R, T), kind) for kind in (M, A)),
        *(((P, T, M, B), kind) for kind in (P, M, A, E)),
        *(((P, T, M, B, T), kind) for kind in (P, M, A)),
        *(((P, T, M, E), kind) for kind in (M, A, R, I)),
    ],
    ids=lambda value: (" ".join(value) or "nothing") if isinstance(value, tuple) else value,
)
def test_illegal_decision_does_not_change_the_state(before, kind):
    standing = fold_steps(steps(*before))
    assert standing.illegal == ()
    wrong = Step(9, kind, "1", AUTOPILOT, AT)
    assert standing.apply_step(wrong) == PlanStates(standing.plans, (wrong,))


def test_rolled_back_plan_is_tried_again_on_request():
    standing = fold_steps(steps(P, T, M, B))
    assert rolled_back(standing) == {"1"}
    asked = standing.apply_step(Step(5, P, "1", "frx trial", AT))
    assert rolled_back(asked) == set()
    tried = fold_steps([*steps(P, T, M, B), *steps(P, by="ada", start=5), *steps(T, M, start=6)])
    assert [state.plan for state in tried.promoted] == ["1"]


def test_last_promotion_is_applied_and_the_previous_one_is_next():
    both = fold_steps([*steps(P, T, M), *steps(P, T, M, plan="2", start=4)])
    assert [state.plan for state in both.promoted] == ["2", "1"]
    assert both.apply_step(Step(7, R, "2", AUTOPILOT, AT)).current.plan == "1"
    again = both.apply_step(Step(7, M, "1", AUTOPILOT, AT))
    assert again.current.plan == "1"


def test_rollback_of_an_inactive_plan_withdraws_nothing_else():
    events = [*steps(P, T, M, E), *steps(P, T, M, plan="2", start=5), *steps(B, start=8)]
    assert fold_steps(events).current.plan == "2"


def test_plans_of_other_environments_are_reported_but_not_active_here():
    events = {"here": steps(P, T, R), "there": steps(P, T, M), "gone": steps(P, T, M, B)}
    found = find_active_elsewhere(events, "here")
    assert {name: [state.plan for state in states] for name, states in found.items()} == {"there": ["1"]}
    assert find_active_elsewhere(events, "there") == {}


def test_every_state_has_a_row_and_only_a_trial_leads_to_promotion():
    assert set(TRANSITIONS) == {None, *Kind}
    promoting = {state for state, row in TRANSITIONS.items() if row.get(M) in STANDING}
    assert promoting == {T, M, A}
    applying = {state for state, row in TRANSITIONS.items() if A in row}
    assert applying == STANDING


def test_only_a_promoted_plan_can_be_rolled_back():
    tried = Step(1, T, "1", "ada", AT)
    assert get_next_state(PlanState("1", T, tried, None), B, "ada") is None
    assert get_next_state(PlanState("1", T, tried, tried), B, "ada") is B


def test_the_documented_table_is_the_one_in_the_code():
    text = (Path(__file__).parents[2] / "docs" / "internals" / "ledger.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    kinds = [Kind(name) for name in rows[0][1:]]
    assert set(kinds) == set(Kind)
    documented = {}
    for name, *cells in rows[2:]:
        state = None if name == "unknown" else Kind(name)
        meaning = {"·": state, "¹": B, "proposed ²": P}
        documented[state] = {
            kind: meaning[cell] if cell in meaning else Kind(cell)
            for kind, cell in zip(kinds, cells, strict=True)
            if cell
        }
    assert documented == {state: dict(row) for state, row in TRANSITIONS.items()}
