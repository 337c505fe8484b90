"""Run one trial: put the candidate through the gates, and measure process pairs until the verdict is clear.

The processes that the gates examine are not timed. All have ended when this returns or raises.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from frx_graph.measure.machine.busy_programs import WatchLoad, watch_machine_load
from frx_graph.support.allocator import Allocation, read_allocation
from frx_graph.trials.allocation_check import (
    NAMES,
    AllocationCheck,
    choose_allocations,
    shorten_protocol,
    summarize_check,
    summarize_whole,
)
from frx_graph.trials.arm_messages import (
    Compile,
    Compiled,
    Examine,
    Examined,
    Judge,
    Judged,
)
from frx_graph.trials.baseline_check import DRAWS, describe_departure
from frx_graph.trials.busy_wait import WHEN_BUSY, BusyWait
from frx_graph.trials.gates import Comparison, examine_gates
from frx_graph.trials.numerics import Difference
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.process_pairs import NotRepeatableError, ProcessPairs, Programs, Progress
from frx_graph.trials.processor_moves import ProcessorMoves
from frx_graph.trials.protocol import Protocol as Rule
from frx_graph.trials.protocol import make_protocol
from frx_graph.trials.samples import OF_OTHERS, Cause, MeasuredQuad, count_disturbed, count_own_void
from frx_graph.trials.schedule import Arm
from frx_graph.trials.trial_run import Gate, GateResult, TrialRun
from frx_graph.trials.verdict import (
    Outcome,
    Verdict,
    decide_early,
    decide_finally,
    find_dissent,
    summarize_reason,
)
from frx_graph.trials.worker_client import (
    BaselineError,
    BudgetEnded,
    CandidateFailed,
    RunningArms,
    StartArm,
    WorkerClient,
)

_RAISE = "raise {} in the policy"
_WAS_FAR = "all was measured while the processors shared no cache, and now they do: run again"
_RUN_IDLE = "run again when the machine is idle, or {}"
_NOT_REPEATABLE = "not repeatable: the program does not compute the same twice from the same seed and inputs"


def run_trial(
    programs: Programs,
    policy: TrialPolicy,
    start: StartArm,
    *,
    candidates: int = 1,
    in_process: bool = False,
    ignore_load: bool = False,
    own: Allocation | None = None,
    pools: bool = False,
    when_busy: str = WHEN_BUSY,
    progress: Progress = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
    watch: WatchLoad = watch_machine_load,
) -> TrialRun:
    """Run the trial of one of `candidates` candidates, until the policy's time budget is used up; after a disturbed
    quad it waits, and meanwhile `watch` finds out who used the processors. With `in_process` the arms run here. With
    `ignore_load`, quads count beside other programs, too. `own` is the allocation of the processes that the result is
    for, by default this one's: with glibc's default the arms pool their memory, and a gain is checked without, unless
    the candidate itself `pools` memory. `when_busy` is advice for a trial that a busy machine leaves open. Raises
    `TrialError` if the baseline does not run."""
    rule = make_protocol(policy, candidates, in_process=in_process)
    allocations = choose_allocations(own or read_allocation(), in_process=in_process, pools=pools)
    runner = _TrialRunner(
        programs, policy, rule, allocations, start, progress, clock, pause, watch, ignore_load, when_busy
    )
    return replace(runner.run(), in_process=in_process, ignore_load=ignore_load)


@dataclass(slots=True)
class _TrialRunner:
    programs: Programs
    policy: TrialPolicy
    rule: Rule
    allocations: tuple[Allocation, ...]
    start: StartArm
    progress: Progress
    clock: Callable[[], float]
    pause: Callable[[float], None]
    watch: WatchLoad
    ignore_load: bool
    when_busy: str
    signatures: tuple[str, ...] = ()
    departed: tuple[Difference, ...] = ()
    check: AllocationCheck | None = None
    deadline: float = field(init=False)
    asking: WorkerClient = field(init=False)
    busy: BusyWait = field(init=False)
    pairs: ProcessPairs = field(init=False)

    def __post_init__(self) -> None:
        self.deadline = self.clock() + self.policy.time_budget_seconds
        self.asking = WorkerClient(self.policy, self.deadline, self.clock)
        self.busy = BusyWait(self.pause, self.watch, self.progress, self.when_busy)
        self.pairs = ProcessPairs(
            self.programs,
            self.start,
            self.asking,
            self.busy,
            self.deadline,
            self.clock,
            self.progress,
            self.ignore_load,
            ProcessorMoves(self.ignore_load),
            pool=self.allocations[-1] is Allocation.POOLED,
        )

    def run(self) -> TrialRun:
        try:
            gates = tuple(self._check_gates())
        except BudgetEnded as ended:
            advice = _RAISE.format("time_budget_seconds")
            reason = f"the time budget ended before anything was measured, {ended}: {advice}"
            return self._make_run((), Verdict(Outcome.INCONCLUSIVE, reason, None, early=True), ())
        except NotRepeatableError:
            gate = GateResult(Gate.NUMERICS, None, "there is nothing to compare with")
            return self._make_run((gate,), Verdict(Outcome.INCONCLUSIVE, _NOT_REPEATABLE, None, early=True), ())
        failed = next((gate for gate in gates if gate.passed is False), None)
        if failed is not None:
            return self._make_run(gates, _make_rejection(failed), ())
        quads: list[MeasuredQuad] = []
        if len(self.allocations) > 1:
            self.check = AllocationCheck(self.allocations[1])
            self.pairs.switch_allocation(self.allocations[0])
        try:
            verdict = self._measure_verdict(quads)
            if self.check is not None:
                verdict = self._check_allocation(verdict, quads)
            if not self.ignore_load and self.pairs.moves.has_far(quads):
                # Only the check has met near processors.
                verdict, self.check = replace(verdict, outcome=Outcome.INCONCLUSIVE, reason=_WAS_FAR), None
        except CandidateFailed as failure:
            failed = GateResult(failure.gate, False, failure.detail)
            seen = tuple(failed if gate.name is failed.name else gate for gate in gates)
            return self._make_run(seen, _make_rejection(failed), quads)
        if loaded := count_disturbed(quads, *OF_OTHERS, void=False):
            marked = f"{verdict.reason}; {loaded} of {len(quads)} rounds were disturbed, and count (--ignore-load)"
            verdict = replace(verdict, reason=marked)
        passed = None if verdict.outcome is Outcome.INCONCLUSIVE else verdict.outcome is Outcome.PROMOTE
        throughput = GateResult(Gate.THROUGHPUT, passed, verdict.reason, summarize_reason(verdict))
        # While it was timed it may have failed once, too.
        return self._make_run((self._make_process_gate(), *gates[1:], throughput), verdict, quads)

    def _make_run(self, gates: tuple[GateResult, ...], verdict: Verdict, quads: Sequence[MeasuredQuad]) -> TrialRun:
        # No candidate has to match this.
        departure = describe_departure(self.departed, self.programs.baseline.inner)
        if departure:
            verdict = replace(verdict, reason=f"{departure}; {verdict.reason}")
        check = None if self.check is None else replace(self.check, verdict=self.check.derive_verdict(verdict))
        return TrialRun(
            gates,
            verdict,
            tuple(quads),
            self.pairs.environment,
            self.signatures,
            check=check,
            load=self.busy.load,
            departure=departure,
        )

    def _check_gates(self) -> Iterator[GateResult]:
        try:
            seen = self._compare_with_retry()
        except CandidateFailed as failure:
            yield GateResult(failure.gate, False, failure.detail)
            return
        yield self._make_process_gate()
        yield from examine_gates(seen)

    def _make_process_gate(self) -> GateResult:
        who = {Arm.CANDIDATE: "it", Arm.BASELINE: "the baseline"}
        once = (f"; once {who[arm]} did not: {how}" for arm, how in self.asking.forgiven.items())
        return GateResult(Gate.PROCESS, True, "".join(("ran to its end", *once)))

    def _compare_with_retry(self) -> Comparison:
        while True:
            try:
                return self._compare_arms()
            except (CandidateFailed, BaselineError) as failure:
                self.pairs.retry_or_raise(failure)

    def _compare_arms(self) -> Comparison:
        """Examine both arms in a pair of processes that is not timed."""
        with tempfile.TemporaryDirectory(prefix="frx-trial-") as folder, RunningArms(self.start) as running:
            arms = self.pairs.start_pair(running, tuple(Arm), timed=False)
            files = {arm: str(Path(folder) / f"{arm}.pt") for arm in Arm}
            self.progress("looking at the baseline and the candidate")
            compiled = dict(self.pairs.ask_each(arms, dict.fromkeys(Arm, Compile()), Compiled))
            # In turn: two programs whose threads share the processors take far longer than one after the other.
            seen = {arm: self.asking.ask(arms, arm, Examine(files[arm], DRAWS), Examined) for arm in Arm}
            self.signatures = tuple(graph.signature for graph in seen[Arm.BASELINE].graphs)
            self.progress("comparing their results")
            multipliers = (self.policy.numerics_multiplier, self.policy.numerics_multiplier_half)
            question = Judge(files[Arm.BASELINE], files[Arm.CANDIDATE], DRAWS, *multipliers)
            judged = self.asking.ask(arms, Arm.BASELINE, question, Judged)
            self.departed = judged.departed
        wanted = self.programs.candidate.candidates
        captures = compiled[Arm.BASELINE].capture, compiled[Arm.CANDIDATE].capture
        baseline, candidate = seen[Arm.BASELINE], seen[Arm.CANDIDATE]
        return Comparison(captures, baseline, candidate, judged, wanted, self.policy, self.programs.freezes)

    def _measure_verdict(self, quads: list[MeasuredQuad]) -> Verdict:
        """Measure until the verdict is clear, with the extra process pairs if the others leave it open."""
        verdict = self._measure_pairs(quads, self.rule)
        extended = self.rule.extend()
        whole = verdict.statistics is not None and verdict.statistics.quads >= self.rule.quads
        if extended is None or verdict.outcome is not Outcome.INCONCLUSIVE or not whole:
            return verdict
        self.progress(f"still open after {self.rule.process_pairs} process pairs: {extended.added_pairs} more")
        return self._measure_pairs(quads, extended)

    def _measure_pairs(self, quads: list[MeasuredQuad], rule: Rule, *, alone: bool = False) -> Verdict:
        """Measure the pairs of `rule`, until the verdict is clear. If `alone` a promotion would count, too many pairs
        that show no gain end it as well."""
        try:
            found = self.pairs.measure_quads(quads, rule, lambda: self._settle(quads, rule, alone))
        except BudgetEnded:
            found = None
        return found or self._cut_short(quads, rule)

    def _settle(self, quads: Sequence[MeasuredQuad], rule: Rule, alone: bool) -> Verdict | None:
        if alone and find_dissent(quads, rule):
            return decide_finally(quads, rule)
        return decide_early(quads, rule)

    def _check_allocation(self, verdict: Verdict, quads: list[MeasuredQuad]) -> Verdict:
        """Return the verdict after a check with the user's own allocation. A gain that shows there alone is measured
        there in full. If that promotes it, the `quads` and the verdict are those, and the check is what was measured
        before. Else the first verdict stands: where page faults differ between processes, theirs is often open."""
        stats = verdict.statistics
        settled = verdict.outcome in (Outcome.EQUIVALENT, Outcome.REJECT)
        if stats is None or not (verdict.outcome is Outcome.PROMOTE or (settled and stats.ci_high >= 1)):
            return verdict
        pooled, own = self.allocations
        measured = self.pairs.environment
        self.pairs.switch_allocation(own)
        self.progress(f"checking the gain with {NAMES[own]}")
        promoted = verdict.outcome is Outcome.PROMOTE
        self.check = self._measure_check(own, promoted=promoted)
        if not promoted and self.check.shows and stats.processes > self.rule.process_pairs:
            # Two looks have not shown it: a third would be one more chance to be wrong.
            self.check = replace(self.check, shows=None)
        elif not promoted and self.check.shows:
            own_quads: list[MeasuredQuad] = []
            try:
                full = self._measure_pairs(own_quads, self.rule, alone=True)
            except CandidateFailed as failed:
                self.check = replace(self.check, shows=False, failure=failed.detail)
            except BaselineError:
                self.check = replace(self.check, shows=None)
            else:
                if full.outcome is Outcome.PROMOTE:
                    self.check = replace(summarize_whole(pooled, stats, quads), shows=False, verdict=verdict)
                    quads[:] = own_quads
                    return full
                settled = full.outcome is not Outcome.INCONCLUSIVE or find_dissent(own_quads, self.rule)
                if full.statistics is not None:
                    self.check = summarize_whole(own, full.statistics, own_quads)
                self.check = replace(self.check, shows=False if settled else None)
        self.pairs.environment = measured
        return verdict

    def _measure_check(self, own: Allocation, *, promoted: bool) -> AllocationCheck:
        rule = shorten_protocol(self.rule, promoted=promoted)
        quads: list[MeasuredQuad] = []
        failure = ""
        try:
            self.pairs.measure_quads(quads, rule, lambda: summarize_check(own, quads, rule).shows)
        except CandidateFailed as failed:
            failure = failed.detail
        except (BudgetEnded, BaselineError):
            # What was measured before stands.
            pass
        found = summarize_check(own, quads, rule)
        return replace(found, shows=False, failure=failure) if failure else found

    def _cut_short(self, quads: Sequence[MeasuredQuad], rule: Rule) -> Verdict:
        """Return the final verdict. If not all quads were measured, the reason gives advice: close other programs if
        quads were void for their load, else raise the keys of the policy that ended it."""
        verdict = decide_finally(quads, rule)
        if sum(not quad.void for quad in quads) >= rule.quads:
            return verdict
        void = count_own_void(quads)
        # More time, or more void quads, would not help on a busy machine.
        if busy := self.busy.explain_end(quads):
            return replace(verdict, reason=f"{verdict.reason}; {busy}")
        ends = []
        if self.clock() >= self.deadline:
            ends.append(f"the time budget ended: {_RAISE.format('time_budget_seconds')}")
        if void > rule.void_quads_allowed:
            idle = 2 * count_disturbed(quads, Cause.LOADED, void=True) > void
            advice = _RUN_IDLE.format(self.when_busy) if idle else _RAISE.format("void_quads_allowed")
            ends.append(f"no more than {rule.void_quads_allowed} may be disturbed: {advice}")
        return replace(verdict, reason="; ".join((verdict.reason, *ends)))


def _make_rejection(gate: GateResult) -> Verdict:
    return Verdict(Outcome.REJECT, f"{gate.name}: {gate.summary or gate.detail}", None, early=True)
