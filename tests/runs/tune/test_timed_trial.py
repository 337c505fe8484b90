from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from frx_graph.errors import TrialError
from frx_graph.runs.tune.live_arm import ArmEndedError
from frx_graph.runs.tune.settings import TuneSettings
from frx_graph.runs.tune.timed_trial import run_race, run_timed_trial
from frx_graph.trials.configuration_trial import StepBlock
from frx_graph.trials.samples import Cause, Disturbance
from frx_graph.trials.schedule import Arm
from frx_graph.trials.verdict import Outcome

RULE = TuneSettings(command=("x",)).make_protocol(13)


class Scripted:
    """Arms whose times are drawn: `gain` is true, each process has a bias of its own, each block noise. `ends` says
    after how many blocks of a pair of processes an arm ends, and how."""

    def __init__(
        self,
        gain: float = 1.0,
        seed: int = 0,
        noise: float = 0.02,
        bias: float = 0.01,
        samples: dict[Arm, int] | None = None,
        ends: tuple[Arm, int, int | None] | None = None,
        void_every: int = 0,
    ) -> None:
        self.draw = random.Random(seed)
        self.gain, self.noise, self.bias = gain, noise, bias
        self.samples, self.ends, self.void_every = samples or {}, ends, void_every
        self.pairs = 0
        self.blocks: list[Arm] = []
        self._own: dict[Arm, float] = {}
        self._since: dict[Arm, int] = {}

    def start_fresh(self, first: Arm) -> None:
        self.pairs += 1
        self._own = {arm: math.exp(self.draw.gauss(0, self.bias)) for arm in Arm}
        self._since = dict.fromkeys(Arm, 0)

    def run_block(self, arm: Arm) -> StepBlock:
        if self.ends is not None and self.ends[0] is arm and self._since[arm] >= self.ends[1]:
            raise ArmEndedError(arm, self.ends[2], "it ends")
        self._since[arm] += 1
        self.blocks.append(arm)
        base = 0.01 / (self.gain if arm is Arm.CANDIDATE else 1.0)
        seconds = base * self._own[arm] * math.exp(self.draw.gauss(0, self.noise))
        void = self.void_every and len(self.blocks) % self.void_every == 0
        disturbed = Disturbance(Cause.LOADED) if void else None
        return StepBlock(arm, (seconds,) * 10, 10 * self.samples[arm] if arm in self.samples else None, disturbed)


def trial(arms: Scripted, **options):
    return run_timed_trial(arms, RULE, pause=lambda _: None, **options)


def test_a_program_against_itself_is_never_promoted():
    outcomes = [trial(Scripted(seed=seed)).outcome for seed in range(150)]
    assert outcomes.count(Outcome.PROMOTE) == 0
    assert outcomes.count(Outcome.EQUIVALENT) > 100


def test_faster_candidate_is_promoted_with_its_gain():
    found = trial(Scripted(gain=1.5))
    assert found.outcome is Outcome.PROMOTE
    assert found.gain.ratio == pytest.approx(1.5, abs=0.05)
    assert found.gain.processes >= 2


def test_slower_candidate_is_rejected():
    assert trial(Scripted(gain=0.7)).outcome is Outcome.REJECT


def test_final_claim_is_measured_to_the_end():
    early, whole = trial(Scripted(gain=1.5)), trial(Scripted(gain=1.5), whole=True)
    assert len(early.quads) < RULE.quads
    assert len(whole.quads) == RULE.quads
    assert whole.outcome is Outcome.PROMOTE
    # What is hopeless ends early all the same.
    assert len(trial(Scripted(gain=0.7), whole=True).quads) < RULE.quads


def test_blocks_of_both_arms_alternate():
    arms = Scripted(gain=1.5)
    found = trial(arms, whole=True)
    for quad in found.quads:
        order = [block.arm for block in quad.blocks]
        assert order[0] is order[3] is not order[1]
        assert order[1] is order[2]
    assert arms.pairs == RULE.process_pairs


def test_a_program_that_ends_by_itself_goes_on_in_fresh_processes():
    arms = Scripted(gain=1.5, ends=(Arm.BASELINE, 4, 0))
    found = trial(arms)
    assert found.outcome is Outcome.PROMOTE
    assert arms.pairs > found.gain.processes


@pytest.mark.parametrize("how", [0, None])
def test_a_program_that_ends_before_it_was_measured_once_leaves_it_open(how):
    found = trial(Scripted(ends=(Arm.CANDIDATE, 1, how)))
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "candidate ends before it has been measured once" in found.reason


def test_a_candidate_that_fails_is_rejected_and_a_baseline_that_fails_is_an_error():
    found = trial(Scripted(ends=(Arm.CANDIDATE, 3, 1)))
    assert found.outcome is Outcome.REJECT
    assert "it fails" in found.reason
    with pytest.raises(TrialError, match="baseline fails"):
        trial(Scripted(ends=(Arm.BASELINE, 3, -11)))


def test_a_larger_batch_counts_by_its_samples():
    # Steps of the same time, with twice as many samples.
    samples = {Arm.BASELINE: 8, Arm.CANDIDATE: 16}
    assert trial(Scripted(samples=samples), by_sample=True).gain.ratio == pytest.approx(2.0, rel=0.05)
    assert trial(Scripted(samples=samples)).gain.ratio == pytest.approx(1.0, rel=0.05)


def test_disturbed_quads_are_kept_do_not_count_and_are_too_many_at_last():
    some = trial(Scripted(gain=1.5, void_every=12), whole=True)
    assert some.outcome is Outcome.PROMOTE
    assert some.gain.void == sum(quad.void for quad in some.quads) > 0
    assert some.gain.quads == RULE.quads
    assert trial(Scripted(gain=1.5, void_every=2)).outcome is Outcome.INCONCLUSIVE


def test_a_race_is_one_quad_and_proves_nothing():
    found = run_race(Scripted(gain=1.5))
    assert len(found.quads) == 1
    assert found.gain.low is None
    assert found.gain.ratio == pytest.approx(1.5, rel=0.15)
    failed = run_race(Scripted(ends=(Arm.CANDIDATE, 0, 1)))
    assert failed.gain is None
    assert failed.outcome is Outcome.REJECT


class HalfAsLarge(Scripted):
    def run_block(self, arm):
        block = super().run_block(arm)
        return replace(block, samples=(4 if arm is Arm.CANDIDATE else 8) * len(block.step_seconds))


def test_steps_with_fewer_samples_do_not_win_a_race():
    assert run_race(HalfAsLarge(gain=2.0)).gain.ratio == pytest.approx(1.0, rel=0.15)


@pytest.mark.parametrize(("minimum", "agreement"), [(0.08, 0.0), (0.03, math.log1p(0.03) / 2)])
def test_under_a_smaller_minimum_each_pair_has_to_reach_half_of_it(minimum, agreement):
    rule = TuneSettings(command=("x",), min_speedup=minimum).make_protocol(4)
    assert rule.process_pairs == 6
    assert rule.agreement == pytest.approx(agreement)
    assert rule.alpha == pytest.approx(0.001 / 4)


def test_repeats_are_more_pairs():
    assert TuneSettings(command=("x",), repeat_count=2).make_protocol(1).process_pairs == 12
