"""Search for the fastest configuration in stages, each built on the proven result of the stage before.

A stage is a family of candidates that exclude each other. They race against the fastest configuration so far, and the
first few get a full trial against it. The next stage builds on the fastest promoted candidate. Data loading comes
first, because a program that waits for data hides gains of the model. It comes again if the faster model waits for
data again.

At the end, one trial compares all changes together with the original program, in fresh processes and at full length.
Only that gain is claimed. The fastest of several candidates looks faster than it is, and so does a trial that stopped
early.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from frx_graph.reports.render.quantities import format_frequency
from frx_graph.runs.tune.bench import TuneBench, Variables, join_variables
from frx_graph.runs.tune.cluster_bench import ClusterBench
from frx_graph.runs.tune.families import Family
from frx_graph.runs.tune.settings import TuneSettings
from frx_graph.runs.tune.workload_facts import WorkloadFacts
from frx_graph.trials.configuration_trial import Configuration, ConfigurationTrial, Fate, Kind, RunSeen, Tier

FINAL_ID = "final"


@dataclass(frozen=True, slots=True)
class SearchState:
    """The results so far."""

    baseline: RunSeen | None = None
    trials: tuple[ConfigurationTrial, ...] = ()
    """In the order they were made; a race has its outcome once the stage has been decided."""
    candidates: int = 0
    """The number that alpha is divided by."""
    left_out: tuple[str, ...] = ()
    """Families and candidates that were skipped, each with the reason."""
    complete: bool = False


@dataclass(slots=True)
class Search:
    """`facts` makes the facts of a configuration's run. `note` receives every result as soon as it is known, `say`
    messages for people."""

    bench: TuneBench | ClusterBench
    families: Sequence[Family]
    settings: TuneSettings
    facts: Callable[[RunSeen], WorkloadFacts]
    note: Callable[[SearchState], None] = lambda _: None
    say: Callable[[str], None] = lambda _: None
    _baseline: RunSeen | None = None
    _trials: list[ConfigurationTrial] = field(default_factory=list)
    _left_out: list[str] = field(default_factory=list)
    _candidates: int = 0
    _tried: int = 0
    _against: Variables = ()

    def run(self) -> SearchState:
        """Run all stages and the final trial. Raises `TrialError` if the program itself fails."""
        self.say("Running baseline...")
        seen = self._baseline = self.bench.run_baseline()
        step = seen.seconds_per_step
        speed = format_frequency(1 / step, "steps/sec") if step else "unknown"
        self.say(f"  Baseline: {speed} ({_format_end(seen)})")
        named = self.settings.families
        wanted = [family for family in self.families if not named or family.name in named]
        facts = self.facts(seen)
        able = {
            family.name: sum(self._get_refusal(family, one, facts) is None for one in self._list_allowed(family, facts))
            for family in wanted
        }
        # Families that may be tried again count twice. The final trial counts once more.
        twice = sum(able[family.name] for family in wanted if family.bottlenecks and len(wanted) > 1)
        self._candidates = min(sum(able.values()) + twice, self.settings.max_trials) + 1
        self.say(f"  {sum(able.values())} candidates")
        self._report_state()
        decided: dict[str, Variables] = {}
        visits: Counter[str] = Counter()
        while (family := self._select_next(wanted, decided, visits, seen)) is not None:
            visits[family.name] += 1
            promoted = self._run_stage(family, seen, again=visits[family.name] > 1)
            if promoted is not None:
                assert promoted.seen is not None
                self._against = join_variables(self._against, promoted.configuration.variables)
                seen = promoted.seen
            decided[family.name] = self._against
        self._left_out += [
            f"{family.name}: {self._explain_left_out(family, seen)}" for family in wanted if family.name not in decided
        ]
        if self._against:
            self._run_final()
        return self._report_state(complete=True)

    def _select_next(
        self, wanted: Sequence[Family], decided: Mapping[str, Variables], visits: Mapping[str, int], seen: RunSeen
    ) -> Family | None:
        """Return the next family among those that may help: the first that is new, or else one that was decided before
        the bottleneck changed. If no family is for the bottleneck, all may help."""
        if self._tried >= self.settings.max_trials:
            return None
        label = self._get_bottleneck(seen)
        new = (family for family in wanted if family.name not in decided and self._can_help(family, label))
        again = (
            family
            for family in wanted
            if (self.settings.bottleneck or seen.bottleneck) in family.bottlenecks
            and visits.get(family.name, 0) == 1
            and decided.get(family.name) != self._against
        )
        return next(chain(new, again), None)

    def _get_bottleneck(self, seen: RunSeen) -> str | None:
        return self.settings.bottleneck or (None if self.settings.families else seen.bottleneck)

    def _can_help(self, family: Family, label: str | None) -> bool:
        """Return True if the family is for this bottleneck, or if no family is."""
        known = any(label in one.bottlenecks for one in self.families)
        return not known or not family.bottlenecks or label in family.bottlenecks

    def _explain_left_out(self, family: Family, seen: RunSeen) -> str:
        if not self._can_help(family, self._get_bottleneck(seen)):
            return f"it does nothing against {self._get_bottleneck(seen)}"
        if not self._list_allowed(family, self.facts(seen)):
            return "it needs --no-safe" if self.settings.safe else "it has no candidates here"
        return self._explain_limit()

    def _explain_limit(self) -> str:
        if self._tried >= self.settings.max_trials:
            return f"--max-trials {self.settings.max_trials} were tried"
        return f"alpha was divided among {self._candidates - 1} candidates, and as many were tried"

    def _list_allowed(self, family: Family, facts: WorkloadFacts) -> list[Configuration]:
        """Return the candidates that these flags allow. Others are not even mentioned, except risky ones."""
        most = Tier.SAFE if self.settings.safe else Tier.RISKY
        return [candidate for candidate in family.propose(facts) if candidate.tier <= most]

    def _get_refusal(self, family: Family, candidate: Configuration, facts: WorkloadFacts) -> str | None:
        if candidate.tier is Tier.RISKY and not self.settings.allow_risky_actions:
            return "it is high risk, and --allow-risky-actions is not set"
        return family.refuse(candidate, facts)

    def _run_stage(self, family: Family, seen: RunSeen, *, again: bool) -> ConfigurationTrial | None:
        facts = self.facts(seen)
        able: list[Configuration] = []
        for proposed in self._list_allowed(family, facts):
            if set(proposed.variables) <= set(self._against):
                continue
            # The earlier folder stays.
            candidate = replace(proposed, id=f"{proposed.id}-again") if again else proposed
            reason = self._get_refusal(family, candidate, facts)
            if reason is None and self._tried >= self._candidates - 1:
                self._left_out.append(f"{candidate.label}: {self._explain_limit()}")
            elif reason is None:
                self._tried += 1
                able.append(candidate)
            else:
                self.say(f"  [SKIP] {candidate.label}: {reason}")
                self._add(self.bench.record_refusal(Kind.FULL, candidate, self._against, reason))
        trials = self._run_full_trials(self._run_races(family, able))
        return max((trial for trial in trials if trial.fate is Fate.PROMOTE), key=_get_ratio, default=None)

    def _run_races(self, family: Family, able: Sequence[Configuration]) -> Sequence[Configuration]:
        """Return the candidates worth a full trial, the fastest first."""
        settings = self.settings
        if not settings.race or len(able) <= settings.race_promote_count:
            return able
        window = f"{settings.race_warmup_steps} warmup + {settings.race_measure_steps} measure steps"
        self.say(f"Running quick race stage, {family.name} ({window})...")
        first = len(self._trials)
        assert self._baseline is not None
        told = self._announce("  [{}/{}] race: {} ...", able)
        for trial in self.bench.run_trials(Kind.RACE, told, self._against, self._baseline, self._candidates):
            self.say(f"  [RACE] {self._add(trial).configuration.label} {format_outcome(trial)}")
        ranked = sorted((t for t in self._trials[first:] if t.fate is Fate.RACED), key=_get_ratio, reverse=True)
        taken = ranked[: settings.race_promote_count]
        for place, trial in enumerate(self._trials[first:], start=first):
            if trial in ranked and trial not in taken:
                self._trials[place] = replace(trial, fate=Fate.SCREENED, reason="screened out by quicker candidates")
        self._report_state()
        self.say(f"  Quick race promoted {len(taken)} of {len(able)} candidates")
        return [trial.configuration for trial in taken]

    def _run_full_trials(self, candidates: Sequence[Configuration]) -> Iterator[ConfigurationTrial]:
        assert self._baseline is not None
        told = self._announce("[{}/{}] full: {} ...", candidates)
        for trial in self.bench.run_trials(Kind.FULL, told, self._against, self._baseline, self._candidates):
            self._print_verdict(self._add(trial))
            yield trial

    def _announce(self, words: str, candidates: Sequence[Configuration]) -> Iterator[Configuration]:
        for number, candidate in enumerate(candidates, start=1):
            self.say(words.format(number, len(candidates), candidate.label))
            yield candidate

    def _run_final(self) -> None:
        assert self._baseline is not None
        promoted = [t.configuration for t in self._trials if t.kind is Kind.FULL and t.fate is Fate.PROMOTE]
        label = "+".join(one.label for one in promoted if set(one.variables) <= set(self._against))
        candidate = Configuration(FINAL_ID, label, FINAL_ID, Tier.VALIDATED, self._against)
        self.say(f"Final: {label} against the program as it was ...")
        for trial in self.bench.run_trials(Kind.FINAL, (candidate,), (), self._baseline, self._candidates):
            self._print_verdict(self._add(trial))

    def _print_verdict(self, trial: ConfigurationTrial) -> None:
        mark = "PASS" if trial.fate is Fate.PROMOTE else "FAIL"
        self.say(f"  [{mark}] {trial.configuration.label} {format_outcome(trial)}")
        if trial.fate is not Fate.PROMOTE:
            self.say(f"     ! {trial.fate}: {trial.reason}")

    def _add(self, trial: ConfigurationTrial) -> ConfigurationTrial:
        self._trials.append(trial)
        self._report_state()
        return trial

    def _report_state(self, *, complete: bool = False) -> SearchState:
        trials, left_out = tuple(self._trials), tuple(self._left_out)
        found = SearchState(self._baseline, trials, self._candidates, left_out, complete)
        self.note(found)
        return found


def format_outcome(trial: ConfigurationTrial) -> str:
    """Return the gain, and how its whole run ended, in a few words."""
    gain = None if trial.gain is None else f"{100 * (trial.gain.ratio - 1):+.1f}%"
    end = None if trial.seen is None else f"({_format_end(trial.seen)})"
    reason = trial.reason if trial.kind is Kind.RACE and trial.fate is Fate.REJECT else None
    return " ".join(part for part in (gain, end, reason) if part is not None)


def _get_ratio(trial: ConfigurationTrial) -> float:
    return trial.gain.ratio if trial.gain is not None else 0.0


def _format_end(seen: RunSeen) -> str:
    code = "ended here" if seen.exit_code is None else f"exit={seen.exit_code}"
    return f"{code}, steps={seen.steps}"
