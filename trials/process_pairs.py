"""Start pairs of arms in fresh processes, and measure quads in them.

On processors the arms of a pair load and compile side by side. Then they run their blocks in turn. After a failure that
may pass, the pair is started again once for each arm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from frx_graph.support.allocator import Allocation
from frx_graph.trials.allocation_check import NAMES
from frx_graph.trials.arm_messages import (
    Answered,
    Load,
    Loaded,
    Measure,
    Measured,
    Question,
    Warm,
    Warmed,
    begin,
)
from frx_graph.trials.arm_process import ArmError
from frx_graph.trials.busy_wait import BusyWait
from frx_graph.trials.environment_record import TrialEnvironment
from frx_graph.trials.gates import find_plan_fault
from frx_graph.trials.pace import Pace
from frx_graph.trials.processor_moves import ProcessorMoves
from frx_graph.trials.protocol import Protocol as Rule
from frx_graph.trials.samples import (
    Block,
    Cause,
    MeasuredQuad,
    count_disturbed,
    count_own_void,
    count_quads,
    make_block,
    select_quad,
)
from frx_graph.trials.schedule import Arm, Quad, make_schedule
from frx_graph.trials.worker_client import (
    BaselineError,
    CandidateFailed,
    RunningArm,
    RunningArms,
    StartArm,
    WorkerClient,
)

_WARM_STEPS = 3

Progress = Callable[[str], None]
Settled = TypeVar("Settled")


@dataclass(frozen=True, slots=True)
class Programs:
    """The two programs of a trial: what each arm loads. `freezes` is True if the candidate makes weights constants."""

    baseline: Load
    candidate: Load
    freezes: bool = False

    def get_program(self, arm: Arm) -> Load:
        """Return the program of an arm."""
        return self.baseline if arm is Arm.BASELINE else self.candidate


@dataclass(slots=True)
class ProcessPairs:
    """Pairs of arms of one trial. `client` asks them until `deadline` by `clock`. `ignore_load`: quads count beside
    other programs."""

    programs: Programs
    start: StartArm
    client: WorkerClient
    busy: BusyWait
    deadline: float
    clock: Callable[[], float]
    progress: Progress
    ignore_load: bool
    moves: ProcessorMoves
    pool: bool
    """Arms keep freed memory. Those that the gates examine do as the user's: a leak may hide in kept memory."""
    environment: TrialEnvironment | None = None
    """As the first arm with the present allocation has reported it."""
    random: bool | None = None
    """The program draws random numbers; None before an arm has found out."""
    stage: str = ""
    """Start of progress lines: the allocation, if there are measurements with two."""
    _reported: bool = False

    def switch_allocation(self, allocation: Allocation) -> None:
        """Start arms with this allocation from now on. The next one reports its environment."""
        self.pool = allocation is Allocation.POOLED
        self.stage = f"with {NAMES[allocation]}: "
        self._reported = False

    def start_pair(self, running: RunningArms, order: Sequence[Arm], *, timed: bool) -> Mapping[Arm, RunningArm]:
        """Start two fresh processes in this order, with their workloads loaded, to be `timed` or compared."""
        # Only the first pair checks for random numbers, since a program may keep state that every run changes.
        arms: dict[Arm, RunningArm] = {}
        loads: dict[Arm, Question] = {}
        for arm in order:
            try:
                arms[arm] = running.start()
            except ArmError as error:
                raise self.client.make_failure(arm, error) from error
            loads[arm] = replace(self.programs.get_program(arm), random=self.random, pool=self.pool, timed=timed)
        loaded: dict[Arm, Loaded] = {}
        for arm, answer in self.ask_each(arms, loads, Loaded):
            loaded[arm] = answer
            if not self._reported:
                self.environment, self._reported = loaded[arm].environment, True
            if not loaded[arm].repeats:
                raise NotRepeatableError
        if loaded[Arm.BASELINE].random is not loaded[Arm.CANDIDATE].random:
            raise NotRepeatableError
        self.random = loaded[Arm.BASELINE].random
        return arms

    def retry_or_raise(self, failure: CandidateFailed | BaselineError) -> None:
        """Forgive an arm's first failure that may pass at another time; raise any other."""
        arm = self.client.forgive_once(failure)
        self.progress(f"once more, in fresh processes: the {arm} {failure.detail}")

    def ask_each(
        self, arms: Mapping[Arm, RunningArm], questions: Mapping[Arm, Question], answered: type[Answered]
    ) -> Iterator[tuple[Arm, Answered]]:
        """Yield the answers in the order of `questions`, whose work is not timed: where it is safe, the arms do it side
        by side."""
        for arm in tuple(questions)[1:] if self._may_work_side_by_side() else ():
            begin(arms[arm], questions[arm])
        for arm, question in questions.items():
            yield arm, self.client.ask(arms, arm, question, answered)

    def _may_work_side_by_side(self) -> bool:
        """Return False for GPUs and Inductor's modes, whose kernels are chosen by times, and once an arm has failed:
        both together may have taken too much memory."""
        known = self.environment
        mode = self.programs.baseline.inner_mode or self.programs.candidate.inner_mode
        on_processor = known is not None and known.setup.operators.device == "cpu"
        return on_processor and mode is None and not self.client.forgiven

    def measure_quads(
        self, quads: list[MeasuredQuad], rule: Rule, settle: Callable[[], Settled | None]
    ) -> Settled | None:
        """Measure the quads of `rule` until `settle`, called after each, returns something; None if it never does."""
        plan = make_schedule(rule)
        pair: int | None = None
        pace = Pace(rule, self.clock)
        with RunningArms(self.start) as running:
            arms: Mapping[Arm, RunningArm] = {}
            while (quad := select_quad(plan, quads, rule)) is not None:
                try:
                    if quad.pair != pair:
                        running.stop()
                        arms = self.start_pair(running, tuple(dict.fromkeys(quad.arms)), timed=True)
                        pair = quad.pair
                        self._warm_up(arms, quad, rule, self._describe_left(pace, quads, rule))
                        pace.note_started()
                    first, second, third, fourth = (
                        self._run_block(arms, arm, rule.steps_per_block) for arm in quad.arms
                    )
                except (CandidateFailed, BaselineError) as failure:
                    self.retry_or_raise(failure)
                    pace.note_failed()
                    # What its earlier quads have shown stays: two pairs that count as one claim less than they know.
                    pair = None
                    continue
                quads.append(MeasuredQuad(quad, (first, second, third, fourth)))
                self.moves.note(quads[-1], self._get_environment())
                quads[:] = map(self.moves.mark, quads)
                pace.note_quad()
                status = f"{self.stage}{count_quads(quads, rule)}, {self._describe_left(pace, quads, rule)}"
                self.progress(status)
                if (settled := settle()) is not None:
                    return settled
                if self.clock() >= self.deadline:
                    break
                if count_disturbed(quads[-1:], Cause.MOVED, void=True):
                    near = self.busy.wait_for_near(partial(self._are_near, arms), self._get_seconds_left, status)
                    pace.note_waited()
                    if not near:
                        break
                elif quads[-1].void:
                    last = count_own_void(quads) > rule.void_quads_allowed
                    self.busy.wait(quads, self._get_seconds_left(), status, last=last)
                    pace.note_waited()
        return None

    def _are_near(self, arms: Mapping[Arm, RunningArm]) -> bool:
        """Return True if the processors of the arms are near each other now."""
        try:
            found = self.client.ask(arms, Arm.BASELINE, Measure(0), Measured)
        except BaselineError:
            # The next block fails in the same way, and is repeated.
            return True
        return not self.moves.is_far(found.distance)

    def _get_environment(self) -> TrialEnvironment:
        assert self.environment is not None, "an arm reports it when it has loaded"
        return self.environment

    def _get_seconds_left(self) -> float:
        return max(0.0, self.deadline - self.clock())

    def _describe_left(self, pace: Pace, quads: Sequence[MeasuredQuad], rule: Rule) -> str:
        """Return how long the present measurement still takes, and if more may follow; before its first quad, only the
        limit of the trial."""
        estimate, limit = pace.estimate_seconds(quads), self._get_seconds_left()
        if estimate is None:
            return f"at most {limit:.0f} s left for the whole trial"
        more = ", more if that does not settle it" if rule.extend() is not None else ""
        return f"about {min(estimate, limit):.0f} s left{more}"

    def _warm_up(self, arms: Mapping[Arm, RunningArm], quad: Quad, rule: Rule, left: str) -> None:
        # Of the first pair the baseline first, and a block of each that is not kept: they tell how long the candidate
        # is to be waited for.
        first = Measure not in self.client.baseline_seconds
        self.progress(f"{self.stage}process pair {quad.pair + 1} of {rule.process_pairs}: compiling, {left}")
        order = tuple(Arm) if first else tuple(dict.fromkeys(quad.arms))
        for arm, warmed in self.ask_each(arms, dict.fromkeys(order, Warm(_WARM_STEPS)), Warmed):
            # Else the program without the plan would be timed as the candidate.
            if fault := find_plan_fault(self.programs.get_program(arm).candidates, warmed.graphs, warmed.failures):
                raise self.client.make_plan_failure(fault)
        if first:
            for arm in Arm:
                self._run_block(arms, arm, rule.steps_per_block)

    def _run_block(self, arms: Mapping[Arm, RunningArm], arm: Arm, steps: int) -> Block:
        others = tuple(other.pid for name, other in arms.items() if name is not arm)
        found = self.client.ask(arms, arm, Measure(steps, others), Measured)
        return make_block(arm, found.seconds, found.disturbance, found.distance, ignore_load=self.ignore_load)


class NotRepeatableError(Exception):
    """Raised if the results of the arms cannot be compared."""
