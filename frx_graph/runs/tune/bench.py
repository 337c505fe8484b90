"""Run and time configurations, each in its folder; finished ones are read and not measured again."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from frx_graph.errors import TrialError
from frx_graph.runs.tune.examination import Diagnose, examine
from frx_graph.runs.tune.live_arm import ArmEndedError, ArmStart
from frx_graph.runs.tune.paired_arms import AlternatingArms, SuccessiveArms
from frx_graph.runs.tune.quality import MOST_MEMORY, failures
from frx_graph.runs.tune.settings import TuneSettings
from frx_graph.runs.tune.timed_trial import Arms, Timed, other_sizes, raced, timed_trial
from frx_graph.runs.tune.tune_folder import BASELINE, TuneFolder
from frx_graph.runs.tune.workload_facts import WorkloadFacts, workload_facts
from frx_graph.trials.configuration_trial import Configuration, ConfigurationTrial, Fate, Kind, RunSeen
from frx_graph.trials.schedule import Arm

Variables = tuple[tuple[str, str], ...]
_PROCESSES = "processes"
_ROOM = 2
"""Times as many steps as a process may be asked for: those behind a stop do not count, and they are more, the more
workers there are. A program that counts its own must not end before."""


class TuneBench:
    """`diagnose` gives the label of a finished run in a folder, or None; `progress` gets what is going on."""

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

    def baseline(self) -> RunSeen:
        """Run the program as it is. Raises `TrialError` if nothing can be measured of it."""
        seen = self.folder.baseline()
        if seen is None:
            self.folder.begin(self.folder.path / BASELINE, {})
            seen = self._examined((), self.folder.path / BASELINE)
            if not seen.exit_code and seen.steps:
                self.folder.keep_baseline(seen)
        where = f"look at {self.folder.path / BASELINE / 'stderr.log'}"
        if seen.exit_code:
            raise TrialError(f"the program as it is fails: {seen.ending}", where)
        if not seen.step_seconds:
            raise TrialError(
                f"the program told of {seen.steps} steps: {seen.ending}",
                "it tells of them through frx_graph, see docs/tune.md; --warmup-steps and --time-budget-s bound them",
            )
        if seen.memory_ratio is not None and 2 * seen.memory_ratio >= MOST_MEMORY:
            self.one_at_a_time = True
        return seen

    def refused(self, kind: Kind, candidate: Configuration, against: Variables, reason: str) -> ConfigurationTrial:
        """Record a candidate that is not run, which has a folder too."""
        self.folder.begin(self.folder.of(kind, candidate.id), dict(against) | dict(candidate.variables), why=reason)
        trial = ConfigurationTrial(kind, candidate, against, Fate.REFUSED, reason)
        self.folder.keep(trial)
        return trial

    def _race(self, candidate: Configuration, against: Variables) -> ConfigurationTrial:
        """Run one short quad. Its fate is `RACED`, or `REJECT` for one that fails."""
        place = self.folder.of(Kind.RACE, candidate.id)
        self.folder.begin(place, dict(against) | dict(candidate.variables))
        by_sample = _other_batch(candidate, against)
        found = ConfigurationTrial(Kind.RACE, candidate, against, Fate.REJECT, "")
        warmup, steps = self.settings.race_warmup_steps, self.settings.race_measure_steps
        try:
            timed = self._alternately(
                candidate, against, place, lambda arms: raced(arms, by_sample=by_sample), warmup=warmup, steps=steps
            )
        except ValueError as error:
            return replace(found, reason=str(error))
        by_sample = by_sample or bool(timed.quads and other_sizes(timed.quads[0].blocks))
        if timed.gain is None:
            return self._with_times(found, Fate.REJECT, timed, by_sample)
        return self._with_times(found, Fate.RACED, replace(timed, reason=""), by_sample)

    def _trial(
        self, kind: Kind, candidate: Configuration, against: Variables, baseline: RunSeen, candidates: int
    ) -> ConfigurationTrial:
        """Run a whole trial: the gates, then rule R."""
        place = self.folder.of(kind, candidate.id)
        variables = join_variables(against, candidate.variables)
        self.folder.begin(place, dict(variables))
        self._progress("one whole run")
        seen = self._examined(variables, place)
        reasons = tuple(failures(seen, baseline, self.settings))
        if not reasons:
            reasons = tuple(_not_taken(candidate, seen))
        found = ConfigurationTrial(kind, candidate, against, Fate.REJECT, "; ".join(reasons), seen)
        if reasons:
            return found
        sizes = {seen.batch_size, baseline.batch_size}
        # Programs may change the batch size by any variable.
        by_sample = _other_batch(candidate, against) or (None not in sizes and len(sizes) > 1)
        if by_sample and (seen.samples is None or baseline.samples is None):
            reason = "the number of samples in a step is unknown, and another batch size is compared by samples"
            return replace(found, reason=reason)

        def decide(arms: Arms) -> Timed:
            rule = self.settings.rule(candidates, successive=self.one_at_a_time)
            return timed_trial(arms, rule, by_sample=by_sample, whole=kind is Kind.FINAL, progress=self._progress)

        warmup, steps = self.settings.warmup_steps, self.settings.block_steps
        try:
            timed = self._alternately(candidate, against, place, decide, warmup=warmup, steps=steps)
        except ValueError as error:
            # Some of its steps told their samples, others did not.
            return replace(found, reason=str(error))
        return self._with_times(found, Fate(timed.outcome), timed, by_sample)

    def _with_times(self, trial: ConfigurationTrial, fate: Fate, timed: Timed, by_sample: bool) -> ConfigurationTrial:
        return replace(
            trial,
            fate=fate,
            reason=timed.reason,
            gain=timed.gain,
            by_sample=by_sample,
            one_at_a_time=self.one_at_a_time,
            quads=timed.quads,
        )

    def trials(
        self, kind: Kind, candidates: Iterable[Configuration], against: Variables, baseline: RunSeen, number: int
    ) -> Iterator[ConfigurationTrial]:
        """Yield the races, or the whole trials, of `candidates` one after the other, each of one of `number`."""
        for candidate in candidates:
            if (before := self.before(kind, candidate, against)) is not None:
                yield before
                continue
            if kind is Kind.RACE:
                trial = self._race(candidate, against)
            else:
                trial = self._trial(kind, candidate, against, baseline, number)
            self.folder.keep(trial)
            yield trial

    def facts(self, seen: RunSeen) -> WorkloadFacts:
        """Return the facts of this machine."""
        return workload_facts(seen, self.environment, quality_checks=self.settings.quality_checks)

    def _examined(self, variables: Variables, place: Path) -> RunSeen:
        settings = self.settings
        return examine(
            self._start(variables, settings.warmup_steps, settings.warmup_steps + settings.measure_steps + 1),
            place,
            warmup=settings.warmup_steps,
            steps=settings.measure_steps,
            sample_seconds=settings.sample_interval_ms / 1e3,
            diagnose=self._diagnose,
        )

    def _alternately(
        self,
        candidate: Configuration,
        against: Variables,
        place: Path,
        decide: Callable[[Arms], Timed],
        *,
        warmup: int,
        steps: int,
    ) -> Timed:
        """Measure both programs side by side; if that fails and one at a time does not, one at a time from then on."""
        rule = self.settings.rule(1)
        # Two of each quad, and all void ones may be one pair's.
        blocks = 2 * (rule.quads_per_pair + rule.void_quads_allowed)
        room = warmup + _ROOM * blocks * (steps + warmup)
        variables = {Arm.BASELINE: against, Arm.CANDIDATE: join_variables(against, candidate.variables)}

        def starts(arm: Arm) -> ArmStart:
            return self._start(variables[arm], warmup, room)

        def measured(arms: AbstractContextManager[Arms]) -> Timed:
            with arms as living:
                try:
                    return decide(living)
                except ArmEndedError as ended:
                    raise TrialError(f"the {ended.arm}: {ended.detail}") from ended

        folder = place / _PROCESSES
        first: Timed | TrialError | None = None
        if not self.one_at_a_time:
            try:
                first = measured(AlternatingArms(starts, folder, warmup=warmup, steps=steps))
                if first.quads:
                    return first
            except TrialError as error:
                first = error
            self._progress("the two do not run beside each other: one at a time")
        try:
            self.one_at_a_time, before = True, self.one_at_a_time
            second = measured(SuccessiveArms(starts, folder, warmup=warmup, steps=steps))
        except TrialError:
            self.one_at_a_time = before
            raise
        if not second.quads:
            # It is not the other's being there that it fails for.
            self.one_at_a_time = before
            return first if isinstance(first, Timed) else second
        return second

    def _start(self, variables: Variables, warmup: int, most: int) -> ArmStart:
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

    def before(self, kind: Kind, candidate: Configuration, against: Variables) -> ConfigurationTrial | None:
        """Return the same trial from an earlier run; None if its variables or its baseline differ."""
        found = self.folder.trial(kind, candidate.id)
        same = found is not None and (found.configuration, found.against) == (candidate, against)
        return found if same else None


def join_variables(against: Variables, variables: Variables) -> Variables:
    """Return both; a name in both has its value of `variables`."""
    return tuple((dict(against) | dict(variables)).items())


def _other_batch(candidate: Configuration, against: Variables) -> bool:
    name = "FRX_BATCH_SIZE"
    wanted = dict(candidate.variables).get(name)
    return wanted is not None and wanted != dict(against).get(name)


def _not_taken(candidate: Configuration, seen: RunSeen) -> list[str]:
    wanted = dict(candidate.variables)
    found = {"FRX_BATCH_SIZE": seen.batch_size, "FRX_NUM_WORKERS": seen.workers}
    return [
        f"the program does not take {name}: it was to be {wanted[name]}, and is {value} (see docs/tune.md)"
        for name, value in found.items()
        if name in wanted and value is not None and str(value) != wanted[name]
    ]
