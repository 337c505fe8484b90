"""Search for the fastest configuration, stage after stage, each on top of what the one before has proved.

A stage is a family of candidates that exclude each other. Its candidates race against the fastest configuration so far,
the first few get a full trial against it, and the fastest of those that are promoted is what the next stage builds on.
A program that waits for its data hides what a model gains, so data come first; if a faster model waits for
them again, they come once more.

At the end all that was found, together, is tried against the program as it was, with fresh processes and to the end:
that is the gain that is claimed. What was picked for being the fastest of several, or ended when it looked fast enough,
looks faster than it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from frx_graph.reports.render.quantities import per_second
from frx_graph.runs.tune.bench import Variables, join_variables
from frx_graph.runs.tune.families.family import Family
from frx_graph.runs.tune.settings import TuneSettings
from frx_graph.runs.tune.workload_facts import WorkloadFacts
from frx_graph.trials.configuration_trial import Configuration, ConfigurationTrial, Fate, Kind, RunSeen, Tier

FINAL_ID = "final"


class Bench(Protocol):
    """Runs and times configurations."""

    def baseline(self) -> RunSeen:
        """Run the program as it is."""

    def refused(self, kind: Kind, candidate: Configuration, against: Variables, reason: str) -> ConfigurationTrial:
        """Note that a candidate was not run."""

    def trials(
        self, kind: Kind, candidates: Iterable[Configuration], against: Variables, baseline: RunSeen, number: int
    ) -> Iterator[ConfigurationTrial]:
        """Yield races or whole trials, each as soon as it has finished. A candidate is taken when it is begun; alpha is
        divided by `number`."""


@dataclass(frozen=True, slots=True)
class Searched:
    """The results so far."""

    baseline: RunSeen | None = None
    trials: tuple[ConfigurationTrial, ...] = ()
    """In the order they were made; of a race with its outcome once the stage has been decided."""
    candidates: int = 0
    """By how many alpha is divided."""
    left_out: tuple[str, ...] = ()
    """Families and candidates that were not looked at, each with the reason."""
    complete: bool = False

    @property
    def winner(self) -> ConfigurationTrial | None:
        """The recommended configuration."""
        return next((t for t in self.trials if t.kind is Kind.FINAL and t.fate is Fate.PROMOTE), None)


class Search:
    """`facts` makes the facts of a configuration's run; `note` hears of everything as soon as it is known, `say` is
    told in words."""

    def __init__(
        self,
        bench: Bench,
        families: Sequence[Family],
        settings: TuneSettings,
        *,
        facts: Callable[[RunSeen], WorkloadFacts],
        note: Callable[[Searched], None] = lambda _: None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._bench = bench
        self._families = families
        self._settings = settings
        self._facts = facts
        self._note = note
        self._say = say
        self._baseline: RunSeen | None = None
        self._trials: list[ConfigurationTrial] = []
        self._left_out: list[str] = []
        self._candidates = 0
        self._tried = 0
        self._against: Variables = ()

    def run(self) -> Searched:
        """Run all stages and the final trial. Raises `TrialError` if the program itself fails."""
        self._say("Running baseline...")
        seen = self._baseline = self._bench.baseline()
        self._say(f"  Baseline: {_speed(seen)} ({_ended(seen)})")
        named = self._settings.families
        wanted = [family for family in self._families if not named or family.name in named]
        able = {family.name: self._able(family, seen) for family in wanted}
        # What may be looked at again counts twice, and the trial that is claimed once more.
        twice = sum(able[family.name] for family in wanted if family.bottlenecks and len(wanted) > 1)
        self._candidates = min(sum(able.values()) + twice, self._settings.max_trials) + 1
        self._say(f"  {sum(able.values())} candidates")
        self._tell()
        decided: dict[str, Variables] = {}
        visits: Counter[str] = Counter()
        while (family := self._next(wanted, decided, visits, seen)) is not None:
            visits[family.name] += 1
            promoted = self._stage(family, seen, again=visits[family.name] > 1)
            if promoted is not None:
                assert promoted.seen is not None
                self._against = join_variables(self._against, promoted.configuration.variables)
                seen = promoted.seen
            decided[family.name] = self._against
        self._left_out += [
            f"{family.name}: {self._why_left(family, seen)}" for family in wanted if family.name not in decided
        ]
        if self._against:
            self._final()
        return self._tell(complete=True)

    def _able(self, family: Family, seen: RunSeen) -> int:
        facts = self._facts(seen)
        return sum(self._refusal(family, candidate, facts) is None for candidate in self._proposed(family, facts))

    def _next(
        self, wanted: Sequence[Family], decided: Mapping[str, Variables], visits: Mapping[str, int], seen: RunSeen
    ) -> Family | None:
        """Return the next family among those that may help: the first that is new, or else one that was decided before
        the bottleneck changed. If no family is for the bottleneck, all may help."""
        if self._tried >= self._settings.max_trials:
            return None
        label = self._label(seen)
        new = [family for family in wanted if family.name not in decided]
        again = [
            family
            for family in wanted
            if (self._settings.bottleneck or seen.bottleneck) in family.bottlenecks
            and visits.get(family.name, 0) == 1
            and decided.get(family.name) != self._against
        ]
        new = [family for family in new if self._may_help(family, label)]
        return next(iter((*new, *again)), None)

    def _label(self, seen: RunSeen) -> str | None:
        return self._settings.bottleneck or (None if self._settings.families else seen.bottleneck)

    def _may_help(self, family: Family, label: str | None) -> bool:
        """Return True if the family is for this bottleneck, or if no family is."""
        known = any(label in one.bottlenecks for one in self._families)
        return not known or not family.bottlenecks or label in family.bottlenecks

    def _why_left(self, family: Family, seen: RunSeen) -> str:
        if not self._may_help(family, self._label(seen)):
            return f"it does nothing against {self._label(seen)}"
        if not self._proposed(family, self._facts(seen)):
            return "it needs --no-safe" if self._settings.safe else "it has no candidates here"
        return self._why_no_more()

    def _why_no_more(self) -> str:
        if self._tried >= self._settings.max_trials:
            return f"--max-trials {self._settings.max_trials} were tried"
        return f"alpha was divided among {self._candidates - 1} candidates, and as many were tried"

    def _proposed(self, family: Family, facts: WorkloadFacts) -> list[Configuration]:
        """Return the candidates that these flags allow. Others are not even mentioned, except risky ones."""
        most = Tier.SAFE if self._settings.safe else Tier.RISKY
        return [candidate for candidate in family.propose(facts) if candidate.tier <= most]

    def _refusal(self, family: Family, candidate: Configuration, facts: WorkloadFacts) -> str | None:
        if candidate.tier is Tier.RISKY and not self._settings.allow_risky_actions:
            return "it is high risk, and --allow-risky-actions is not set"
        return family.refuse(candidate, facts)

    def _stage(self, family: Family, seen: RunSeen, *, again: bool) -> ConfigurationTrial | None:
        """Try a family, and return the fastest of its promoted candidates."""
        facts = self._facts(seen)
        able: list[Configuration] = []
        for proposed in self._proposed(family, facts):
            if set(proposed.variables) <= set(self._against):
                continue
            # Its folder from before stays.
            candidate = replace(proposed, id=f"{proposed.id}-again") if again else proposed
            reason = self._refusal(family, candidate, facts)
            if reason is None and self._tried >= self._candidates - 1:
                self._left_out.append(f"{candidate.label}: {self._why_no_more()}")
            elif reason is None:
                self._tried += 1
                able.append(candidate)
            else:
                self._say(f"  [SKIP] {candidate.label}: {reason}")
                self._add(self._bench.refused(Kind.FULL, candidate, self._against, reason))
        promoted = [trial for trial in self._full_trials(self._raced(family, able)) if trial.fate is Fate.PROMOTE]
        return max(promoted, key=_ratio, default=None)

    def _raced(self, family: Family, able: Sequence[Configuration]) -> Sequence[Configuration]:
        """Return the candidates worth a full trial, the fastest first."""
        settings = self._settings
        if not settings.race or len(able) <= settings.race_promote_count:
            return able
        window = f"{settings.race_warmup_steps} warmup + {settings.race_measure_steps} measure steps"
        self._say(f"Running quick race stage, {family.name} ({window})...")
        first = len(self._trials)
        assert self._baseline is not None
        told = self._told("  [{}/{}] race: {} ...", able)
        for trial in self._bench.trials(Kind.RACE, told, self._against, self._baseline, self._candidates):
            self._say(f"  [RACE] {self._add(trial).configuration.label} {outcome_text(trial)}")
        ranked = sorted((t for t in self._trials[first:] if t.fate is Fate.RACED), key=_ratio, reverse=True)
        taken = ranked[: settings.race_promote_count]
        for place, trial in enumerate(self._trials[first:], start=first):
            if trial in ranked and trial not in taken:
                self._trials[place] = replace(trial, fate=Fate.SCREENED, reason="screened out by quicker candidates")
        self._tell()
        self._say(f"  Quick race promoted {len(taken)} of {len(able)} candidates")
        return [trial.configuration for trial in taken]

    def _full_trials(self, candidates: Sequence[Configuration]) -> list[ConfigurationTrial]:
        assert self._baseline is not None
        told = self._told("[{}/{}] full: {} ...", candidates)
        found = []
        for trial in self._bench.trials(Kind.FULL, told, self._against, self._baseline, self._candidates):
            found.append(self._add(trial))
            self._say_verdict(trial)
        return found

    def _told(self, words: str, candidates: Sequence[Configuration]) -> Iterator[Configuration]:
        for number, candidate in enumerate(candidates, start=1):
            self._say(words.format(number, len(candidates), candidate.label))
            yield candidate

    def _final(self) -> None:
        assert self._baseline is not None
        promoted = [t.configuration for t in self._trials if t.kind is Kind.FULL and t.fate is Fate.PROMOTE]
        label = "+".join(one.label for one in promoted if set(one.variables) <= set(self._against))
        candidate = Configuration(FINAL_ID, label, FINAL_ID, Tier.VALIDATED, self._against)
        self._say(f"Final: {label} against the program as it was ...")
        for trial in self._bench.trials(Kind.FINAL, (candidate,), (), self._baseline, self._candidates):
            self._say_verdict(self._add(trial))

    def _say_verdict(self, trial: ConfigurationTrial) -> None:
        mark = "PASS" if trial.fate is Fate.PROMOTE else "FAIL"
        self._say(f"  [{mark}] {trial.configuration.label} {outcome_text(trial)}")
        if trial.fate is not Fate.PROMOTE:
            self._say(f"     ! {trial.fate}: {trial.reason}")

    def _add(self, trial: ConfigurationTrial) -> ConfigurationTrial:
        self._trials.append(trial)
        self._tell()
        return trial

    def _tell(self, *, complete: bool = False) -> Searched:
        found = Searched(
            self._baseline, tuple(self._trials), self._candidates, tuple(self._left_out), complete=complete
        )
        self._note(found)
        return found


def outcome_text(trial: ConfigurationTrial) -> str:
    """Return the gain, and how its whole run ended, in a few words."""
    parts = []
    if trial.gain is not None:
        parts.append(f"{100 * (trial.gain.ratio - 1):+.1f}%")
    if trial.seen is not None:
        parts.append(f"({_ended(trial.seen)})")
    if trial.kind is Kind.RACE and trial.fate is Fate.REJECT:
        parts.append(trial.reason)
    return " ".join(parts)


def _ratio(trial: ConfigurationTrial) -> float:
    return trial.gain.ratio if trial.gain is not None else 0.0


def _speed(seen: RunSeen) -> str:
    step = seen.seconds_per_step
    return "unknown" if not step else per_second(1 / step, "steps/sec")


def _ended(seen: RunSeen) -> str:
    code = "ended here" if seen.exit_code is None else f"exit={seen.exit_code}"
    return f"{code}, steps={seen.steps}"
