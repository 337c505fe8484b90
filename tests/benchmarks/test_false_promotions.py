"""Simulated trials: a few hundred with fixed seeds, and how the benchmark judges them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import false_promotions
import pytest
import real_trials
from false_promotions import TRACE, Case, Rates, broken_bounds, cases, main, rates, simulated_trial, table
from scipy import stats
from step_noise import HOSTILE, SHARED, Noise, recorded

from frx_graph.trials.policy import TUNE_POLICY, TrialPolicy
from frx_graph.trials.process_pairs import Programs
from frx_graph.trials.protocol import make_protocol
from frx_graph.trials.trial_run import TrialRun
from frx_graph.trials.verdict import Outcome, TrialStatistics, Verdict

MACHINES = [SHARED, HOSTILE, recorded(TRACE)]
TRIALS = 300
FEWEST_FOUND = int(stats.binom.ppf(0.001, TRIALS, 0.95))
"""A rule that finds 95 % finds fewer of 300 with a probability below 0.001."""


@pytest.mark.parametrize("noise", MACHINES, ids=lambda noise: noise.name)
@pytest.mark.parametrize(
    "case", [case for case in cases() if case.speedup == 0], ids=lambda case: f"{case.rule}, {case.true}"
)
def test_equal_arms_are_promoted_as_seldom_as_is_claimed(case: Case, noise: Noise) -> None:
    # Where none may be, a rule that promotes 2.3 % of equal arms would promote none of 300 with a probability of 0.001.
    assert rates(case, noise, TRIALS).promoted <= TRIALS * case.at_most


@pytest.mark.parametrize("noise", MACHINES, ids=lambda noise: noise.name)
@pytest.mark.parametrize("case", [case for case in cases() if case.at_least > 0], ids=lambda case: case.rule)
def test_large_gains_are_found(case: Case, noise: Noise) -> None:
    assert rates(case, noise, TRIALS).promoted >= FEWEST_FOUND


def test_without_process_bias_in_mind_one_pair_would_promote_equal_arms() -> None:
    # The near miss: the same quads in one pair of processes, under the default minimum.
    single = replace(make_protocol(TrialPolicy(), in_process=True), minimum=make_protocol(TrialPolicy()).minimum)
    single = replace(single, agreement=single.minimum)
    assert rates(Case("one process", single, 0.0), SHARED, TRIALS).promoted > 0


def test_a_trial_without_noise_is_exact() -> None:
    rule = make_protocol(TUNE_POLICY)
    verdict, steps = simulated_trial(rule, iter([1.0] * rule.steps), [0.0] * 12, 0.30)
    assert verdict.outcome is Outcome.PROMOTE
    assert verdict.statistics is not None
    assert verdict.statistics.ratio_median == pytest.approx(1.30)
    assert steps == 19 * 12  # all of three pairs, and one quad of the fourth


def test_the_same_seed_gives_the_same_trials() -> None:
    case = cases()[0]
    assert rates(case, SHARED, 20, seed=3) == rates(case, SHARED, 20, seed=3)


def seen(promoted: int) -> Rates:
    return Rates("8 %", 0.04, "", "shared", 1000, promoted, 0, 0, 1000 - promoted, 300.0, 420)


@pytest.mark.parametrize(
    ("at_least", "at_most", "promoted", "line"),
    [
        (0.0, 0.01, 10, None),
        (0.0, 0.01, 11, "8 %, true +4 %, shared: promoted 11 of 1000, bound at most 1%"),
        (0.95, 1.0, 950, None),
        (0.95, 1.0, 949, "8 %, true +4 %, shared: promoted 949 of 1000, bound at least 95%"),
    ],
)
def test_bounds_break_where_they_should(at_least: float, at_most: float, promoted: int, line: str | None) -> None:
    case = Case("8 %", make_protocol(TUNE_POLICY), 0.04, at_most=at_most, at_least=at_least)
    assert broken_bounds([(case, seen(promoted))]) == ([line] if line else [])


def test_a_trial_takes_at_most_450_steps() -> None:
    assert all(case.protocol.steps <= 450 for case in cases())


def test_the_table_fits_a_terminal() -> None:
    judged = [(case, replace(seen(1000), noise=noise.name, mean_steps=432.0)) for case in cases() for noise in MACHINES]
    lines = table(judged, [noise.name for noise in MACHINES]).splitlines()
    assert len(lines) == len(cases()) + 2
    assert max(map(len, lines)) <= 80


def test_a_broken_bound_is_printed_and_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    impossible = Case("8 %", make_protocol(TUNE_POLICY), 0.0, at_least=0.95)
    monkeypatch.setattr(false_promotions, "cases", lambda: (impossible,))
    assert main(["--trials", "2", "--json", str(tmp_path / "rates.json")]) == 1
    printed = capsys.readouterr().out
    assert "BROKEN: 8 %, true A/A, shared: promoted 0 of 2, bound at least 95%" in printed
    document = json.loads((tmp_path / "rates.json").read_text())
    assert [rate["noise"] for rate in document["rates"]] == ["shared", "hostile", "real"]
    assert len(document["broken"]) == 3


def test_bounds_that_hold_exit_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(false_promotions, "cases", lambda: (Case("8 %", make_protocol(TUNE_POLICY), 0.0, at_most=0.0),))
    assert main(["--trials", "2"]) == 0


def test_any_policy_can_be_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("{minimum_speedup: 0.06, process_pairs: 2, extra_process_pairs: 1, quads_per_pair: 3}")
    assert main(["--trials", "2", "--policy", str(path)]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("6 %")]
    assert [row.split()[2] for row in rows] == ["A/A", "+4", "+6", "+8", "+12"]
    assert all(row.split()[-1] == str((2 + 1) * 3 * 12) for row in rows)


def real_trial(outcome: str, quads: int) -> TrialRun:
    """One that ended so, with so many undisturbed quads; with none nothing was measured."""
    measured = TrialStatistics(1.0, 0.9, 1.1, quads, 5, (1.0,), 0) if quads else None
    return TrialRun((), Verdict(Outcome(outcome), "a reason", measured, early=False), (), None, ())


@pytest.mark.parametrize(
    ("ends", "code", "said"),
    [
        (
            [("equivalent", 9), ("inconclusive", 36)],
            0,
            "0 of 2 complete trials promoted; 0 more",
        ),
        (
            [("equivalent", 9), ("promote", 9)],
            1,
            "1 of 2 complete trials promoted; 0 more",
        ),
        ([("inconclusive", 35), ("reject", 0), ("equivalent", 9), ("reject", 9)], 0, "0 of 2 complete trials"),
        ([("inconclusive", 35), ("equivalent", 9), ("inconclusive", 0), ("reject", 0)], 1, "0 of 1 complete trials"),
    ],
    ids=["complete", "promoted", "some in vain", "too few"],
)
def test_real_trials_of_equal_arms_go_on_until_enough_are_complete(
    ends: list[tuple[str, int]],
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    left = iter(ends)

    def run(programs: Programs, _policy: TrialPolicy, _start: object) -> TrialRun:
        assert programs.baseline == programs.candidate
        return real_trial(*next(left))

    monkeypatch.setattr(real_trials, "run_trial", run)
    assert main(["--real", "2", "--json", str(tmp_path / "found.json")]) == code
    assert said in capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())["trials"]
    assert [(one["outcome"], one["quads"]) for one in found] == ends


def test_real_trials_are_continued(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    monkeypatch.setattr(real_trials, "run_trial", lambda *_: real_trial("equivalent", 9))
    assert main(["--real", "1", "--json", str(file)]) == 0
    before = json.loads(file.read_text())
    seeds: list[int] = []

    def run(_programs: Programs, policy: TrialPolicy, _start: object) -> TrialRun:
        seeds.append(policy.seed)
        return real_trial("equivalent", 10)

    monkeypatch.setattr(real_trials, "run_trial", run)
    assert main(["--real", "3", "--json", str(file)]) == 0
    assert seeds == [1, 2]
    assert json.loads(file.read_text())["trials"][:1] == before["trials"]
    file.write_text(json.dumps({**before, "environment": {**before["environment"], "torch": "1.0"}}))
    with pytest.raises(SystemExit, match="another environment"):
        main(["--real", "3", "--json", str(file)])
