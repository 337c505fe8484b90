"""A trial from gates to verdict, with arms that answer what they are told to: no process, no time."""

from __future__ import annotations

import contextlib
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

from frx_graph.capture.capture_facts import CaptureFacts
from frx_graph.errors import TrialError
from frx_graph.measure.machine.busy_programs import BusyProgram, MachineLoad
from frx_graph.measure.memory_use import MemoryRecord, MemoryUse, StepMemory
from frx_graph.measure.operators.kernel_identities import Kernel, KernelCount, KernelIdentities, Source
from frx_graph.records import Candidate
from frx_graph.support.allocator import Allocation
from frx_graph.support.cache_directory import CACHE_VARIABLE
from frx_graph.trials import executor
from frx_graph.trials.allocation_check import shorten_protocol, summarize_check
from frx_graph.trials.arm_messages import (
    QUESTION,
    Compile,
    Compiled,
    Examine,
    Examined,
    Judge,
    Judged,
    Load,
    Loaded,
    MadeGraph,
    Measure,
    Measured,
    TargetWorkload,
    Warm,
    Warmed,
)
from frx_graph.trials.arm_process import ArmError, Cause, Limits
from frx_graph.trials.busy_wait import BusyWait
from frx_graph.trials.environment import read_trial_environment
from frx_graph.trials.executor import run_trial
from frx_graph.trials.numerics import Difference
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.process_pairs import Programs
from frx_graph.trials.protocol import Protocol, make_protocol
from frx_graph.trials.samples import Block, Disturbance, MeasuredQuad
from frx_graph.trials.samples import Cause as Void
from frx_graph.trials.schedule import Arm, make_schedule
from frx_graph.trials.trial_run import Gate, TrialRun
from frx_graph.trials.verdict import Outcome, Verdict
from frx_graph.trials.worker_client import CandidateFailed

MADE = Candidate("propagate_layout", "a" * 16, ("convolution",), ("0,2,3,1",))
BASE = Load(TargetWorkload("model.py:build"), False, "inductor", seed=0)
PROGRAMS = Programs(BASE, replace(BASE, candidates=(MADE,)))
POLICY = TrialPolicy(process_pairs=2, quads_per_pair=5, void_quads_allowed=2, process_bias=0)
"""Two pairs are enough to promote only where processes are taken to have no times of their own, as these have none."""
ENVIRONMENT = read_trial_environment(torch.device("cpu"))
FINE = Judged((), (), 7, exact=True)
MEMORY = MemoryRecord(MemoryUse(1000, (StepMemory(100, 0),) * 5), None, (10_000,) * 5)


@dataclass
class World:
    """What all arms of a trial do. `seconds` of a step, by whether it is the candidate's; `unpooled`, if any, the same
    in arms that do not pool memory, for each pair of them in turn; `fails` says when an arm
    raises what, `failures` how often; `refused` which starts, from 0, fail; `loaded` what else an arm has found, by its
    number; `warmed` what one that warms up has made, and what has failed in it, by its number; `void` which blocks,
    from 0, are disturbed, by `cause`; `load` what other programs do in pauses."""

    seconds: Mapping[bool, float] = field(default_factory=lambda: {False: 0.010, True: 0.010})
    unpooled: Mapping[bool, tuple[float, ...]] = field(default_factory=dict)
    fails: Mapping[tuple[bool, type], ArmError] = field(default_factory=dict)
    failures: float = math.inf
    refused: frozenset[int] = frozenset()
    starts: int = 0
    void: frozenset[int] = frozenset()
    cause: Void = Void.LOADED
    load: MachineLoad | None = None
    distances: Callable[[int], float | None] = lambda _: None
    """Distance between the processors in a block, from 0."""
    judged: Judged = FINE
    loaded: Mapping[int, Mapping[str, bool]] = field(default_factory=dict)
    made: tuple[Candidate, ...] = (MADE,)
    warmed: Mapping[int, tuple[tuple[Candidate, ...], tuple[str, ...]]] = field(default_factory=dict)
    kernels: Mapping[bool, KernelIdentities] = field(default_factory=dict)
    answer_seconds: float = 0.0
    time: float = 0.0
    blocks: int = 0
    started: list[FakeArm] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)

    def start(self, limits: Limits | None = None) -> FakeArm:
        self.starts += 1
        if self.starts - 1 in self.refused:
            raise ArmError(Cause.NOT_STARTED, "no process")
        self.started.append(FakeArm(self, len(self.started), limits or Limits(memory_bytes=100 + len(self.started))))
        return self.started[-1]


@dataclass
class FakeArm:
    world: World
    pid: int
    limits: Limits
    asked: list[Any] = field(default_factory=list)
    running: bool = True

    @property
    def candidate(self) -> bool:
        return bool(self.asked[0].candidates)

    @property
    def number(self) -> int:
        """This arm's number among the timed ones of its kind that do not pool memory."""
        alike = [arm for arm in self.world.started[2:] if arm.asked and not arm.asked[0].pool]
        return [arm.pid for arm in alike if arm.candidate is self.candidate].index(self.pid)

    def begin(self, message: Mapping[str, Any]) -> None:
        self.world.begun.append(message["ask"])

    def ask(self, message: Mapping[str, Any], *, seconds: float) -> dict[str, Any]:
        assert self.running
        question = QUESTION.validate_python(message)
        self.asked.append(question)
        self.world.time += self.world.answer_seconds
        if self.world.answer_seconds > seconds:
            raise ArmError(Cause.TIMED_OUT, "no answer")
        error = self.world.fails.get((self.candidate, type(question)))
        if error is not None and self.world.failures > 0:
            self.world.failures -= 1
            self.running = False
            raise error
        answer = self._answer(question)
        found: dict[str, Any] = TypeAdapter(type(answer)).dump_python(answer, mode="json")
        return found

    def _answer(self, question: Any) -> Any:
        graphs = (MadeGraph("b" * 16, self.world.made if self.candidate else ()),)
        match question:
            case Load():
                allocation = Allocation.POOLED if question.pool else Allocation.DEFAULT
                where = replace(ENVIRONMENT, setup=replace(ENVIRONMENT.setup, allocation=allocation))
                found = Loaded(random=False if question.random is None else question.random, environment=where)
                return replace(found, **self.world.loaded.get(self.pid, {}))
            case Compile():
                return Compiled(CaptureFacts(3, 1, (), (), (), cudagraph_skips=0, cudagraph_skip_reasons=(), untold=()))
            case Warm():
                made, failures = self.world.warmed.get(self.pid, (graphs[0].applied, ()))
                return Warmed(1.0, (replace(graphs[0], applied=made),), failures)
            case Examine():
                seen = self.world.kernels.get(self.candidate, KernelIdentities(()))
                return Examined(graphs, (), seen, MEMORY)
            case Judge():
                return self.world.judged
            case Measure():
                number, self.world.blocks = self.world.blocks, self.world.blocks + 1
                disturbed = Disturbance(self.world.cause, "others") if number in self.world.void else None
                # No two blocks take exactly as long.
                noise = 1 + 0.001 * ((number * 7919) % 13 - 6)
                seconds = self.world.seconds[self.candidate]
                if self.world.unpooled and not self.asked[0].pool:
                    of_pairs = self.world.unpooled[self.candidate]
                    seconds = of_pairs[self.number % len(of_pairs)]
                return Measured((seconds * noise,) * question.steps, disturbed, self.world.distances(number))

    def stop(self) -> None:
        self.running = False


def tried(
    world: World,
    policy: TrialPolicy = POLICY,
    said: Callable[[str], None] = lambda _: None,
    *,
    in_process: bool = False,
    ignore_load: bool = False,
    own: Allocation = Allocation.CHOSEN,
    pools: bool = False,
    loads: Iterator[MachineLoad] | None = None,
) -> TrialRun:
    """Run a trial in `world`. Other programs do what `loads` has for each pause in turn, by default `world.load`."""

    @contextlib.contextmanager
    def watch() -> Iterator[Callable[[], MachineLoad | None]]:
        yield lambda: world.load if loads is None else next(loads)

    try:
        return run_trial(
            PROGRAMS,
            policy,
            world.start,
            in_process=in_process,
            ignore_load=ignore_load,
            own=own,
            pools=pools,
            progress=said,
            clock=lambda: world.time,
            pause=world.pauses.append,
            watch=watch,
        )
    finally:
        assert not any(arm.running for arm in world.started)


@pytest.mark.parametrize(
    ("times", "outcome"),
    [(1.2, Outcome.PROMOTE), (1.0, Outcome.EQUIVALENT), (0.95, Outcome.REJECT)],
)
def test_the_verdict_follows_the_times(times: float, outcome: Outcome) -> None:
    run = tried(World(seconds={False: 0.010 * times, True: 0.010}))
    assert run.verdict.outcome is outcome
    assert run.verdict.statistics is not None
    assert run.verdict.statistics.ratio_median == pytest.approx(times, rel=0.01)
    assert [gate.name for gate in run.gates] == list(Gate)
    assert run.gates[-1].passed is (outcome is Outcome.PROMOTE)
    assert run.verdict.reason.startswith(run.gates[-1].summary)
    assert all(len(gate.summary or gate.detail) <= 55 for gate in run.gates)
    assert run.signatures == ("b" * 16,)


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    return tmp_path


FASTER, SAME = {False: 0.012, True: 0.010}, {False: 0.010, True: 0.010}
NEAR, FAR = 1.2, 2.0


@pytest.mark.usefixtures("own_cache")
def test_blocks_with_far_processors_are_void() -> None:
    # The first two blocks warm up. Of the quads, the second has far processors.
    said: list[str] = []
    run = tried(World(distances=lambda block: FAR if 6 <= block < 10 else NEAR), said=said.append)
    assert run.verdict.outcome is Outcome.EQUIVALENT
    assert [quad.void for quad in run.quads] == [False, True, *[False] * (len(run.quads) - 2)]
    disturbances = {block.disturbance for block in run.quads[1].blocks}
    assert disturbances == {Disturbance(Void.MOVED, "threads met in 2 times one thread's share")}
    assert sum(line.endswith("; waiting for processors that share a cache") for line in said) == 1


def count_by_pair(run: TrialRun) -> Counter[int]:
    return Counter(quad.quad.pair for quad in run.quads if not quad.void)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("far", [1.6, FAR])
@pytest.mark.parametrize("until", [14, 26])
def test_quads_before_the_processors_come_near_for_the_first_time_are_void(until: int, far: float) -> None:
    """In the first pair, or in the second. Some far blocks are nearer than others."""
    distances = {block: far - 0.05 * (block % 2) for block in range(until)}
    run = tried(World(distances=lambda block: distances.get(block, NEAR)))
    assert run.verdict.outcome is Outcome.EQUIVALENT
    by_pair = count_by_pair(run)
    assert by_pair[0] == 5
    assert 0 < by_pair[1] <= 5
    assert {block.distance for quad in run.quads if not quad.void for block in quad.blocks} == {NEAR}
    # The next trial knows, even if they are far all the time.
    world = World(distances=lambda _: far)
    again = tried(world)
    assert sum(world.pauses) == pytest.approx(120, abs=0.5)
    assert again.verdict.outcome is Outcome.INCONCLUSIVE
    assert again.verdict.reason == (
        "only 0 of 10 rounds were measured, 1 was disturbed by processors that share no cache; they did not for 120 s: "
        "try again later, or use frx trial --ignore-load"
    )


@pytest.mark.usefixtures("own_cache")
def test_far_quads_do_not_use_up_what_may_be_disturbed() -> None:
    # Every second quad is far, and the look after it finds near processors.
    quads = {block for block in range(200) if (block - 2) % 9 >= 4}
    run = tried(World(distances=lambda block: FAR if block in quads else NEAR))
    assert run.verdict.outcome is Outcome.EQUIVALENT
    assert sum(quad.void for quad in run.quads) > POLICY.void_quads_allowed


@pytest.mark.usefixtures("own_cache")
def test_a_gain_of_far_processors_alone_is_not_promoted() -> None:
    """The check with the default allocator is the first to meet near ones."""
    many = 2 + 4 * POLICY.process_pairs * POLICY.quads_per_pair
    world = World(seconds=FASTER, unpooled={False: (0.011,), True: (0.010,)})
    world.distances = lambda block: FAR if block < many else NEAR
    run = tried(world, own=Allocation.DEFAULT)
    assert run.verdict.outcome is Outcome.INCONCLUSIVE
    assert run.reason == "all was measured while the processors shared no cache, and now they do: run again"
    assert {one.outcome for one in (verdict.verdict for verdict in run.list_verdicts())} == {Outcome.INCONCLUSIVE}


@pytest.mark.usefixtures("own_cache")
def test_far_processors_can_be_ignored() -> None:
    run = tried(World(distances=lambda block: FAR if block < 14 else NEAR), ignore_load=True)
    assert run.verdict.outcome is Outcome.EQUIVALENT
    assert not any(quad.void for quad in run.quads)
    assert all(block.ignored is not None and block.ignored.cause is Void.MOVED for block in run.quads[0].blocks)
    assert run.verdict.reason.endswith(f"; 3 of {len(run.quads)} rounds were disturbed, and count (--ignore-load)")


@pytest.mark.usefixtures("own_cache")
def test_processors_that_are_always_far_are_the_machine() -> None:
    run = tried(World(distances=lambda _: FAR))
    assert run.verdict.outcome is Outcome.EQUIVALENT
    assert not any(quad.void for quad in run.quads)


def list_outcomes(run: TrialRun) -> dict[Allocation, Outcome]:
    found = [(one.environment.setup.allocation, one.verdict.outcome) for one in run.list_verdicts()]
    assert len(dict(found)) == len(found), "two decisions for one environment"
    return dict(found)


def test_a_gain_with_pooled_memory_is_checked_with_the_default_allocator() -> None:
    world = World(seconds=FASTER, unpooled={False: (0.011,), True: (0.010,)})
    run = tried(world, own=Allocation.DEFAULT)
    assert list_outcomes(run) == {Allocation.POOLED: Outcome.PROMOTE, Allocation.DEFAULT: Outcome.PROMOTE}
    assert run.check is not None
    assert run.own_ratio == run.check.ratio_median == pytest.approx(1.1, rel=0.01)
    assert len(run.check.pair_medians) == 3
    gain = "10.0 % faster (process pairs +10.0, +10.0, +10.7 %)"
    assert run.reason == f"{run.verdict.reason}. With the default allocator, your own: {gain}"
    assert run.own_verdict.reason == gain
    assert "default" not in run.verdict.reason
    measured = [arm for arm in world.started if any(isinstance(asked, Measure) for asked in arm.asked)]
    assert [arm.asked[0].pool for arm in measured] == [True] * 4 + [False] * 6
    # A leak may hide in pooled memory.
    assert not any(arm.asked[0].pool for arm in world.started if arm not in measured)


def test_a_gain_that_the_default_allocator_does_not_show_holds_for_pooled_memory_alone() -> None:
    run = tried(World(seconds=FASTER, unpooled={False: (0.010,), True: (0.010,)}), own=Allocation.DEFAULT)
    assert list_outcomes(run) == {Allocation.POOLED: Outcome.PROMOTE, Allocation.DEFAULT: Outcome.REJECT}
    assert run.own_verdict.outcome is Outcome.REJECT
    assert run.own_verdict.reason.endswith("the gain does not show")
    assert run.reason.endswith(f". With the default allocator, your own: {run.own_verdict.reason}")


@pytest.mark.parametrize(
    ("baseline", "pairs", "shows", "outcome"),
    [
        ((0.012, 0.011, 0.012), 3, True, Outcome.PROMOTE),
        ((0.012, 0.009, 0.012, 0.009, 0.012, 0.009), 6, None, Outcome.INCONCLUSIVE),
        ((0.0098, 0.0097, 0.0099), 3, False, Outcome.REJECT),
    ],
)
def test_more_pairs_are_checked_until_they_prove_a_gain_or_none(
    baseline: tuple[float, ...], pairs: int, shows: bool | None, outcome: Outcome
) -> None:
    run = tried(World(seconds=FASTER, unpooled={False: baseline, True: (0.010,)}), own=Allocation.DEFAULT)
    assert run.check is not None
    assert (len(run.check.pair_medians), run.check.shows) == (pairs, shows)
    assert run.own_verdict.outcome is outcome


def test_pairs_that_differ_by_more_than_they_gain_seldom_show_a_gain_that_is_not_there() -> None:
    draw, rule = random.Random(0), make_protocol(TrialPolicy())
    checked = shorten_protocol(rule, promoted=True)
    wrong = 0
    for _ in range(400):
        quads: list[MeasuredQuad] = []
        ratios = [math.exp(draw.gauss(0, 0.15)) for _ in range(checked.process_pairs)]
        for quad in make_schedule(checked):
            seconds = {Arm.BASELINE: ratios[quad.pair], Arm.CANDIDATE: 1.0}
            first, second, third, fourth = (Block(arm, (seconds[arm],)) for arm in quad.arms)
            quads.append(MeasuredQuad(quad, (first, second, third, fourth)))
            if (shows := summarize_check(Allocation.DEFAULT, quads, checked).shows) is not None:
                break
        wrong += shows is True
    assert wrong <= 0.06 * 400


def test_a_candidate_that_fails_in_a_full_trial_with_the_default_allocator_changes_no_other_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measure = executor._TrialRunner._measure_pairs

    def fail_alone(runner: Any, quads: list[MeasuredQuad], rule: Protocol, *, alone: bool = False) -> Verdict:
        if alone:
            raise CandidateFailed("crashed", of_the_moment=False)
        return measure(runner, quads, rule, alone=alone)

    monkeypatch.setattr(executor._TrialRunner, "_measure_pairs", fail_alone)
    run = tried(World(seconds=SAME, unpooled={False: (0.012,), True: (0.010,)}), own=Allocation.DEFAULT)
    assert run.verdict.outcome is Outcome.EQUIVALENT
    assert run.own_verdict.reason == "it fails: crashed"


def test_a_gain_of_the_default_allocator_alone_is_measured_there() -> None:
    run = tried(World(seconds=SAME, unpooled={False: (0.012,), True: (0.010,)}), own=Allocation.DEFAULT)
    assert list_outcomes(run) == {Allocation.POOLED: Outcome.EQUIVALENT, Allocation.DEFAULT: Outcome.PROMOTE}
    assert run.own_verdict is run.verdict
    assert run.own_ratio == pytest.approx(1.2, rel=0.01)
    pooled = run.list_verdicts()[0].verdict.reason
    assert pooled.startswith("no difference of 3 % or more")
    assert run.reason == f"{run.verdict.reason}. With pooled memory: {pooled}"


def test_no_gain_anywhere_takes_one_short_check() -> None:
    world = World(seconds=SAME, unpooled={False: (0.010,), True: (0.010,)})
    run = tried(world, own=Allocation.DEFAULT)
    assert set(list_outcomes(run).values()) == {Outcome.EQUIVALENT}
    assert [arm.asked[0].pool for arm in world.started] == [False] * 2 + [True] * 4 + [False] * 2
    # Each decision has figures of what was measured for it.
    assert run.own_verdict.reason == "0.0 % faster (process pairs +0.0 %): too little"
    assert run.verdict.reason.startswith("no difference of 3 % or more: 0.0 % faster (between ")


def test_a_gain_of_the_default_allocator_that_not_all_pairs_show_leaves_the_verdict_as_it_was() -> None:
    world = World(seconds=SAME, unpooled={False: (0.012, 0.012, 0.009), True: (0.010,)})
    run = tried(world, own=Allocation.DEFAULT)
    assert run.verdict.outcome is Outcome.EQUIVALENT
    assert run.own_verdict.outcome is Outcome.EQUIVALENT
    assert "With the default allocator, your own: 10.0 % slower" in run.reason
    assert "slower" in run.own_verdict.reason
    # Two pairs of the check, and the first of a whole trial, which is the last.
    assert [arm.asked[0].pool for arm in world.started] == [False] * 2 + [True] * 4 + [False] * 6
    assert run.check is not None
    assert len(run.check.quads) == 5


def test_a_trial_of_the_default_allocator_that_is_cut_short_leaves_it_unknown_there() -> None:
    def make_world() -> World:
        return World(seconds=SAME, unpooled={False: (0.012,), True: (0.010,)}, answer_seconds=1.0)

    world = make_world()
    tried(world, own=Allocation.DEFAULT)
    asked = sum(len(arm.asked) for arm in world.started)
    policy = POLICY.model_copy(update={"time_budget_seconds": asked - 12.0})
    run = tried(make_world(), policy, own=Allocation.DEFAULT)
    assert list_outcomes(run) == {Allocation.POOLED: Outcome.EQUIVALENT, Allocation.DEFAULT: Outcome.INCONCLUSIVE}
    assert run.reason.endswith(", which is not proved")


def test_a_gain_of_the_default_allocator_alone_is_not_measured_in_full_after_a_second_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measure = executor._TrialRunner._measure_verdict

    def take_second_look(*asked: Any) -> Verdict:
        found = measure(*asked)
        assert found.statistics is not None
        return replace(found, statistics=replace(found.statistics, processes=4))

    monkeypatch.setattr(executor._TrialRunner, "_measure_verdict", take_second_look)
    world = World(seconds=SAME, unpooled={False: (0.012,), True: (0.010,)})
    run = tried(world, own=Allocation.DEFAULT)
    assert list_outcomes(run) == {Allocation.POOLED: Outcome.EQUIVALENT, Allocation.DEFAULT: Outcome.INCONCLUSIVE}
    assert run.reason.endswith("(process pairs +20.0, +20.0 %), which is not proved")
    assert [arm.asked[0].pool for arm in world.started] == [False] * 2 + [True] * 4 + [False] * 4


OPEN = {False: (0.0104, 0.0101), True: (0.010,)}
"""Pairs of which one shows a gain of 4 %, the next of 1 %."""


def test_extra_pairs_are_measured_if_the_others_leave_it_open() -> None:
    world = World(seconds=SAME, unpooled=OPEN)
    said: list[str] = []
    run = tried(world, POLICY.model_copy(update={"extra_process_pairs": 2}), said.append)
    assert [quad.quad.pair for quad in run.quads] == [pair for pair in range(4) for _ in range(5)]
    assert any("still open after 2 process pairs: 2 more" in line for line in said)


def test_no_pairs_are_added_if_there_are_none_or_the_verdict_is_clear_or_the_trial_was_cut_short() -> None:
    none = POLICY.model_copy(update={"extra_process_pairs": 0})
    assert len(tried(World(seconds=SAME, unpooled=OPEN), none).quads) == 10
    assert len(tried(World(seconds=FASTER)).quads) < 10
    cut = tried(World(seconds=SAME, unpooled=OPEN, void=frozenset(range(0, 100, 4))))
    assert cut.verdict.outcome is Outcome.INCONCLUSIVE
    assert max(quad.quad.pair for quad in cut.quads) < 2


def test_what_is_slower_is_not_checked() -> None:
    world = World(seconds={False: 0.008, True: 0.010})
    run = tried(world, own=Allocation.DEFAULT)
    assert set(list_outcomes(run).values()) == {Outcome.REJECT}
    assert [arm.asked[0].pool for arm in world.started] == [False] * 2 + [True] * 4


def test_a_check_that_the_time_budget_cuts_short_leaves_it_open() -> None:
    world = World(seconds=FASTER, unpooled={False: (0.012,), True: (0.010,)}, answer_seconds=1.0)
    whole = len(tried(world, own=Allocation.CHOSEN).quads)
    # Gates and quads take a second for each question; the check gets none.
    asked = sum(len(arm.asked) for arm in world.started)
    assert whole
    again = World(seconds=FASTER, unpooled=world.unpooled, answer_seconds=1.0)
    run = tried(again, POLICY.model_copy(update={"time_budget_seconds": asked + 3.0}), own=Allocation.DEFAULT)
    assert list_outcomes(run) == {Allocation.POOLED: Outcome.PROMOTE, Allocation.DEFAULT: Outcome.INCONCLUSIVE}
    assert run.reason.endswith(". With the default allocator, your own: not measured")


def test_a_failed_gate_is_decided_for_the_users_own_allocation() -> None:
    world = World(fails={(True, Examine): ArmError(Cause.CRASHED, "it crashed")})
    run = tried(world, own=Allocation.DEFAULT)
    assert list_outcomes(run) == {Allocation.DEFAULT: Outcome.REJECT}


def test_a_candidate_that_fails_with_the_default_allocator_keeps_its_gain_with_pooled_memory() -> None:
    world = World(seconds=FASTER, unpooled={False: (0.012,), True: (0.010,)})
    start = world.start

    def crash(limits: Limits | None = None) -> FakeArm:
        arm = start(limits)
        if len(world.started) > 6:
            world.fails = {(True, Measure): ArmError(Cause.CRASHED, "it crashed")}
        return arm

    world.start = crash  # type: ignore[method-assign]
    run = tried(world, own=Allocation.DEFAULT)
    assert list_outcomes(run) == {Allocation.POOLED: Outcome.PROMOTE, Allocation.DEFAULT: Outcome.REJECT}
    assert run.reason.endswith(". With the default allocator, your own: it fails: crashed: it crashed")


@pytest.mark.parametrize(
    ("own", "pools", "in_process"),
    [
        (Allocation.CHOSEN, False, False),
        (Allocation.POOLED, False, False),
        (Allocation.UNKNOWN, False, False),
        (Allocation.DEFAULT, True, False),
        (Allocation.DEFAULT, False, True),
    ],
)
def test_other_trials_know_one_allocation(own: Allocation, pools: bool, in_process: bool) -> None:
    world = World(seconds={False: 0.02, True: 0.010})
    run = tried(world, own=own, pools=pools, in_process=in_process)
    assert (run.check, len(run.list_verdicts())) == (None, 1)
    # A process that pools by mallopt does not pass that on.
    assert any(arm.asked[0].pool for arm in world.started) is (own is Allocation.POOLED)


@pytest.mark.parametrize(
    ("times", "outcome"),
    [(1.2, Outcome.PROMOTE), (1.08, Outcome.EQUIVALENT), (1.0, Outcome.EQUIVALENT), (0.8, Outcome.REJECT)],
)
def test_in_one_process_the_minimum_is_higher_and_there_is_one_pair(times: float, outcome: Outcome) -> None:
    world = World(seconds={False: 0.010 * times, True: 0.010})
    run = tried(world, in_process=True)
    assert run.in_process
    assert run.verdict.outcome is outcome
    assert "13 %" in run.verdict.reason or outcome is Outcome.REJECT
    assert {quad.quad.pair for quad in run.quads} == {0}
    assert len(world.started) == 4
    # In processes of their own, whose bias shows between them, 8 % are enough.
    assert (tried(replace(world)).verdict.outcome is Outcome.PROMOTE) is (times > 1.03)


def test_each_pair_is_two_fresh_processes_and_those_that_are_looked_at_are_not_timed() -> None:
    world = World(seconds={False: 0.012, True: 0.010})
    run = tried(world)
    kinds = [{type(question) for question in arm.asked} for arm in world.started]
    assert kinds[0] == {Load, Compile, Examine, Judge}
    assert kinds[1] == {Load, Compile, Examine}
    assert all(found == {Load, Warm, Measure} for found in kinds[2:])
    assert len(kinds) == 2 + 2 * run.quads[-1].quad.pair + 2
    # In the order in which they are timed: of one pair the candidate first, of the other the baseline.
    begins = {quad.quad.pair: quad.quad.arms[0] is Arm.CANDIDATE for quad in reversed(run.quads)}
    assert sorted(begins.values()) == [False, True]
    started = [arm.candidate for arm in world.started]
    assert started[:2] == [False, True]
    assert started[2:] == [first for pair in range(2) for first in (begins[pair], not begins[pair])]


def test_both_arms_of_a_pair_get_the_same_requests_and_each_others_pid() -> None:
    world = World()
    run = tried(world)
    assert run.quads[0].quad.arms[0] is Arm.CANDIDATE
    for first, second in zip(world.started[2::2], world.started[3::2], strict=True):
        for arm, other in ((first, second), (second, first)):
            assert [question for question in arm.asked if isinstance(question, Warm)] == [Warm(3)]
            assert {question.ours for question in arm.asked if isinstance(question, Measure)} == {(other.pid,)}
        assert len(first.asked) == len(second.asked)


def test_both_arms_of_the_first_pair_find_out_about_random_numbers() -> None:
    world = World()
    tried(world)
    loads = [arm.asked[0].random for arm in world.started]
    assert loads == [None, None] + [False] * (len(loads) - 2)
    assert len(loads) > 4


@pytest.mark.parametrize("which", [0, 1])
def test_a_program_that_does_not_repeat_itself_is_not_tried(which: int) -> None:
    for found in ({"repeats": False}, {"random": True}):
        world = World(loaded={which: found})
        run = tried(world)
        assert run.verdict.outcome is Outcome.INCONCLUSIVE
        assert run.verdict.reason.startswith("not repeatable")
        assert [gate.passed for gate in run.gates] == [None]
        assert run.environment is not None
        assert len(world.started) <= 2


@pytest.mark.parametrize(
    ("world", "gate"),
    [
        (World(judged=Judged((Difference("output 0", 0, "wrong"),), (), 7, exact=True)), Gate.NUMERICS),
        (World(judged=Judged((), (Difference("output 0", 0, "wrong"),), 7, exact=True)), Gate.STRIDES),
        (World(made=()), Gate.PLAN),
        (World(fails={(True, Examine): ArmError(Cause.CRASHED, "SIGSEGV")}), Gate.PROCESS),
    ],
)
def test_the_first_failed_gate_ends_a_trial(world: World, gate: Gate) -> None:
    run = tried(world)
    assert run.verdict.outcome is Outcome.REJECT
    assert run.gates[-1].name is gate
    assert run.gates[-1].passed is False
    assert all(earlier.passed in (True, None) for earlier in run.gates[:-1])
    assert world.blocks == 0


def test_a_candidate_that_fails_while_it_is_timed_is_rejected() -> None:
    run = tried(World(fails={(True, Measure): ArmError(Cause.OUT_OF_MEMORY, "no memory")}))
    assert run.verdict.outcome is Outcome.REJECT
    assert run.gates[0].passed is False
    assert "no memory" in run.verdict.reason


MOMENT = [Cause.TIMED_OUT, Cause.OUT_OF_MEMORY, Cause.KILLED]


@pytest.mark.parametrize("question", [Load, Compile, Examine, Warm, Measure])
@pytest.mark.parametrize("cause", MOMENT)
def test_a_failure_of_the_moment_is_asked_about_once_more_in_fresh_processes(question: type, cause: Cause) -> None:
    fails = {(True, question): ArmError(cause, "busy")}
    run, plain = (
        tried(World(seconds={False: 0.012, True: 0.010}, fails=fails, failures=failures)) for failures in (1, 0)
    )
    assert run.verdict.outcome is plain.verdict.outcome is Outcome.PROMOTE
    assert run.gates[0].passed is True
    assert f"once it did not: {cause}: busy" in run.gates[0].detail
    assert plain.gates[0].detail == "ran to its end"


@pytest.mark.parametrize("question", [Load, Compile, Examine, Warm, Measure])
@pytest.mark.parametrize("cause", MOMENT)
def test_two_of_them_are_the_candidates(question: type, cause: Cause) -> None:
    world = World(fails={(True, question): ArmError(cause, "busy")})
    run = tried(world)
    assert run.verdict.outcome is Outcome.REJECT
    assert [gate.name for gate in run.gates if gate.passed is False] == [Gate.PROCESS]
    assert run.gates[0].detail.count("busy") == 2
    assert sum(arm.candidate and isinstance(arm.asked[-1], question) for arm in world.started) == 2


@pytest.mark.parametrize("cause", [Cause.CRASHED, Cause.EXITED, Cause.FLOODED, Cause.RAISED])
def test_all_other_failures_are_at_once(cause: Cause) -> None:
    world = World(fails={(True, Examine): ArmError(cause, "broken")}, failures=1)
    assert tried(world).verdict.outcome is Outcome.REJECT
    assert len(world.started) == 2


def test_the_second_chance_ends_with_the_time_budget() -> None:
    world = World(fails={(True, Examine): ArmError(Cause.KILLED, "no memory")}, answer_seconds=2.0)
    run = tried(world, POLICY.model_copy(update={"time_budget_seconds": 8.5}))
    assert run.verdict.outcome is Outcome.INCONCLUSIVE
    assert "raise time_budget_seconds" in run.verdict.reason


def test_a_candidate_that_cannot_be_started_twice_does_not_run() -> None:
    run = tried(World(refused=frozenset({1})))
    assert run.verdict.outcome is Outcome.EQUIVALENT
    run = tried(World(refused=frozenset({1, 3})))
    assert run.verdict.outcome is Outcome.REJECT
    assert run.gates == (run.gates[0],)
    assert run.gates[0].detail.startswith("not started: no process")


@pytest.mark.parametrize("number", [0, 3])
def test_nor_does_a_baseline(number: int) -> None:
    run = tried(World(refused=frozenset({number})))
    assert run.verdict.outcome is Outcome.EQUIVALENT
    assert run.gates[0].detail == "ran to its end; once the baseline did not: not started: no process"
    # Of the first pair that is timed the candidate is started first.
    with pytest.raises(TrialError, match=r"the baseline does not run: not started.*; before, in other processes: not"):
        tried(World(refused=frozenset({number, number + (1 if number == 0 else 2)})))


@pytest.mark.parametrize("question", [Load, Compile, Examine, Judge, Warm, Measure])
@pytest.mark.parametrize("cause", MOMENT[1:])
def test_a_baseline_is_asked_once_more_too(question: type, cause: Cause) -> None:
    fails = {(False, question): ArmError(cause, "busy")}
    run = tried(World(seconds={False: 0.012, True: 0.010}, fails=fails, failures=1))
    assert run.verdict.outcome is Outcome.PROMOTE
    assert run.gates[0].detail == f"ran to its end; once the baseline did not: {cause}: busy"
    with pytest.raises(TrialError, match=r"busy.*busy"):
        tried(World(fails=fails, failures=2))


def test_each_arm_is_forgiven_once() -> None:
    fails = {(arm, question): ArmError(Cause.KILLED, "busy") for arm, question in ((False, Judge), (True, Examine))}
    run = tried(World(seconds={False: 0.012, True: 0.010}, fails=fails, failures=2))
    assert run.verdict.outcome is Outcome.REJECT
    fails = {(arm, question): ArmError(Cause.KILLED, "busy") for arm, question in ((False, Measure), (True, Examine))}
    run = tried(World(seconds={False: 0.012, True: 0.010}, fails=fails, failures=2))
    assert run.verdict.outcome is Outcome.REJECT


def test_both_arms_of_a_pair_have_the_same_limits() -> None:
    world = World()
    tried(world)
    limits = [arm.limits for arm in world.started]
    assert limits[1::2] == limits[::2]
    assert len(set(limits)) == len(limits) / 2


def test_each_passed_gate_reports_what_was_observed() -> None:
    details = {gate.name: gate.detail for gate in tried(World(judged=replace(FINE, placed=5, share=0.125))).gates}
    assert details[Gate.PLAN] == "made: 1 × propagate_layout"
    assert details[Gate.CAPTURE] == "graphs 1, graph breaks 0, guards 0, as the baseline"
    assert details[Gate.NUMERICS] == (
        "7 results against float64, and not eager, which fails or does not repeat; "
        "the largest error is 12.5 % of what is allowed"
    )
    assert details[Gate.STRIDES] == "5 results have the baseline's or eager's layout"
    assert details[Gate.KERNELS] == "0 changed, of 0 that the baseline has"
    assert details[Gate.RECOMPILES] == "recompiles 0, CUDA-graph skips 0 in 3 steps, as the baseline"
    assert details[Gate.MEMORY] == "peak on the host 1100 bytes, as the baseline"


@pytest.mark.parametrize("question", [Load, Compile, Examine, Warm, Measure])
def test_a_baseline_that_does_not_run_is_an_error(question: type) -> None:
    with pytest.raises(TrialError, match="the baseline does not run"):
        tried(World(fails={(False, question): ArmError(Cause.RAISED, "boom")}))


@pytest.mark.parametrize("cause", [Cause.OUT_OF_MEMORY, Cause.KILLED])
def test_that_results_take_too_much_memory_to_compare_is_not_the_baselines(cause: Cause) -> None:
    with pytest.raises(TrialError) as failed:
        tried(World(fails={(False, Judge): ArmError(cause, "too much", hint="take smaller inputs")}))
    assert failed.value.message.startswith(f"the results cannot be compared: {cause}: too much")
    assert "bytes for each parameter" in failed.value.hint
    assert "inputs" not in failed.value.hint


def test_results_that_cannot_be_compared_keep_their_own_hint() -> None:
    with pytest.raises(TrialError) as failed:
        tried(World(fails={(False, Judge): ArmError(Cause.RAISED, "no file", hint="look for it")}))
    assert str(failed.value) == "the results cannot be compared: raised an error: no file (look for it)"


@pytest.mark.parametrize(
    ("unmade", "failure"), [((), ()), ((), ("OSError: No space left on device",)), ((MADE,), ("OSError: no space",))]
)
def test_a_plan_that_is_not_made_in_a_timed_process_is_asked_for_once_more(
    unmade: tuple[Candidate, ...], failure: tuple[str, ...]
) -> None:
    said: list[str] = []
    # Of the first pair that is timed the candidate has the number 2; then two fresh ones are started.
    world = World(seconds={False: 0.012, True: 0.010}, warmed={2: (unmade, failure)})
    run = tried(world, said=said.append)
    assert run.verdict.outcome is Outcome.PROMOTE
    assert any(line.startswith("once more, in fresh processes: the candidate") for line in said)
    assert not any(isinstance(question, Measure) for question in world.started[2].asked)
    assert "once it did not" in run.gates[0].detail
    assert all(reason in run.gates[0].detail for reason in failure)
    again = replace(world, warmed=dict.fromkeys((2, 4), (unmade, failure)), started=[], time=0.0)
    run = tried(again)
    assert run.verdict.outcome is Outcome.REJECT
    assert [gate.name for gate in run.gates if gate.passed is False] == [Gate.PLAN]
    assert again.blocks == world.blocks


def kernels(name: str) -> KernelIdentities:
    return KernelIdentities((KernelCount(Kernel(Source.ONEDNN, name, "convolution 1x8x8"), 1),))


def test_a_candidate_whose_convolution_leaves_its_fast_implementation_is_rejected() -> None:
    fast, slow = kernels("jit:avx2"), kernels("ref:any")
    run = tried(World(kernels={False: fast, True: slow}))
    assert run.verdict.outcome is Outcome.REJECT
    assert run.gates[-1].name is Gate.KERNELS
    assert run.gates[-1].passed is False
    assert run.gates[-1].detail == "convolution 1x8x8: 1 × ref:any instead of jit:avx2"
    passed = {gate.name: gate for gate in tried(World(kernels={False: slow, True: fast})).gates}
    assert passed[Gate.KERNELS].passed is True
    assert passed[Gate.KERNELS].detail.startswith("2 changed, of 1 that the baseline has")


def test_disturbed_quads_are_run_again_after_a_pause_that_grows() -> None:
    world = World(seconds={False: 0.012, True: 0.010}, void=frozenset({2, 6, 14}))
    run = tried(world, POLICY.model_copy(update={"void_quads_allowed": 5}))
    assert run.verdict.outcome is Outcome.PROMOTE
    # The first two blocks, one of each arm, only tell how long the candidate is waited for.
    assert [quad.void for quad in run.quads][:4] == [True, True, False, True]
    assert world.pauses == [0.25, 0.5, 0.25]


def test_too_many_void_quads_are_inconclusive() -> None:
    run = tried(World(void=frozenset(range(100)), cause=Void.RECOMPILED))
    assert run.verdict.outcome is Outcome.INCONCLUSIVE
    assert run.load is None
    assert run.gates[-1].passed is None
    assert len(run.quads) == POLICY.void_quads_allowed + 1
    assert "raise void_quads_allowed" in run.verdict.reason
    assert "raise time_budget_seconds" not in run.verdict.reason


COMPILER = BusyProgram(4711, "cc1plus", 1.5)
BUSY = MachineLoad(1.0, 2, 0.75, False, 3.25, 0.1, (COMPILER,))
IDLE = replace(BUSY, share=0.0, programs=())


@pytest.mark.parametrize("budget", [600.0, 50.0])
def test_trial_on_a_busy_machine_names_the_programs_and_no_budget(budget: float) -> None:
    world = World(answer_seconds=2.0, void=frozenset(range(100)), load=BUSY)
    run = tried(world, POLICY.model_copy(update={"time_budget_seconds": budget}))
    assert run.verdict.outcome is Outcome.INCONCLUSIVE
    assert run.verdict.reason == (
        "only 0 of 10 rounds were measured, 3 were disturbed by other programs; the machine was busy "
        "(cc1plus (pid 4711) uses 1.5 of 2 processors, load 3.2, 10 % stolen by other virtual machines): close these "
        "programs, or use frx trial --ignore-load"
    )
    assert run.gates[-1].summary == "only 0 of 10 rounds were measured"
    assert run.load == BUSY
    # After the last void quad it waits only to see which programs are busy, or not at all.
    assert world.pauses == [0.25, 0.5, 0.25][: 3 if budget == 600.0 else 2]


def test_busiest_moment_is_kept() -> None:
    loads = [IDLE, BUSY, IDLE]
    world = World(void=frozenset(range(100)))
    waits = BusyWait(lambda _: None, lambda: contextlib.nullcontext(lambda: loads.pop(0)), lambda _: None)
    void = tried(world).quads
    for _ in range(3):
        waits.wait(void[:1], 60.0, "quad 0 of 10", last=False)
    assert waits.load == BUSY
    assert not loads


def test_few_quads_under_load_are_no_reason_for_an_unfinished_trial() -> None:
    world = World(answer_seconds=2.0, void=frozenset({2}), load=BUSY)
    run = tried(world, POLICY.model_copy(update={"time_budget_seconds": 60.0}))
    assert sum(quad.void for quad in run.quads) == 1
    assert len(run.quads) > 3
    assert "raise time_budget_seconds" in run.verdict.reason
    assert "busy" not in run.verdict.reason


def test_some_quads_under_load_end_a_trial_with_advice_about_the_machine() -> None:
    # Three quads of eleven: too few to be the reason, but the machine's load has used up those that may be void.
    world = World(seconds=SAME, unpooled=OPEN, void=frozenset({30, 34, 38}))
    run = tried(world)
    assert run.verdict.reason == (
        "only 7 of 10 rounds were measured, 3 were disturbed by other programs; no more than 2 may be disturbed: "
        "run again when the machine is idle, or use frx trial --ignore-load"
    )


def test_waiting_shows_the_time_left_and_what_other_programs_do_now() -> None:
    said: list[str] = []
    world = World(answer_seconds=2.0, void=frozenset(range(100)))
    tried(world, said=said.append, loads=iter([BUSY, IDLE, IDLE]))
    # Without a round that counts, only the limit is known.
    left = "at most 566 s left for the whole trial"
    assert f"round 0 of 10, 1 disturbed, {left}; waiting 0.25 s for other programs" in said
    again = [line.partition("; measuring again")[2] for line in said if "; measuring again" in line]
    # What was seen in an earlier pause is not shown as if it were so now.
    assert again == [
        " beside others: cc1plus (pid 4711) uses 1.5 of 2 processors, load 3.2, 10 % stolen by other virtual machines",
        "",
    ]


def test_ignored_load_counts_and_is_marked() -> None:
    world = World(seconds={False: 0.012, True: 0.010}, void=frozenset(range(2, 100)))
    run = tried(world, ignore_load=True)
    assert run.verdict.outcome is Outcome.PROMOTE
    assert run.ignore_load
    assert not any(quad.void for quad in run.quads)
    assert run.quads[0].blocks[0].ignored == Disturbance(Void.LOADED, "others")
    many = len(run.quads)
    assert run.verdict.reason.endswith(f"; {many} of {many} rounds were disturbed, and count (--ignore-load)")
    assert run.gates[-1].summary == run.verdict.reason.partition(":")[0]
    assert world.pauses == []


def test_other_disturbances_are_not_ignored() -> None:
    run = tried(World(void=frozenset(range(100)), cause=Void.THROTTLED), ignore_load=True)
    assert run.verdict.outcome is Outcome.INCONCLUSIVE
    assert all(quad.void for quad in run.quads)
    assert "--ignore-load" not in run.verdict.reason


@pytest.mark.parametrize("budget", [5.0, 40.0])
def test_when_the_time_is_up_nothing_is_known(budget: float) -> None:
    world = World(answer_seconds=2.0)
    run = tried(world, POLICY.model_copy(update={"time_budget_seconds": budget}))
    assert run.verdict.outcome is Outcome.INCONCLUSIVE
    assert "raise time_budget_seconds" in run.verdict.reason
    assert "raise void_quads_allowed" not in run.verdict.reason
    assert ("while the baseline was asked to compile" in run.verdict.reason) is (budget == 5.0)
    assert not any(gate.passed is False for gate in run.gates)


def test_timeout_with_too_many_void_quads_reports_both_limits() -> None:
    # Seven answers until there are arms to time, four more for these, two blocks for how long the candidate is waited
    # for, and four for each quad.
    world = World(answer_seconds=2.0, void=frozenset(range(100)), cause=Void.RECOMPILED)
    run = tried(world, POLICY.model_copy(update={"time_budget_seconds": 50.0}))
    assert len(run.quads) == POLICY.void_quads_allowed + 1
    assert "raise time_budget_seconds" in run.verdict.reason
    assert "raise void_quads_allowed" in run.verdict.reason


def test_a_trial_that_has_measured_all_names_no_key() -> None:
    run = tried(World())
    assert "raise" not in run.verdict.reason


def test_the_baseline_is_waited_for_as_long_as_there_is_time() -> None:
    class Slow(World):
        def start(self, limits: Limits | None = None) -> FakeArm:
            arm = super().start(limits)
            plain = arm.ask

            def ask(message: Mapping[str, Any], *, seconds: float) -> dict[str, Any]:
                self.answer_seconds = 150.0 if message["ask"] == "load" and not arm.pid % 2 else 1.0
                return plain(message, seconds=seconds)

            arm.ask = ask  # type: ignore[method-assign]
            return arm

    world = Slow(seconds={False: 0.012, True: 0.010})
    run = tried(world, POLICY.model_copy(update={"time_budget_seconds": 1000.0}))
    assert run.verdict.outcome is Outcome.PROMOTE
    run = tried(Slow(), POLICY.model_copy(update={"time_budget_seconds": 140.0}))
    assert run.verdict.outcome is Outcome.INCONCLUSIVE
    assert "while the baseline was asked to load: raise time_budget_seconds" in run.verdict.reason
    assert run.environment is None


def test_an_arms_own_hint_is_the_only_one() -> None:
    with pytest.raises(TrialError) as failed:
        tried(World(fails={(False, Load): ArmError(Cause.RAISED, "no such file: x.py", hint="check the name")}))
    assert str(failed.value) == "the baseline does not run: raised an error: no such file: x.py (check the name)"


def test_a_candidate_that_takes_ten_times_as_long_to_answer_is_given_up() -> None:
    class Slow(World):
        def start(self, limits: Limits | None = None) -> FakeArm:
            arm = super().start(limits)
            plain = arm.ask

            def ask(message: Mapping[str, Any], *, seconds: float) -> dict[str, Any]:
                slow = message["ask"] == "examine" and arm.candidate
                self.answer_seconds = 130.0 if slow else 1.0
                return plain(message, seconds=seconds)

            arm.ask = ask  # type: ignore[method-assign]
            return arm

    run = tried(Slow())
    assert run.verdict.outcome is Outcome.REJECT
    assert run.gates[0].detail.startswith("timed out")
    assert "the baseline took 1 s, and patience_seconds is 120" in run.gates[0].detail


@pytest.mark.parametrize("kind", ["warm", "measure"])
@pytest.mark.parametrize("seconds", [1000.0, 1300.0])
def test_nor_is_one_that_is_asked_first(kind: str, seconds: float) -> None:
    class Slow(World):
        def start(self, limits: Limits | None = None) -> FakeArm:
            arm = super().start(limits)
            plain = arm.ask

            def ask(message: Mapping[str, Any], *, seconds: float) -> dict[str, Any]:
                slow = message["ask"] == kind
                self.answer_seconds = (slow_seconds if arm.candidate else 125.0) if slow else 1.0
                return plain(message, seconds=seconds)

            arm.ask = ask  # type: ignore[method-assign]
            return arm

    slow_seconds = seconds
    policy = POLICY.model_copy(update={"time_budget_seconds": 1e6})
    (first, *_) = make_schedule(make_protocol(policy, 1))
    assert first.arms[0] is Arm.CANDIDATE
    run = tried(Slow(), policy)
    assert (run.gates[0].passed is False) is (seconds > 1250.0)
    assert run.gates[0].passed or "the baseline took 125 s" in run.gates[0].detail


def test_progress_is_reported() -> None:
    said: list[str] = []
    tried(World(seconds={False: 0.012, True: 0.010}), said=said.append)
    assert said[0] == "looking at the baseline and the candidate"
    assert "round 1 of 10, about 0 s left, more if that does not settle it" in said


def test_progress_names_the_allocation_if_there_are_two() -> None:
    said: list[str] = []
    world = World(seconds=FASTER, unpooled={False: (0.011,), True: (0.010,)}, answer_seconds=1.0)
    tried(world, said=said.append, own=Allocation.DEFAULT)
    rounds = [line for line in said if "round" in line or "compiling" in line]
    stages = list(dict.fromkeys(line.partition(": ")[0] for line in rounds))
    assert stages == ["with pooled memory", "with the default allocator"]
    # The time left is that of the present stage, and says nothing else in between.
    assert [line for line in rounds if "at most" in line] == [
        line for line in rounds if "process pair 1 of" in line and "compiling" in line
    ]


def test_a_trial_with_one_allocation_names_none() -> None:
    said: list[str] = []
    tried(World(), said=said.append)
    assert not any(line.startswith("with ") for line in said)


def test_on_processors_the_arms_of_a_pair_work_side_by_side() -> None:
    world = World()
    tried(world)
    # No environment is known before the first arm has loaded.
    pairs = len(world.started) // 2
    assert Counter(world.begun) == {"compile": 1, "warm": pairs - 1, "load": pairs - 1}


def test_after_a_failure_that_may_pass_the_arms_work_one_after_the_other() -> None:
    memory = ArmError(Cause.OUT_OF_MEMORY, "too much")
    world = World(fails={(False, Compile): memory}, failures=1)
    assert tried(world).gates[0].detail.startswith("ran to its end; once the baseline did not")
    assert world.begun == ["compile"]


def test_a_baseline_that_departs_from_eager_is_named_first() -> None:
    departed = (Difference("output 0", 0, "0.7 (root mean square) from eager's"),)
    run = tried(World(judged=replace(FINE, departed=departed)))
    assert run.verdict.reason.startswith("Inductor alone computes something else than eager (output 0, draw 0: 0.7")
