"""What quads of the user's own steps come to: a plan is gone for what it does, and never for what happens beside it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from frx_graph.monitor.canary import Canary
from frx_graph.monitor.health_signals import (
    HealthSample,
    HealthSignals,
    PromisedTimes,
    Signal,
    find_next_check,
    read_promised_times,
)
from frx_graph.monitor.step_metrics import Footprint
from frx_graph.support.allocator import Allocation
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.samples import Cause, Disturbance
from frx_graph.trials.schedule import Arm

POLICY = TrialPolicy()
QUAD_STEPS = 4 * POLICY.steps_per_block


class Steps:
    """A machine on which a step of an arm takes what `cost(arm, step)` says."""

    def __init__(self, cost: Callable[[Arm, int], float]) -> None:
        self.cost = cost
        self.now = 0.0
        self.held = self.frames = self.step = 0
        self.disturbance: Disturbance | None = None

    def read_clock(self) -> float:
        return self.now

    def read_footprint(self) -> Footprint:
        return Footprint(self.frames, self.held)

    @contextmanager
    def watch_disturbances(self) -> Iterator[Callable[[], Disturbance | None]]:
        yield lambda: self.disturbance

    def run(self, canary: Canary, most: int = 10_000) -> str | None:
        """What the canary comes to."""
        for self.step in range(most):
            arm = canary.begin()
            if canary.finding is None:
                self.now += self.cost(arm, self.step)
                canary.end()
            if canary.finding is not None:
                return canary.finding.regression
        raise AssertionError(f"nothing after {most} steps")


def canary_of(steps: Steps, signal: Signal = Signal.SLOW, *, whole_steps: bool = False) -> Canary:
    return Canary(signal, POLICY, steps, whole_steps=whole_steps)


def noisy(seed: int, slower: float, *, sd: float = 0.03) -> Callable[[Arm, int], float]:
    """Steps of one second with noise that stays for a while, now and then a neighbour's load for many steps, and single
    ones that take half as long again."""
    draw = random.Random(seed)
    level = load = 0.0

    def cost(arm: Arm, step: int) -> float:
        nonlocal level, load
        level = 0.95 * level + draw.gauss(0, sd * (1 - 0.95**2) ** 0.5)
        if draw.random() < 0.01:
            load = 0.0 if load else 0.08
        spike = 0.5 if draw.random() < 0.05 else 0.0
        return (1 + level + load + spike) * (1 + slower if arm is Arm.CANDIDATE else 1.0)

    return cost


@pytest.mark.parametrize("whole_steps", [False, True])
def test_a_plan_that_is_slower_is_found(whole_steps: bool) -> None:
    for seed in range(100):
        steps = Steps(noisy(seed, 0.12))
        regression = steps.run(canary_of(steps, whole_steps=whole_steps))
        assert regression is not None
        assert regression.startswith("its steps take 1.")


@pytest.mark.integration
@pytest.mark.parametrize("slower", [-0.03, -0.12, 0.0])
def test_a_plan_that_is_not_slower_stays(slower: float) -> None:
    for seed in range(300):
        steps = Steps(noisy(seed, slower))
        assert steps.run(canary_of(steps)) is None


def test_a_plan_that_is_clearly_faster_is_let_go_soon() -> None:
    steps = Steps(noisy(1, -0.3))
    assert steps.run(canary_of(steps)) is None
    assert steps.step < 3 + 10 * 20


def test_one_quad_is_enough_where_it_was_only_due() -> None:
    steps = Steps(noisy(1, -0.3))
    assert steps.run(canary_of(steps, Signal.DUE)) is None
    assert steps.step == 3 + QUAD_STEPS - 1


def test_disturbed_quads_do_not_count_for_time() -> None:
    steps = Steps(noisy(1, 0.5))
    steps.disturbance = Disturbance(Cause.LOADED)
    assert steps.run(canary_of(steps)) is None
    assert steps.step == 3 + QUAD_STEPS * (POLICY.void_quads_allowed + 1) - 1


@pytest.mark.parametrize(("arms", "gone"), [({Arm.CANDIDATE}, True), (set(Arm), False), ({Arm.BASELINE}, False)])
def test_what_is_compiled_in_whose_steps(arms: set[Arm], gone: bool) -> None:
    def cost(arm: Arm, step: int) -> float:
        steps.frames += arm in arms
        return 1.0

    steps = Steps(cost)
    regression = steps.run(canary_of(steps, Signal.RECOMPILES))
    assert (regression is not None) is gone


@pytest.mark.parametrize(("arms", "gone"), [({Arm.CANDIDATE}, True), (set(Arm), False), ({Arm.BASELINE}, False)])
@pytest.mark.parametrize("whole_steps", [False, True])
def test_whose_steps_memory_grows_in(arms: set[Arm], gone: bool, whole_steps: bool) -> None:
    def cost(arm: Arm, step: int) -> float:
        steps.held += 4 * 2**20 * (arm in arms)
        return 1.0

    steps = Steps(cost)
    regression = steps.run(canary_of(steps, Signal.MEMORY, whole_steps=whole_steps))
    assert (regression is not None) is gone


def raised(
    signals: HealthSignals, seconds: Callable[[int], float], most: int, **more: object
) -> list[tuple[int, Signal]]:
    told = []
    for step in range(1, most + 1):
        if find_next_check(step - 1) == step:
            signal = signals.evaluate(HealthSample(step, (seconds(step),), 0, 2**30, **more))  # type: ignore[arg-type]
            if signal is not None:
                told.append((step, signal))
                signals.clear(signal)
    return told


def test_checks_are_frequent_at_first() -> None:
    checks = [step for step in range(1, 130) if find_next_check(step - 1) == step]
    assert checks == [1, 2, 4, 8, 16, 32, 64, 96, 128]


def test_steps_at_the_promised_time_raise_no_signal() -> None:
    signals = HealthSignals(POLICY, lambda: PromisedTimes(1.0, 0.5), whole_steps=False)
    assert raised(signals, lambda step: 0.9, 5_000) == []


def test_whole_steps_are_slower_by_the_seconds_that_were_promised() -> None:
    def seconds(step: int) -> float:
        return 5.0 if step < 500 else 5.6

    told = raised(HealthSignals(POLICY, lambda: PromisedTimes(1.0, 0.5), whole_steps=True), seconds, 600)
    assert [signal for _, signal in told] == [Signal.PROMISE, Signal.SLOW]
    assert (
        raised(HealthSignals(POLICY, lambda: PromisedTimes(1.0, 0.5), whole_steps=False), seconds, 600)[0][1]
        is Signal.SLOW
    )
    # Their noise is that of whole steps, however little was promised.
    told = raised(
        HealthSignals(POLICY, lambda: PromisedTimes(0.1, 0.09), whole_steps=True), lambda step: 5 + step / 10_000, 600
    )
    assert [signal for _, signal in told] == [Signal.PROMISE]


def test_whole_steps_that_are_shorter_than_the_baseline_alone_keep_the_promise() -> None:
    assert (
        raised(HealthSignals(POLICY, lambda: PromisedTimes(1.0, 0.5), whole_steps=True), lambda step: 0.9, 5_000) == []
    )


def test_a_sign_that_was_nothing_waits_twice_as_long_each_time() -> None:
    signals = HealthSignals(POLICY, lambda: None, whole_steps=False)
    told = [step for step, _ in raised(signals, lambda step: float(step), 20_000)]
    assert told
    gaps = [later - earlier for earlier, later in itertools.pairwise(told)]
    assert gaps == sorted(gaps)
    assert gaps[-1] > 2 * gaps[0]


def test_non_finite_loss_is_not_growth() -> None:
    signals = HealthSignals(POLICY, lambda: None, whole_steps=False)
    assert raised(signals, lambda step: 1.0, 500, loss=float("inf")) == []


def test_a_canary_is_due_every_so_many_steps() -> None:
    signals = HealthSignals(TrialPolicy(canary_interval_steps=320), lambda: None, whole_steps=True)
    told = raised(signals, lambda step: 1.0, 3_200)
    assert told == [(step, Signal.DUE) for step in range(320, 3_201, 320)]


def test_what_a_trial_promises() -> None:
    def quad(baseline: float, candidate: float, *, void: bool = False) -> dict[str, object]:
        blocks = [{"arm": "baseline", "seconds": [baseline] * 3}, {"arm": "candidate", "seconds": [candidate] * 3}]
        return {"void": void, "blocks": blocks}

    document = {"samples": [quad(2.0, 1.0), quad(3.0, 1.5), quad(2.0, 1.0), quad(90.0, 90.0, void=True)]}
    assert read_promised_times(document, Allocation.CHOSEN) == PromisedTimes(2.0, 1.0)
    assert read_promised_times({"samples": [quad(9.0, 9.0, void=True)]}, Allocation.CHOSEN) is None
    assert read_promised_times({}, Allocation.CHOSEN) is None
    checked = {**document, "check": {"allocation": "default", "samples": [quad(4.0, 3.0)]}}
    assert read_promised_times(checked, Allocation.DEFAULT) == PromisedTimes(4.0, 3.0)
    assert read_promised_times(checked, Allocation.POOLED) == PromisedTimes(2.0, 1.0)
