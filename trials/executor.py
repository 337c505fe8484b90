"""Runs one trial: starts its arms, puts the candidate through the gates, measures quads until the verdict is clear.

Each pair of arms is two fresh processes; those that the gates look at are not timed. Whatever an arm does, its
processes are gone when this returns or raises.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from frx_graph.errors import TrialError
from frx_graph.trials.arm_messages import (
    Answered,
    Answering,
    Examine,
    Examined,
    Judge,
    Judged,
    Load,
    Loaded,
    Measure,
    Measured,
    Question,
    Warm,
    Warmed,
    ask,
)
from frx_graph.trials.arm_process import ArmError, Cause
from frx_graph.trials.environment import TrialEnvironment
from frx_graph.trials.gates import Comparison, Gate, GateResult, examine_gates
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.protocol import Protocol as Rule
from frx_graph.trials.protocol import protocol
from frx_graph.trials.samples import Block, MeasuredQuad
from frx_graph.trials.schedule import Arm, Quad, next_quad, schedule
from frx_graph.trials.verdict import Outcome, Verdict, early_verdict, final_verdict

DRAWS = 3
"""Of inputs, on which results are compared."""
_WARM_STEPS = 3
_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 15.0
_LEAST_SECONDS = 1.0
"""For an answer, when the time budget is about to end."""
_TIMES_AS_LONG = 10.0
_NOT_REPEATABLE = "not repeatable: the program does not compute the same twice from the same seed and inputs"

Progress = Callable[[str], None]


class RunningArm(Answering, Protocol):
    """A process, or what stands for one, that answers."""

    @property
    def pid(self) -> int:
        """Its process."""

    def stop(self) -> None:
        """End it, with all that it has started."""


StartArm = Callable[[], RunningArm]


@dataclass(frozen=True, slots=True)
class Programs:
    """The two programs of a trial: what each arm is told to load."""

    baseline: Load
    candidate: Load

    def of(self, arm: Arm) -> Load:
        """One of them."""
        return self.baseline if arm is Arm.BASELINE else self.candidate


@dataclass(frozen=True, slots=True)
class TrialRun:
    """How a trial went. `quads` are all that were measured, void ones included."""

    gates: tuple[GateResult, ...]
    verdict: Verdict
    quads: tuple[MeasuredQuad, ...]
    environment: TrialEnvironment | None
    signatures: tuple[str, ...]
    """Of the program's Dynamo graphs."""
    in_process: bool = False
    """Both arms were in the process of whoever has run the trial."""


def run_trial(
    programs: Programs,
    policy: TrialPolicy,
    start: StartArm,
    *,
    candidates: int = 1,
    in_process: bool = False,
    progress: Progress = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> TrialRun:
    """The trial of one of `candidates` candidates. Raises `TrialError` where the baseline itself does not run.

    It ends, inconclusive, when the policy's time budget is used up. After a disturbed quad it waits for a while. With
    `in_process` what is started are no processes of their own.
    """
    rule = protocol(policy, candidates, in_process=in_process)
    run = _Run(programs, policy, rule, start, progress, clock, pause).all()
    return replace(run, in_process=in_process)


class _Run:
    def __init__(
        self,
        programs: Programs,
        policy: TrialPolicy,
        rule: Rule,
        start: StartArm,
        progress: Progress,
        clock: Callable[[], float],
        pause: Callable[[float], None],
    ) -> None:
        self._clock = clock
        self._pause = pause
        self._took: dict[type, float] = {}
        self._deadline = clock() + policy.time_budget_seconds
        self._programs = programs
        self._policy = policy
        self._rule = rule
        self._start = start
        self._progress = progress
        self._environment: TrialEnvironment | None = None
        self._signatures: tuple[str, ...] = ()
        self._random: bool | None = None

    def all(self) -> TrialRun:
        try:
            gates = tuple(self._gates())
        except _BudgetEnded as ended:
            reason = f"the time budget ended before anything was measured, {ended}: raise time_budget_seconds"
            return self._ended((), Verdict(Outcome.INCONCLUSIVE, reason, None, early=True), ())
        except _NotRepeatable:
            gate = GateResult(Gate.NUMERICS, None, "there is nothing to compare with")
            return self._ended((gate,), Verdict(Outcome.INCONCLUSIVE, _NOT_REPEATABLE, None, early=True), ())
        failed = next((gate for gate in gates if gate.passed is False), None)
        if failed is not None:
            return self._ended(gates, _rejected(failed), ())
        quads: list[MeasuredQuad] = []
        try:
            verdict = self._measured(quads)
        except _BudgetEnded:
            verdict = self._cut_short(quads)
        except _CandidateFailed as failure:
            gates = (failure.gate, *gates[1:])
            return self._ended(gates, _rejected(failure.gate), quads)
        known = verdict.outcome is not Outcome.INCONCLUSIVE
        passed = verdict.outcome is Outcome.PROMOTE if known else None
        throughput = GateResult(Gate.THROUGHPUT, passed, verdict.reason)
        return self._ended((*gates, throughput), verdict, quads)

    def _ended(self, gates: tuple[GateResult, ...], verdict: Verdict, quads: Sequence[MeasuredQuad]) -> TrialRun:
        return TrialRun(gates, verdict, tuple(quads), self._environment, self._signatures)

    def _gates(self) -> Iterator[GateResult]:
        try:
            seen = self._compared()
        except _CandidateFailed as failure:
            yield failure.gate
            return
        yield GateResult(Gate.PROCESS, True, "ran to its end")
        yield from examine_gates(seen)

    def _compared(self) -> Comparison:
        """What the arms do, seen in a pair of processes that is not timed."""
        with tempfile.TemporaryDirectory(prefix="frx-trial-") as folder, self._pair() as arms:
            files = {arm: str(Path(folder) / f"{arm}.pt") for arm in Arm}
            seen = {}
            for arm in Arm:
                self._progress(f"looking at the {arm}")
                seen[arm] = self._ask(arms, arm, Examine(files[arm], DRAWS), Examined)
            self._signatures = tuple(graph.signature for graph in seen[Arm.BASELINE].graphs)
            self._progress("comparing their results")
            policy = self._policy
            question = Judge(
                files[Arm.BASELINE], files[Arm.CANDIDATE], policy.numerics_multiplier, policy.numerics_multiplier_half
            )
            judged = self._ask(arms, Arm.BASELINE, question, Judged)
        wanted = self._programs.candidate.candidates
        return Comparison(seen[Arm.BASELINE], seen[Arm.CANDIDATE], judged, wanted, policy)

    def _measured(self, quads: list[MeasuredQuad]) -> Verdict:
        plan = schedule(self._rule)
        pair: int | None = None
        with contextlib.ExitStack() as stack:
            arms: Mapping[Arm, RunningArm] = {}
            while (quad := next_quad(plan, [q.void for q in quads], self._rule.void_quads_allowed)) is not None:
                if quad.pair != pair:
                    stack.close()
                    arms = stack.enter_context(self._pair())
                    pair = quad.pair
                    for arm in dict.fromkeys(quad.arms):
                        self._progress(f"process pair {pair + 1} of {self._rule.process_pairs}: compiling the {arm}")
                        self._ask(arms, arm, Warm(_WARM_STEPS), Warmed)
                quads.append(self._quad(arms, quad))
                self._progress(_so_far(quads, self._rule))
                if self._clock() >= self._deadline:
                    break
                if quads[-1].void:
                    self._wait(quads)
                if (verdict := early_verdict(quads, self._rule)) is not None:
                    return verdict
        return self._cut_short(quads)

    def _cut_short(self, quads: Sequence[MeasuredQuad]) -> Verdict:
        """The final verdict; where not all quads were measured it says which keys of the policy have ended it."""
        verdict = final_verdict(quads, self._rule)
        void = sum(quad.void for quad in quads)
        if len(quads) - void >= self._rule.quads:
            return verdict
        ends = []
        if self._clock() >= self._deadline:
            ends.append("the time budget ended: raise time_budget_seconds")
        if void > self._rule.void_quads_allowed:
            ends.append(f"no more than {self._rule.void_quads_allowed} may be void: raise void_quads_allowed")
        return replace(verdict, reason="; ".join((verdict.reason, *ends)))

    def _wait(self, quads: Sequence[MeasuredQuad]) -> None:
        """After a disturbed quad, twice as long after each in a row: what disturbs may pass."""
        row = next((n for n, quad in enumerate(reversed(quads)) if not quad.void), len(quads))
        seconds = min(_FIRST_PAUSE_SECONDS * 2 ** (row - 1), _LONGEST_PAUSE_SECONDS, self._deadline - self._clock())
        if seconds > 0:
            self._pause(seconds)

    def _quad(self, arms: Mapping[Arm, RunningArm], quad: Quad) -> MeasuredQuad:
        blocks = []
        for arm in quad.arms:
            others = tuple(other.pid for name, other in arms.items() if name is not arm)
            found = self._ask(arms, arm, Measure(self._rule.steps_per_block, others), Measured)
            blocks.append(Block(arm, found.seconds, found.disturbance))
        first, second, third, fourth = blocks
        return MeasuredQuad(quad, (first, second, third, fourth))

    @contextlib.contextmanager
    def _pair(self) -> Iterator[Mapping[Arm, RunningArm]]:
        """Two fresh processes with their workloads loaded. Both of the first pair find out about random numbers, and
        neither of the later ones: a program may keep a state that moves on with every run of it."""
        with contextlib.ExitStack() as stack:
            arms: dict[Arm, RunningArm] = {}
            loaded: dict[Arm, Loaded] = {}
            for arm in Arm:
                arms[arm] = self._start()
                stack.callback(arms[arm].stop)
                load = replace(self._programs.of(arm), random=self._random)
                loaded[arm] = self._ask(arms, arm, load, Loaded)
                self._environment = self._environment or loaded[arm].environment
                if not loaded[arm].repeats:
                    raise _NotRepeatable
            if loaded[Arm.BASELINE].random is not loaded[Arm.CANDIDATE].random:
                raise _NotRepeatable
            self._random = loaded[Arm.BASELINE].random
            yield arms

    def _ask(self, arms: Mapping[Arm, RunningArm], arm: Arm, question: Question, answered: type[Answered]) -> Answered:
        began = self._clock()
        left = max(_LEAST_SECONDS, self._deadline - began)
        # Nothing tells how long the baseline should take: it is waited for as long as there is time.
        took = self._took.get(type(question), 0.0)
        patience = max(self._policy.patience_seconds, _TIMES_AS_LONG * took) if arm is Arm.CANDIDATE else left
        try:
            answer = ask(arms[arm], question, answered, min(patience, left))
        except ArmError as error:
            late = error.cause is Cause.TIMED_OUT
            if late and left <= patience:
                raise _BudgetEnded(f"while the {arm} was asked to {question.ask}") from error
            if arm is Arm.CANDIDATE:
                why = f"; the baseline took {took:.0f} s, and patience_seconds is {self._policy.patience_seconds:g}"
                detail = f"{error.cause}: {error}{why if late else ''}"
                raise _CandidateFailed(GateResult(Gate.PROCESS, False, detail)) from error
            message = f"the baseline does not run: {error.cause}: {error.message}"
            raise TrialError(message, error.hint or "run the program by itself first") from error
        if arm is Arm.BASELINE:
            self._took[type(question)] = max(self._clock() - began, self._took.get(type(question), 0.0))
        return answer


class _BudgetEnded(Exception):  # noqa: N818 - not an error: the trial ends
    """Nothing is known of what was to be answered. Its text says what that is."""


class _NotRepeatable(Exception):  # noqa: N818 - not an error: the trial ends
    """What an arm computes tells nothing of what the other should."""


class _CandidateFailed(Exception):  # noqa: N818 - not an error: the trial's result
    def __init__(self, gate: GateResult) -> None:
        super().__init__(gate.detail)
        self.gate = gate


def _rejected(gate: GateResult) -> Verdict:
    return Verdict(Outcome.REJECT, f"{gate.name}: {gate.detail}", None, early=True)


def _so_far(quads: Sequence[MeasuredQuad], rule: Rule) -> str:
    measured = sum(not quad.void for quad in quads)
    void = len(quads) - measured
    return f"quad {measured} of {rule.quads}{f', {void} void' if void else ''}"
