from __future__ import annotations

from dataclasses import replace

import pytest

from frx_graph.errors import TrialError
from frx_graph.runs.tune.families import Family, make_configuration
from frx_graph.runs.tune.search import Search
from frx_graph.runs.tune.settings import TuneSettings
from frx_graph.runs.tune.workload_facts import WorkloadFacts
from frx_graph.trials.configuration_trial import ConfigurationTrial, Fate, Gain, Kind, RunSeen, Tier

SEEN = RunSeen(
    exit_code=0, ending="it ends", in_time=True, steps=26, step_seconds=(0.01,) * 20, samples=160, batch_size=8,
    losses=(1.0,) * 20, outputs=(), workers=0, batch_layouts=1, peak_bytes=1, memory_ratio=0.1,
    device_busy_percent=None, bottleneck=None,
)  # fmt: skip


def facts(seen: RunSeen) -> WorkloadFacts:
    return WorkloadFacts(2, (), False, True, {}, seen, True)


def family(name: str, *values: str, label: str = "input_bound", tier: Tier = Tier.SAFE, refuse=None) -> Family:
    def propose(_facts):
        return (make_configuration(name, f"{name}:{value}", tier, {name.upper(): value}) for value in values)

    return Family(name, frozenset({label}), propose, refuse or (lambda _candidate, _facts: None))


class ScriptedBench:
    """`factors` says how many times as fast a variable makes the program; `label` what holds back whom has which
    variables."""

    def __init__(self, factors: dict[tuple[str, str], float], label=lambda variables: None, unconfirmed=False):
        self.factors, self.label, self.unconfirmed = factors, label, unconfirmed
        self.asked: list[tuple[Kind, str]] = []

    def speed(self, variables) -> float:
        product = 1.0
        for variable in dict(variables).items():
            product *= self.factors.get(variable, 1.0)
        return product

    def run_baseline(self) -> RunSeen:
        return replace(SEEN, bottleneck=self.label({}))

    def record_refusal(self, kind, candidate, against, reason):
        self.asked.append((Kind.FULL, f"refused {candidate.label}"))
        return ConfigurationTrial(kind, candidate, against, Fate.REFUSED, reason)

    def run_trials(self, kind, candidates, against, baseline, number):
        if kind is Kind.RACE:
            return (self._made(Kind.RACE, candidate, against, Fate.RACED) for candidate in candidates)
        return (self.trial(kind, candidate, against, baseline, number) for candidate in candidates)

    def trial(self, kind, candidate, against, baseline, candidates):
        faster = self._ratio(candidate, against) >= 1.08 and not (kind is Kind.FINAL and self.unconfirmed)
        return self._made(kind, candidate, against, Fate.PROMOTE if faster else Fate.EQUIVALENT)

    def _ratio(self, candidate, against):
        return self.speed(dict(against) | dict(candidate.variables)) / self.speed(against)

    def _made(self, kind, candidate, against, fate):
        self.asked.append((kind, candidate.label))
        ratio = self._ratio(candidate, against)
        seen = replace(SEEN, bottleneck=self.label(dict(against) | dict(candidate.variables)))
        return ConfigurationTrial(kind, candidate, against, fate, "", seen, Gain(ratio, 1, None, 9, 2, (), 0))


def winner(found):
    return next((t for t in found.trials if t.kind is Kind.FINAL and t.fate is Fate.PROMOTE), None)


def searched(bench, *families, notes=None, **flags):
    settings = TuneSettings(command=("x",), **flags)
    note = (lambda _: None) if notes is None else notes.append
    return Search(bench, families, settings, facts=facts, note=note).run()


WORKERS = family("workers", "0", "1", "2", "4")
LAYOUT = family("layout", "last", label="layout_churn")


def test_each_stage_builds_on_the_one_before_and_the_whole_is_proved_against_the_program_as_it_was():
    bench = ScriptedBench({("WORKERS", "4"): 2.0, ("WORKERS", "2"): 1.5, ("LAYOUT", "last"): 1.4})
    found = searched(bench, WORKERS, LAYOUT)
    assert found.complete
    layout = next(trial for trial in found.trials if trial.configuration.label == "layout:last")
    assert dict(layout.against) == {"WORKERS": "4"}
    assert winner(found).against == ()
    assert dict(winner(found).configuration.variables) == {"WORKERS": "4", "LAYOUT": "last"}
    assert winner(found).gain.ratio == pytest.approx(2.8)
    assert winner(found).configuration.label == "workers:4+layout:last"


def test_race_selects_full_trials_and_its_losers_are_reported():
    bench = ScriptedBench({("WORKERS", "4"): 2.0, ("WORKERS", "2"): 1.5, ("WORKERS", "1"): 1.2})
    found = searched(bench, WORKERS, race_promote_count=2)
    full = [label for kind, label in bench.asked if kind is Kind.FULL]
    assert full == ["workers:4", "workers:2"]
    fates = {t.configuration.label: t.fate for t in found.trials if t.kind is Kind.RACE}
    assert fates["workers:1"] is fates["workers:0"] is Fate.SCREENED
    assert fates["workers:4"] is Fate.RACED


@pytest.mark.parametrize("flags", [{"race": False}, {"race_promote_count": 4}])
def test_without_a_race_all_get_a_full_trial(flags):
    bench = ScriptedBench({})
    searched(bench, WORKERS, **flags)
    assert [kind for kind, _ in bench.asked] == [Kind.FULL] * 4


def test_without_a_promotion_there_is_no_final_trial_and_no_winner():
    bench = ScriptedBench({("WORKERS", "4"): 1.05})
    found = searched(bench, WORKERS, LAYOUT)
    assert winner(found) is None
    assert Kind.FINAL not in {kind for kind, _ in bench.asked}


def test_unconfirmed_configuration_is_not_recommended():
    found = searched(ScriptedBench({("LAYOUT", "last"): 1.5}, unconfirmed=True), LAYOUT)
    assert [trial.fate for trial in found.trials] == [Fate.PROMOTE, Fate.EQUIVALENT]
    assert winner(found) is None


def test_diagnosis_decides_what_is_tried_and_what_is_left_out():
    bench = ScriptedBench({}, label=lambda _: "layout_churn")
    found = searched(bench, WORKERS, LAYOUT)
    assert {label for _, label in bench.asked} == {"layout:last"}
    assert found.left_out == ("workers: it does nothing against layout_churn",)


@pytest.mark.parametrize("label", [None, "sync_bound", "insufficient_telemetry"])
def test_all_families_are_tried_if_none_fits_the_bottleneck(label):
    bench = ScriptedBench({}, label=lambda _: label)
    assert searched(bench, WORKERS, LAYOUT, race=False).left_out == ()
    assert len(bench.asked) == 5


def test_explicitly_named_families_are_all_tried():
    bench = ScriptedBench({}, label=lambda _: "input_bound")
    searched(bench, WORKERS, LAYOUT, families=("layout",))
    assert {label for _, label in bench.asked} == {"layout:last"}


def test_the_users_bottleneck_counts_more_than_the_diagnosis():
    bench = ScriptedBench({}, label=lambda _: "input_bound")
    searched(bench, WORKERS, LAYOUT, bottleneck="layout_churn")
    assert {label for _, label in bench.asked} == {"layout:last"}


def test_once_data_come_fast_enough_the_next_bottleneck_is_looked_at():
    def label(variables):
        return "layout_churn" if "WORKERS" in variables else "input_bound"

    bench = ScriptedBench({("WORKERS", "4"): 2.0, ("LAYOUT", "last"): 1.4}, label)
    assert "layout:last" in winner(searched(bench, WORKERS, LAYOUT)).configuration.label


def test_a_faster_model_that_waits_for_its_data_again_makes_them_be_looked_at_again():
    def label(variables):
        return "input_bound" if variables.get("LAYOUT") == "last" else None

    class Greedy(ScriptedBench):
        def speed(self, variables):
            variables = dict(variables)
            model = 2.0 if variables.get("LAYOUT") == "last" else 1.0
            return min(model, {"1": 1.2, "2": 1.2, "4": 2.0}.get(variables.get("WORKERS"), 0.5))

    bench = Greedy({}, label)
    found = searched(bench, family("workers", "1", "4"), LAYOUT)
    assert dict(winner(found).configuration.variables) == {"WORKERS": "4", "LAYOUT": "last"}
    again = [t.configuration.id for t in found.trials if t.configuration.id.endswith("-again")]
    assert again == ["workers-4-again"]


def test_trial_limit_is_respected_and_the_rest_is_reported():
    bench = ScriptedBench({})
    found = searched(bench, WORKERS, LAYOUT, max_trials=3)
    assert {label for _, label in bench.asked} == {"workers:0", "workers:1", "workers:2"}
    assert found.left_out == ("workers:4: --max-trials 3 were tried", "layout: --max-trials 3 were tried")


def test_alpha_is_divided_by_all_that_may_be_tried_and_the_final_trial():
    assert searched(ScriptedBench({}), WORKERS, LAYOUT).candidates == 2 * 5 + 1
    assert searched(ScriptedBench({}), WORKERS).candidates == 4 + 1
    assert searched(ScriptedBench({}), WORKERS, LAYOUT, max_trials=3).candidates == 4


def test_unsafe_configuration_is_refused_and_does_not_count():
    refusing = family("workers", "0", "1", refuse=lambda candidate, _: "no" if candidate.label.endswith("1") else None)
    bench = ScriptedBench({})
    found = searched(bench, refusing, max_trials=1)
    assert {(t.configuration.label, t.fate) for t in found.trials} == {
        ("workers:0", Fate.EQUIVALENT), ("workers:1", Fate.REFUSED),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "tried", "refused"),
    [
        ({}, [], []),
        ({"safe": False}, ["a:1"], ["b:1"]),
        ({"safe": False, "allow_risky_actions": True}, ["a:1", "b:1"], []),
        ({"allow_risky_actions": True}, [], []),
    ],
)
def test_tiers(flags, tried, refused):
    bench = ScriptedBench({})
    families = (family("a", "1", tier=Tier.VALIDATED), family("b", "1", tier=Tier.RISKY))
    found = searched(bench, *families, **flags)
    assert [t.configuration.label for t in found.trials if t.fate is not Fate.REFUSED] == tried
    assert [t.configuration.label for t in found.trials if t.fate is Fate.REFUSED] == refused


def test_progress_is_reported_at_once_even_before_an_error():
    class Failing(ScriptedBench):
        def trial(self, kind, candidate, against, baseline, candidates):
            if candidate.label == "layout:last":
                raise TrialError("the baseline fails")
            return super().trial(kind, candidate, against, baseline, candidates)

    notes = []
    with pytest.raises(TrialError):
        searched(Failing({}), family("workers", "1"), LAYOUT, notes=notes)
    assert [t.configuration.label for t in notes[-1].trials] == ["workers:1"]
    assert not notes[-1].complete


def test_no_more_are_tried_than_alpha_is_divided_by():
    def propose(facts):
        # What a first winner changes makes room for more.
        known = 2 if facts.seen.bottleneck == "input_bound" else 6
        return (make_configuration("size", f"size:{n}", Tier.SAFE, {"SIZE": str(n)}) for n in range(known))

    growing = Family("size", frozenset({"layout_churn", "input_bound"}), propose)
    bench = ScriptedBench(
        {("WORKERS", "1"): 2.0}, label=lambda chosen: "layout_churn" if "WORKERS" in chosen else "input_bound"
    )
    found = searched(bench, family("workers", "1"), growing, race=False)
    tried = [trial for trial in found.trials if trial.kind is Kind.FULL]
    assert found.candidates == 1 + (1 + 2) * 2
    assert len(tried) == found.candidates - 1
    assert any("alpha was divided" in text for text in found.left_out)


def test_why_a_family_was_not_looked_at_is_not_only_that_there_were_enough():
    bench = ScriptedBench({}, label=lambda _: "input_bound")
    pinned = family("pinned", "yes")
    risky = family("sizes", "16", tier=Tier.VALIDATED)
    found = searched(bench, WORKERS, LAYOUT, pinned, risky, max_trials=2, race=False)
    assert found.left_out == (
        "workers:2: --max-trials 2 were tried",
        "workers:4: --max-trials 2 were tried",
        "layout: it does nothing against input_bound",
        "pinned: --max-trials 2 were tried",
        "sizes: it needs --no-safe",
    )
