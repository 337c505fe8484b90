"""What the autopilot asks for, tries, and records: with stand-ins for the processes that it starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx, nn

from frx_graph import autopilot
from frx_graph.current_plan import ALL_REWRITES, recorded_plan
from frx_graph.errors import TrialError
from frx_graph.ledger.decision import Decision, Kind
from frx_graph.options import backend_options
from frx_graph.records import Candidate
from frx_graph.trials.arm_messages import Load, MadeGraph
from frx_graph.trials.environment import trial_environment
from frx_graph.trials.executor import Programs, TrialRun
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.verdict import Outcome, TrialStatistics, Verdict

SIGNATURE, HERE = "0" * 16, "e" * 16
OFF, EAGER = (Candidate("inner_choice", "", (), (name,)) for name in ("layout_optimization_off", "eager"))
HOIST = Candidate("hoist_copy", "a" * 16, ("clone",))
LAYOUT = Candidate("propagate_layout", "a" * 16, ("conv",), ("0,2,3,1",), 2e-3)
PRODUCTS = Candidate("onednn_products", "a" * 16, ("addmm",), ("dot",), 1e-4)
ENVIRONMENT = trial_environment(torch.device("cpu"))


@dataclass
class World:
    """What is asked for and tried, in order. `ratios` says how each trial of these rewrites ends: promoted above 1.
    After `budget_ends_after` proposals the time is over."""

    proposals: tuple[Candidate, ...]
    choices: tuple[Candidate, ...] = ()
    under_eager: tuple[Candidate, ...] = ()
    ratios: dict[tuple[str, ...], float] = field(default_factory=dict)
    asked: list[tuple[str, ...]] = field(default_factory=list)
    tried: list[tuple[str, ...]] = field(default_factory=list)
    recorded: list[Decision] = field(default_factory=list)
    now: float = 0.0
    fails: tuple[str, ...] | None = None
    slow: tuple[str, ...] | None = None
    seconds: list[float] = field(default_factory=list)

    def proposed(self, base: Load, rewrites: Sequence[str], seconds: float, _start: Any) -> tuple[MadeGraph, ...]:
        self.asked.append(tuple(rewrites))
        self.seconds.append(seconds)
        if tuple(rewrites) == self.slow:
            self.now += seconds
            raise TrialError("the program does not run: it took too long")
        made = (one for one in (*self.proposals, *self.under_eager) if one.rewrite in rewrites)
        kept = self.under_eager if base.candidates else self.proposals
        applied = (*base.candidates, *(one for one in made if one in kept))
        return (MadeGraph(SIGNATURE, applied, () if base.candidates else self.choices),)

    def run_trial(self, programs: Programs, *_: Any, **__: Any) -> TrialRun:
        rewrites = tuple(one.choices[0] if not one.nodes else one.rewrite for one in programs.candidate.candidates)
        self.tried.append(rewrites)
        if rewrites == self.fails:
            raise TrialError("the baseline does not run")
        ratio = self.ratios[rewrites]
        stats = TrialStatistics(ratio, ratio, ratio, 35, 5, (ratio,), 0)
        outcome = Outcome.PROMOTE if ratio > 1 else Outcome.REJECT
        return TrialRun((), Verdict(outcome, "a test", stats, early=False), (), ENVIRONMENT, (SIGNATURE,))

    def try_graph(self, rejected: frozenset[str] = frozenset()) -> tuple[Candidate, ...]:
        return autopilot.try_graph(
            fx.symbolic_trace(nn.ReLU()),
            [torch.ones(2)],
            backend_options({}, None),
            TrialPolicy(time_budget_seconds=100),
            signature=SIGNATURE,
            environment=HERE,
            record=self.recorded.extend,
            progress=lambda _: None,
            rejected=rejected,
        )

    @property
    def promoted(self) -> list[tuple[str, ...]]:
        return [tuple(c.rewrite for c in one.candidates) for one in self.recorded if one.kind is Kind.PROMOTED]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    found = World((HOIST, LAYOUT))
    monkeypatch.setattr(autopilot, "proposed", found.proposed)
    monkeypatch.setattr(autopilot, "run_trial", found.run_trial)
    monkeypatch.setattr(autopilot, "time", SimpleNamespace(monotonic=lambda: found.now))
    monkeypatch.setattr(autopilot, "write_graph", lambda folder, *_: Path(folder).exists())
    return found


LAYOUTS = ("propagate_layout", "backward_layout")


def test_the_combination_is_used_only_where_it_is_the_fastest(world: World) -> None:
    world.ratios = {("hoist_copy",): 1.2, ("propagate_layout",): 1.3, ("hoist_copy", "propagate_layout"): 1.25}
    assert world.try_graph() == (LAYOUT,)
    assert world.promoted == [("hoist_copy",), ("hoist_copy", "propagate_layout"), ("propagate_layout",)]


def test_what_is_known_already_is_not_asked_for_again(world: World) -> None:
    world.ratios = {("hoist_copy",): 1.2, ("propagate_layout",): 1.3, ("hoist_copy", "propagate_layout"): 1.5}
    assert world.try_graph() == (HOIST, LAYOUT)
    # Hoisting comes first, and both together are all.
    assert world.asked == [ALL_REWRITES, LAYOUTS]
    assert world.tried == [("propagate_layout",), ("hoist_copy",), ("hoist_copy", "propagate_layout")]


def test_some_of_them_together_are_asked_for(world: World) -> None:
    world.proposals = (HOIST, LAYOUT, PRODUCTS)
    world.ratios = {
        ("hoist_copy",): 0.9,
        ("propagate_layout",): 1.3,
        ("onednn_products",): 1.2,
        ("propagate_layout", "onednn_products"): 1.4,
    }
    assert world.try_graph() == (LAYOUT, PRODUCTS)
    assert world.asked == [ALL_REWRITES, LAYOUTS, ("onednn_products",), (*LAYOUTS, "onednn_products")]
    assert [one.kind for one in world.recorded if one.candidates == (HOIST,)] == [
        Kind.PROPOSED,
        Kind.TRIED,
        Kind.REJECTED,
    ]


def test_other_ways_to_compile_are_tried_behind_what_is_predicted(world: World) -> None:
    world.choices = (OFF, EAGER)
    world.ratios = {
        ("propagate_layout",): 1.1,
        ("layout_optimization_off",): 1.2,
        ("eager",): 1.4,
        ("hoist_copy",): 1.2,
        ("hoist_copy", "propagate_layout"): 1.3,
    }
    assert world.try_graph() == (EAGER,)
    assert world.tried == [*list(world.ratios)]


def test_rewrites_are_made_under_another_compiler_and_not_with_other_options_of_inductors(world: World) -> None:
    world.choices, world.under_eager = (OFF, EAGER), (PRODUCTS,)
    world.proposals = ()
    world.ratios = {("layout_optimization_off",): 1.2, ("eager", "onednn_products"): 1.4}
    assert world.try_graph() == (EAGER, PRODUCTS)
    assert world.asked == [ALL_REWRITES, ALL_REWRITES]
    reasons = {one.reason for one in world.recorded if one.kind is Kind.PROPOSED}
    assert reasons == {"only a trial can tell which inner compiler is fastest"}


def test_a_way_to_compile_is_not_tried_together_with_rewrites(world: World) -> None:
    world.choices = (OFF,)
    world.proposals = (LAYOUT,)
    world.ratios = {("propagate_layout",): 1.1, ("layout_optimization_off",): 1.2}
    assert world.try_graph() == (OFF,)
    assert world.promoted == [("propagate_layout",), ("inner_choice",)]


def test_what_was_proved_stays_proved_where_a_later_trial_cannot_be_run(world: World) -> None:
    world.ratios = {("propagate_layout",): 1.3}
    world.fails = ("hoist_copy",)
    with pytest.raises(TrialError, match="the baseline does not run"):
        world.try_graph()
    assert world.promoted == [("propagate_layout",)]


def test_what_was_rejected_is_not_tried_again(world: World) -> None:
    world.ratios = {("propagate_layout",): 1.3, ("hoist_copy",): 1.1}
    together = recorded_plan((HOIST, LAYOUT)).hash
    assert world.try_graph(rejected=frozenset({recorded_plan((LAYOUT,)).hash, together})) == (HOIST,)
    assert world.tried == [("hoist_copy",)]


def test_asking_takes_no_longer_than_the_budget(world: World) -> None:
    world.proposals = (HOIST, LAYOUT, PRODUCTS)
    world.ratios = {("propagate_layout",): 1.3, ("hoist_copy",): 1.1}
    world.slow = ("onednn_products",)
    assert world.try_graph() == (LAYOUT,)
    assert world.seconds == [100] * 3
    # With no time left the rest is not tried.
    assert world.tried == [("propagate_layout",)]


def test_a_budget_that_ends_before_anything_is_known_is_not_spent_again_at_once(world: World) -> None:
    world.slow = ALL_REWRITES
    assert world.try_graph() == ()
    assert [(one.kind, one.plan) for one in world.recorded] == [
        (kind, recorded_plan(()).hash) for kind in (Kind.PROPOSED, Kind.TRIED, Kind.INCONCLUSIVE)
    ]
    assert "budget" in world.recorded[-1].reason


def test_what_there_was_no_time_for_is_not_rejected_with_what_there_was(world: World) -> None:
    world.proposals = (HOIST, LAYOUT, PRODUCTS)
    world.ratios = {("propagate_layout",): 0.9}
    world.slow = ("onednn_products",)
    assert world.try_graph() == ()
    last = {one.plan: one.kind for one in world.recorded}
    assert last == {recorded_plan((LAYOUT,)).hash: Kind.REJECTED, recorded_plan(()).hash: Kind.INCONCLUSIVE}


def test_a_program_that_does_not_run_is_no_matter_of_time(world: World) -> None:
    world.ratios = {("propagate_layout",): 1.3}
    world.fails = ("propagate_layout",)
    with pytest.raises(TrialError, match="does not run"):
        world.try_graph()
    assert world.recorded == []


def test_that_nothing_is_proposed_is_a_decision(world: World) -> None:
    world.proposals = ()
    assert world.try_graph() == ()
    assert [(one.kind, one.environment) for one in world.recorded] == [
        (kind, HERE) for kind in (Kind.PROPOSED, Kind.TRIED, Kind.REJECTED)
    ]
