"""Run and time configurations, each in its folder; finished ones are read and not measured again."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from frx_graph.errors import TrialError
from frx_graph.runs.tune.examination import Diagnose, examine_run
from frx_graph.runs.tune.live_arm import AlternatingArms, ArmEndedError, ArmStart, SuccessiveArms
from frx_graph.runs.tune.quality import MOST_MEMORY, find_failures
from frx_graph.runs.tune.settings import TuneSettings
from frx_graph.runs.tune.step_stream import SETTLE_NS
from frx_graph.runs.tune.timed_trial import TimedResult, has_different_sizes, run_race, run_timed_trial
from frx_graph.runs.tune.tune_folder import BASELINE, TuneFolder
from frx_graph.runs.tune.workload_facts import WorkloadFacts, gather_workload_facts
from frx_graph.trials.configuration_trial import Configuration, ConfigurationTrial, Fate, Kind, RunSeen
from frx_graph.trials.schedule import Arm

Variables = tuple[tuple[str, str], ...]
_PROCESSES = "processes"
_ROOM = 2
"""Factor on the number of steps that a process is asked for. Steps after a stop do not count, and their number grows
with the number of workers. A program that counts its steps must not end before."""


class TuneBench:
    """Runs the trials of a tune. `diagnose` gives the label of a finished run in a folder, or None; `progress` gets
    messages."""

    def __init__(
        self,
        settings: TuneSettings,
        folder: TuneFolder,
        *,
        diagnose: Diagnose = lambda _: None,
        progress: Callable[[str], None] = lambda _: None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.settings = settings
        self.folder = folder
        self.environment = dict(os.environ if environment is None else environment)
        self._diagnose = diagnose
        self._progress = progress
        self.one_at_a_time = settings.one_at_a_time

    def run_baseline(self) -> RunSeen:
        """Run the program as it is. Raises `TrialError` if nothing can be measured of it."""
        seen = self.folder.read_baseline()
        if seen is None:
            self.folder.begin_trial(self.folder.path / BASELINE, {})
            seen = self._examine((), self.folder.path / BASELINE)
            if not seen.exit_code and seen.steps:
                self.folder.keep_baseline(seen)
        where = f"look at {self.folder.path / BASELINE / 'stderr.log'}"
        if seen.exit_code:
            raise TrialError(f"the program as it is fails: {seen.ending}", where)
        if not seen.step_seconds:
            hint = "report steps through frx_graph, see docs/tune.md; --warmup-steps and --time-budget-s bound them"
            raise TrialError(f"the program reported {seen.steps} steps: {seen.ending}", hint)
        if seen.memory_ratio is not None and 2 * seen.memory_ratio >= MOST_MEMORY:
            self.one_at_a_time = True
        return seen

    def record_refusal(
        self, kind: Kind, candidate: Configuration, against: Variables, reason: str
    ) -> ConfigurationTrial:
        """Record a candidate that is not run, which has a folder too."""
        place = self.folder.get_trial_folder(kind, candidate.id)
        self.folder.begin_trial(place, dict(against) | dict(candidate.variables), why=reason)
        trial = ConfigurationTrial(kind, candidate, against, Fate.REFUSED, reason)
        self.folder.keep_trial(trial)
        return trial

    def _run_race(self, found: ConfigurationTrial, place: Path, baseline: RunSeen) -> ConfigurationTrial:
        """Run one short quad. Its fate is `RACED`, or `REJECT` for one that fails."""
        warmup, steps = self.settings.race_warmup_steps, self.settings.race_measure_steps
        by_sample = _changes_batch_size(found)
        raced = self._time_arms(
            found, place, partial(run_race, by_sample=by_sample), by_sample, warmup, steps, baseline
        )
        if raced.gain is None:
            return raced
        by_sample = by_sample or has_different_sizes(raced.quads[0].blocks)
        return replace(raced, fate=Fate.RACED, reason="", by_sample=by_sample)

    def _run_trial(
        self, found: ConfigurationTrial, place: Path, baseline: RunSeen, candidates: int
    ) -> ConfigurationTrial:
        """Run a whole trial: the gates, then rule R."""
        self._progress("one whole run")
        seen = self._examine(join_variables(found.against, found.configuration.variables), place)
        reasons = [*find_failures(seen, baseline, self.settings)] or _find_ignored_variables(found.configuration, seen)
        found = replace(found, reason="; ".join(reasons), seen=seen)
        if reasons:
            return found
        sizes = {seen.batch_size, baseline.batch_size}
        # Programs may change the batch size by any variable.
        by_sample = _changes_batch_size(found) or (None not in sizes and len(sizes) > 1)
        if by_sample and (seen.samples is None or baseline.samples is None):
            reason = "the number of samples in a step is unknown, and another batch size is compared by samples"
            return replace(found, reason=reason)

        def decide(arms: AlternatingArms) -> TimedResult:
            rule = self.settings.make_protocol(candidates, successive=self.one_at_a_time)
            whole = found.kind is Kind.FINAL
            return run_timed_trial(arms, rule, by_sample=by_sample, whole=whole, progress=self._progress)

        warmup, steps = self.settings.warmup_steps, self.settings.block_steps
        return self._time_arms(found, place, decide, by_sample, warmup, steps, baseline)

    def run_trials(
        self, kind: Kind, candidates: Iterable[Configuration], against: Variables, baseline: RunSeen, number: int
    ) -> Iterator[ConfigurationTrial]:
        """Yield the races, or the whole trials, of `candidates` one after the other, each of one of `number`."""
        for candidate in candidates:
            trial = self.find_finished(kind, candidate, against)
            if trial is None:
                place = self.folder.get_trial_folder(kind, candidate.id)
                self.folder.begin_trial(place, dict(join_variables(against, candidate.variables)))
                trial = ConfigurationTrial(kind, candidate, against, Fate.REJECT, "")
                if kind is Kind.RACE:
                    trial = self._run_race(trial, place, baseline)
                else:
                    trial = self._run_trial(trial, place, baseline, number)
                self.folder.keep_trial(trial)
            yield trial

    def gather_facts(self, seen: RunSeen) -> WorkloadFacts:
        """Return the facts of this machine."""
        return gather_workload_facts(seen, self.environment, quality_checks=self.settings.quality_checks)

    def _examine(self, variables: Variables, place: Path) -> RunSeen:
        settings = self.settings
        return examine_run(
            self._make_arm_start(variables, settings.warmup_steps, settings.warmup_steps + settings.measure_steps + 1),
            place,
            warmup=settings.warmup_steps,
            steps=settings.measure_steps,
            sample_seconds=settings.sample_interval_ms / 1e3,
            diagnose=self._diagnose,
        )

    def _time_arms(
        self,
        found: ConfigurationTrial,
        place: Path,
        decide: Callable[[AlternatingArms], TimedResult],
        by_sample: bool,
        warmup: int,
        steps: int,
        baseline: RunSeen,
    ) -> ConfigurationTrial:
        rule = self.settings.make_protocol(1)
        # Two of each quad, and all void ones may be one pair's.
        blocks = 2 * (rule.quads_per_pair + rule.void_quads_allowed)
        room = warmup + _ROOM * blocks * (steps + warmup + _count_settling_steps(baseline, found.seen))
        both = join_variables(found.against, found.configuration.variables)

        def get_start(arm: Arm) -> ArmStart:
            return self._make_arm_start(found.against if arm is Arm.BASELINE else both, warmup, room)

        def measure(kind: type[AlternatingArms]) -> TimedResult:
            with kind(get_start, place / _PROCESSES, warmup=warmup, steps=steps) as arms:
                try:
                    return decide(arms)
                except ArmEndedError as ended:
                    raise TrialError(f"the {ended.arm}: {ended.detail}") from ended

        try:
            timed = self._measure_arms(measure)
        except ValueError as error:
            # Some steps reported their number of samples, others did not.
            return replace(found, reason=str(error))
        return replace(
            found,
            fate=Fate(timed.outcome),
            reason=timed.reason,
            gain=timed.gain,
            by_sample=by_sample,
            one_at_a_time=self.one_at_a_time,
            quads=timed.quads,
        )

    def _measure_arms(self, measure: Callable[[type[AlternatingArms]], TimedResult]) -> TimedResult:
        """Measure both programs side by side; if that fails and one at a time does not, one at a time from then on."""
        before = self.one_at_a_time
        first: TimedResult | None = None
        second: TimedResult | None = None
        if not before:
            with contextlib.suppress(TrialError):
                first = measure(AlternatingArms)
                if first.quads:
                    return first
            self._progress("the two do not run beside each other: one at a time")
        try:
            self.one_at_a_time = True
            second = measure(SuccessiveArms)
        finally:
            if second is None or not second.quads:
                # The failure is not caused by the other program.
                self.one_at_a_time = before
        return second if second.quads or first is None else first

    def _make_arm_start(self, variables: Variables, warmup: int, most: int) -> ArmStart:
        settings = self.settings
        told = {
            "FRX_RUN_ID": f"{self.folder.name}-{uuid.uuid4().hex[:8]}",
            "FRX_JOB_NAME": settings.name,
            "FRX_SAMPLE_INTERVAL_MS": str(settings.sample_interval_ms),
            "FRX_TUNE_WARMUP_STEPS": str(warmup),
            "FRX_TUNE_MEASURE_STEPS": str(most - warmup),
            "FRX_TUNE_MAX_STEPS": str(most),
            "FRX_TUNE_REPEAT_COUNT": str(settings.repeat_count),
        }
        environment = {**self.environment, **told, **dict(variables)}
        return ArmStart(settings.command, environment, settings.time_budget_s, settings.ignore_load)

    def find_finished(self, kind: Kind, candidate: Configuration, against: Variables) -> ConfigurationTrial | None:
        """Return the same trial from an earlier run; None if its variables or its baseline differ."""
        found = self.folder.read_trial(kind, candidate.id)
        same = found is not None and (found.configuration, found.against) == (candidate, against)
        return found if same else None


def join_variables(against: Variables, variables: Variables) -> Variables:
    """Return both; a name in both has its value of `variables`."""
    return tuple((dict(against) | dict(variables)).items())


def _count_settling_steps(*runs: RunSeen | None) -> int:
    """Return how many steps the fastest of `runs` makes before a block has settled."""
    fastest = min(statistics.median(run.step_seconds) for run in runs if run is not None and run.step_seconds)
    return math.ceil(SETTLE_NS / 1e9 / fastest)


def _changes_batch_size(trial: ConfigurationTrial) -> bool:
    name = "FRX_BATCH_SIZE"
    wanted = dict(trial.configuration.variables).get(name)
    return wanted is not None and wanted != dict(trial.against).get(name)


def _find_ignored_variables(candidate: Configuration, seen: RunSeen) -> list[str]:
    wanted = dict(candidate.variables)
    found = {"FRX_BATCH_SIZE": seen.batch_size, "FRX_NUM_WORKERS": seen.workers}
    return [
        f"the program does not take {name}: it was to be {wanted[name]}, and is {value} (see docs/tune.md)"
        for name, value in found.items()
        if name in wanted and value is not None and str(value) != wanted[name]
    ]
