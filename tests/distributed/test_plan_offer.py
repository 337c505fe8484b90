"""What ranks have against a plan, and what they know each other's options by."""

from __future__ import annotations

from typing import Any

import pytest

from frx_graph.compiler.plans import make_recorded_plan
from frx_graph.distributed.plan_offer import PlanOffer, describe_options, find_difference
from frx_graph.options import BackendOptions, parse_backend_options
from frx_graph.records import Candidate
from frx_graph.trials.policy import TrialPolicy

CANDIDATES = (
    Candidate("hoist_copy", "graph", ("clone",), ("a",), 1e-3),
    Candidate("propagate_layout", "graph", ("b",)),
)
OPTIONS: dict[str, Any] = {"inner": "eager"}
POLICY = TrialPolicy()


def offered(given: dict[str, Any] = OPTIONS, **changes: Any) -> PlanOffer:
    made = PlanOffer.make(
        make_recorded_plan(CANDIDATES),
        options=parse_backend_options(given, None),
        policy=POLICY,
        signature="0" * 16,
        environment="1" * 16,
    )
    return made.model_copy(update=changes)


def test_an_offer_arrives_as_the_plan_that_it_is() -> None:
    arrived = PlanOffer.model_validate_json(offered().encode())
    assert arrived == offered()
    assert arrived.make_plan() == make_recorded_plan(CANDIDATES)
    assert arrived.find_objection(offered()) is None


@pytest.mark.parametrize(
    ("changes", "objection"),
    [
        ({"signature": "2" * 16}, "its graph is 2222222222222222, not 0000000000000000"),
        ({"code": "3" * 16}, "its code of frx_graph is 3333333333333333, not "),
        ({"environment": "4" * 16}, "its environment is 4444444444444444, not 1111111111111111"),
        ({"options": {}}, "its option 'inner' is None, not 'eager'"),
    ],
)
def test_differing_rank_names_the_difference(changes: dict[str, Any], objection: str) -> None:
    found = offered().find_objection(offered(**changes))
    assert found is not None
    assert found.startswith(objection)


@pytest.mark.parametrize("changes", [{"plan": "5" * 16}, {"candidates": CANDIDATES[:1]}])
def test_plan_that_does_not_match_its_hash_is_refused(changes: dict[str, Any]) -> None:
    found = offered(**changes).find_objection(offered())
    assert found is not None
    assert found.startswith("it makes plan ")


def test_offer_about_to_be_tried_has_no_plan_yet() -> None:
    about_to_try = PlanOffer.make(
        None, options=BackendOptions(**OPTIONS), policy=POLICY, signature="0" * 16, environment="1" * 16
    )
    assert about_to_try.find_objection(offered()) is None
    assert about_to_try.plan is None


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"inner": "aot_eager"}, "inner"),
        ({"inner": "eager", "mode": "autopilot"}, "mode"),
        ({"inner_options": {"max_autotune": True}}, "inner"),
    ],
)
def test_options_that_differ(given: dict[str, Any], name: str) -> None:
    found = find_difference(
        describe_options(parse_backend_options(OPTIONS, None), POLICY),
        describe_options(parse_backend_options(given, None), POLICY),
    )
    assert found is not None
    assert found.startswith(f"its option {name!r} is ")


def test_the_policy_counts_where_trials_go_by_it() -> None:
    def described_with(mode: str, policy: TrialPolicy) -> dict[str, str]:
        return describe_options(BackendOptions(mode=mode), policy)

    other = TrialPolicy(time_budget_seconds=1)
    assert described_with("apply", POLICY) == described_with("apply", other)
    assert described_with("autopilot", POLICY) != described_with("autopilot", other)


def test_options_that_hold_objects_are_the_same_in_every_process() -> None:
    def one() -> None: ...

    def described_with(value: object) -> dict[str, str]:
        return describe_options(BackendOptions(inner_options={"post_grad_custom_post_pass": value, "a": 1}), POLICY)

    assert "0x" not in described_with(one)["inner_options"]
    assert find_difference(described_with(one), described_with(lambda: None)) is not None
