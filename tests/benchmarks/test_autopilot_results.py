"""How the autopilot's benchmark reads what was decided, what it measures again, and how it judges that."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import autopilot
import pytest
from autopilot import document, jobs, made_by, measured_before, parsed
from autopilot_measure import NOT_APPLIED, Job, measured_again, read_graphs
from autopilot_results import (
    CaseResult,
    GraphResult,
    Measured,
    Tried,
    measured,
    rank_correlation,
    summary,
    verdicts,
)
from autopilot_tables import WIDTH, print_results

from frx_graph.ledger.decision import Decision, Kind
from frx_graph.records import Candidate
from frx_graph.reports.trials.trial_document import TrialDocument
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.verdict import Outcome

SIGNATURE, FIRST, SECOND, BOTH = "0" * 16, "1" * 16, "2" * 16, "3" * 16
LAYOUT = Candidate("propagate_layout", "g", ("conv",), predicted_seconds=2e-3)
COPY = Candidate("hoist_copy", "g", ("clone",))
POLICY = TrialPolicy(process_pairs=2, quads_per_pair=3)


def document_of(
    *, verdict: str = "promote", ratio: float = 1.25, quads: int = 6, stats: bool = True, void: bool = False
) -> TrialDocument:
    """A trial whose baseline takes 10 ms a step."""

    def block(arm: str) -> dict[str, object]:
        seconds = 0.01 if arm == "baseline" else 0.01 / ratio
        return {"arm": arm, "seconds": [seconds, seconds, 9.0], "disturbance": None}

    arms = ("baseline", "candidate", "candidate", "baseline")
    samples = [
        {"pair": 0, "number": n, "log_ratio": math.log(ratio), "void": False, "blocks": [block(arm) for arm in arms]}
        for n in range(quads)
    ]
    if void:
        slow = [{"arm": arm, "seconds": [7.0], "disturbance": "loaded"} for arm in arms]
        samples.append({"pair": 0, "number": 0, "log_ratio": 0.0, "void": True, "blocks": slow})
    found = {
        "ratio_median": ratio,
        "ci_low": ratio - 0.1,
        "ci_high": None,
        "quads": quads,
        "processes": 2,
        "pair_medians": [ratio],
        "void": 0,
    }
    return TrialDocument.model_validate(
        {
            "schema": "frx_trial_v1",
            "target": "graph",
            "train": False,
            "signatures": [SIGNATURE],
            "arms": [],
            "samples": samples,
            "gates": [],
            "stats": found if stats else None,
            "verdict": verdict,
            "reason": "as it is",
            "decision": "",
            "policy": POLICY.model_dump(),
            "environment": None,
        }
    )


def decided(
    kind: Kind, plan: str, candidates: tuple[Candidate, ...] = (), trial: TrialDocument | None = None
) -> Decision:
    return Decision(
        kind=kind,
        signature=SIGNATURE,
        environment="e" * 16,
        plan=plan,
        reason="a test",
        decided_by="autopilot",
        host="here",
        process_id=1,
        recorded_at=datetime.now(UTC),
        candidates=candidates,
        trial=None if trial is None else trial.model_dump_json(by_alias=True),
    )


def seen(
    ratio: float | None, outcome: Outcome = Outcome.PROMOTE, *, complete: bool = True, low: float = 0.0
) -> Measured:
    saved = None if ratio is None else 0.01 - 0.01 / ratio
    return Measured(outcome, "", complete, ratio, low, None, saved, None if ratio is None else 0.01, 6)


def tried(
    plan: str, trial: Measured, *names: str, again: Measured | None = None, predicted: float | None = 1e-3
) -> Tried:
    return Tried(plan, names or (plan,), predicted, (), trial, again)


def graph(*trials: Tried, final: str | None = None, duel: Measured | None = None) -> GraphResult:
    return GraphResult(SIGNATURE, trials, final, duel)


def test_a_trials_figures_are_those_of_its_undisturbed_quads() -> None:
    found = measured(document_of(void=True))
    # A step of 9 s in every block, and a quad of nothing else, change no median.
    assert found.baseline_seconds == pytest.approx(0.01)
    assert found.saved_seconds == pytest.approx(0.002)
    assert (found.ratio, found.low, found.high, found.complete) == (1.25, 1.15, None, True)


def test_a_trial_that_was_cut_short_is_not_complete() -> None:
    assert not measured(document_of(verdict="inconclusive", quads=5)).complete
    assert measured(document_of(verdict="inconclusive", quads=6)).complete
    # One that ends early has decided.
    assert measured(document_of(verdict="promote", quads=5)).complete
    assert not measured(document_of(verdict="inconclusive", quads=0, stats=False)).complete


def test_trial_ended_by_a_gate_has_failed() -> None:
    assert measured(document_of(verdict="reject", quads=0, stats=False)).failed
    assert not measured(document_of(verdict="reject", ratio=0.9)).failed


def test_a_ledger_is_read_graph_by_graph() -> None:
    decisions = [
        decided(Kind.TRIED, FIRST, (LAYOUT,), document_of()),
        decided(Kind.PROMOTED, FIRST, (LAYOUT,)),
        decided(Kind.TRIED, BOTH, (LAYOUT, COPY), document_of(verdict="inconclusive")),
        decided(Kind.APPLIED, FIRST, (LAYOUT,)),
    ]
    (found, other) = read_graphs(decisions, {SIGNATURE: None, "f" * 16: "it has a stream"})
    assert [one.names for one in found.tried] == [("propagate_layout",), ("propagate_layout", "hoist_copy")]
    assert [one.predicted_seconds for one in found.tried] == [2e-3, None]
    assert [one.unpriced for one in found.tried] == [(), ("hoist_copy",)]
    assert (found.final, found.problem) == (FIRST, None)
    assert (other.tried, other.problem) == ((), "it has a stream")


def test_the_two_rewrites_of_one_portion_are_a_single_candidate() -> None:
    backward = replace(LAYOUT, rewrite="backward_layout", predicted_seconds=1e-3)
    (found,) = read_graphs([decided(Kind.TRIED, FIRST, (LAYOUT, backward), document_of())], {})
    assert found.tried[0].single
    assert found.tried[0].predicted_seconds == pytest.approx(3e-3)


def test_a_promotion_that_is_not_applied_is_a_problem() -> None:
    decisions = [decided(Kind.TRIED, FIRST, (LAYOUT,), document_of()), decided(Kind.PROMOTED, FIRST, (LAYOUT,))]
    (found,) = read_graphs(decisions, {SIGNATURE: None})
    assert (found.final, found.problem) == (None, NOT_APPLIED)
    (found,) = read_graphs([*decisions, decided(Kind.APPLIED, FIRST, (LAYOUT,))], {SIGNATURE: None})
    assert found.problem is None


def test_graph_without_a_proposed_rewrite_reports_why() -> None:
    (found,) = read_graphs([decided(Kind.PROPOSED, FIRST), decided(Kind.REJECTED, FIRST)], {SIGNATURE: None})
    assert found.problem == "measured times speak for no rewrite"


def test_only_promotions_are_measured_again() -> None:
    asked = []

    def retry(signature: str, baseline: tuple[Candidate, ...], candidate: tuple[Candidate, ...]) -> Measured:
        asked.append((signature, baseline, candidate))
        return seen(1.2)

    before = graph(tried(FIRST, seen(1.3)), tried(SECOND, seen(0.9, Outcome.REJECT)), final=FIRST)
    after = measured_again(before, {FIRST: (LAYOUT,), SECOND: (COPY,)}, retry)
    assert asked == [(SIGNATURE, (), (LAYOUT,))]
    assert [one.again is not None for one in after.tried] == [True, False]
    assert after.over_best == 1.0


@pytest.mark.parametrize(
    ("final", "against"), [(BOTH, (LAYOUT, COPY)), (None, ())], ids=["a combination", "the baseline"]
)
def test_the_best_single_candidate_is_timed_against_another_that_is_applied(
    final: str | None, against: tuple[Candidate, ...]
) -> None:
    asked = []

    def retry(signature: str, baseline: tuple[Candidate, ...], candidate: tuple[Candidate, ...]) -> Measured:
        asked.append((baseline, candidate))
        return seen(0.8, Outcome.REJECT)

    inconclusive = tried(FIRST, seen(1.3, Outcome.INCONCLUSIVE))
    both = tried(BOTH, seen(1.2 if final is None else 1.5, Outcome.INCONCLUSIVE), FIRST, SECOND)
    plans = {FIRST: (LAYOUT,), BOTH: (LAYOUT, COPY)}
    found = measured_again(graph(inconclusive, both, final=final), plans, retry)
    assert asked == [(against, (LAYOUT,))]
    assert found.over_best == pytest.approx(1.25)
    assert found.holds


def test_a_candidate_like_the_baseline_needs_no_further_trial() -> None:
    found = graph(tried(FIRST, seen(1.02, Outcome.EQUIVALENT)))
    assert not found.needs_duel
    assert found.over_best == pytest.approx(1 / 1.02)
    assert found.holds
    assert graph(tried(FIRST, seen(1.021, Outcome.INCONCLUSIVE))).needs_duel


def test_promise_is_broken_only_if_the_whole_interval_contradicts_it() -> None:
    slower = graph(tried(FIRST, seen(1.3, Outcome.INCONCLUSIVE)))
    assert replace(slower, duel=seen(1.3, low=1.1)).holds is False
    assert replace(slower, duel=seen(1.3, low=1.0)).holds is None
    assert replace(slower, duel=seen(1.02, low=1.0)).holds is True
    assert slower.holds is None
    assert replace(slower, duel=seen(1.3, Outcome.INCONCLUSIVE, complete=False)).over_best is None


def test_graph_without_measured_candidates_is_not_compared() -> None:
    cut = tried(FIRST, seen(1.3, Outcome.INCONCLUSIVE, complete=False))
    failed = tried(SECOND, seen(None, Outcome.REJECT))
    assert graph(cut, failed).over_best is None
    figures = summary([CaseResult("x", (graph(cut, failed),), 1.0)], 0.03)
    assert (figures.trials, figures.incomplete, figures.failed, figures.compared) == (2, 1, 1, 0)
    assert (figures.error_seconds, figures.rho_seconds, figures.replication) == (None, None, None)


@pytest.mark.parametrize(
    ("again", "expected"),
    [
        (seen(1.031), True),
        (seen(1.031, Outcome.INCONCLUSIVE), True),
        (seen(1.029, Outcome.INCONCLUSIVE), False),
        (seen(0.8, Outcome.REJECT), False),
        (seen(None, Outcome.REJECT), False),
        (seen(1.2, Outcome.INCONCLUSIVE, complete=False), None),
        (None, None),
    ],
)
def test_replicated_is_what_is_again_above_the_minimum(again: Measured | None, expected: bool | None) -> None:
    assert tried(FIRST, seen(1.3), again=again).replicated(0.03) is expected


def test_unpromoted_trial_is_not_replicated() -> None:
    assert tried(FIRST, seen(1.3, Outcome.INCONCLUSIVE), again=seen(1.3)).replicated(0.03) is None


def test_ranks() -> None:
    assert rank_correlation([(1, 10), (2, 20), (3, 400)]) == pytest.approx(1)
    assert rank_correlation([(1, 400), (2, 20), (3, 10)]) == pytest.approx(-1)
    # Too few, or all the same.
    assert rank_correlation([(1, 10), (2, 20)]) is None
    assert rank_correlation([(1, 10), (1, 20), (1, 30)]) is None


def cases_with(predicted: list[float | None], ratios: list[float]) -> list[CaseResult]:
    trials = [
        tried(str(n) * 16, seen(ratio), predicted=p) for n, (p, ratio) in enumerate(zip(predicted, ratios, strict=True))
    ]
    return [CaseResult("x", (graph(*trials),), 1.0)]


def test_errors_are_those_of_known_predictions() -> None:
    # Measured savings: 2 ms, 5 ms, 0 ms of 10 ms.
    figures = summary(cases_with([3e-3, 3e-3, None], [1.25, 2.0, 1.0]), 0.03)
    assert (figures.trials, figures.compared) == (3, 2)
    assert figures.error_seconds == pytest.approx(1.5e-3)
    assert figures.bias_seconds == pytest.approx(-0.5e-3)
    assert figures.error_percent == pytest.approx(15)
    assert figures.rho_seconds is None


def test_the_rank_correlation_is_of_savings() -> None:
    figures = summary(cases_with([1e-3, 2e-3, 3e-3], [1.1, 1.3, 1.2]), 0.03)
    assert figures.rho_seconds == pytest.approx(0.5)


@pytest.mark.parametrize(("good", "holds"), [(20, True), (19, True), (18, False)])
def test_nineteen_of_twenty_promotions_have_to_hold(good: int, holds: bool) -> None:
    ratios = [1.2] * good + [1.0] * (20 - good)
    trials = [tried(f"{n:016x}", seen(1.3), again=seen(ratio)) for n, ratio in enumerate(ratios)]
    cases = [CaseResult("x", (graph(*trials, final=trials[0].plan),), 1.0)]
    figures = summary(cases, 0.03)
    assert (figures.replicated, figures.not_replicated) == (good, 20 - good)
    assert verdicts(cases, figures)[0].holds is holds


def test_failed_remeasurement_counts_neither_way() -> None:
    cut = seen(1.0, Outcome.INCONCLUSIVE, complete=False)
    trials = [tried(FIRST, seen(1.3), again=seen(1.3)), tried(SECOND, seen(1.3), again=cut)]
    cases = [CaseResult("x", (graph(*trials, final=FIRST),), 1.0)]
    verdict = verdicts(cases, summary(cases, 0.03))[0]
    assert verdict.holds
    # One of one: the true rate may be as low as 2.5 %.
    assert verdict.about == "1 of 1, so at least 3% of such; 1 not measured again"


def test_one_graph_that_is_slower_breaks_the_bound() -> None:
    good = graph(tried(FIRST, seen(1.3)), final=FIRST)
    bad = graph(tried(FIRST, seen(1.3)), final=None, duel=seen(1.2, low=1.1))
    cases = [CaseResult("good", (good,), 1.0), CaseResult("bad", (bad,), 1.0)]
    verdict = verdicts(cases, summary(cases, 0.03))[1]
    assert verdict.holds is False
    assert verdict.figure == pytest.approx(1 / 1.2)
    assert "slowest: bad" in verdict.about
    assert verdicts(cases[:1], summary(cases[:1], 0.03))[1].holds is True
    assert verdicts([], summary([], 0.03))[1].holds is None


def test_tables_fit_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    long = ("propagate_layout", "attention_from_views", "drop_redundant_copies")
    failed = replace(seen(None, Outcome.REJECT), reason="numerics: output 0 is " + "far off " * 40)
    trials = (
        tried(FIRST, seen(1.3), again=seen(1.2), predicted=None),
        tried(SECOND, failed, "drop_redundant_copies"),
        tried(BOTH, seen(1.001, Outcome.INCONCLUSIVE), *long, predicted=12.3456),
    )
    case = CaseResult("alternating_strides, training, batch 4", (graph(*trials, final=BOTH),), 12345.6, ("x" * 300,))
    figures = summary([case], 0.03)
    print_results([case], figures, verdicts([case], figures), 0.03)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert any("promote, yes" in line for line in lines)
    assert any(line.startswith("  propagate_layout + ...") for line in lines)


@pytest.fixture
def how() -> dict[str, object]:
    return made_by(POLICY, "cpu", "inductor")


def test_a_run_goes_on_where_it_ended(tmp_path: Path, how: dict[str, object]) -> None:
    file = tmp_path / "found.json"
    assert measured_before(file, how) == []
    case = CaseResult("resnet18, batch 1", (graph(tried(FIRST, seen(1.3), again=seen(1.2)), final=FIRST),), 1.0)
    text = json.dumps(document([case], how, 0.03), allow_nan=False)
    file.write_text(text)
    assert measured_before(file, how) == [case]
    assert json.loads(text)["summary"]["replication"] == 1.0
    with pytest.raises(ValueError, match="choose another file"):
        measured_before(file, {**how, "inner": "eager"})


def test_known_results_are_not_run_again() -> None:
    given = parsed(["--models", "resnet18,unet_plain", "--train"])[1]
    planned = jobs(given, POLICY)
    assert [job.title for job in planned] == [
        "resnet18, batch 1",
        "resnet18, training, batch 4",
        "unet_plain, batch 1",
        "unet_plain, training, batch 4",
    ]
    ran: list[str] = []

    def one(job: Job) -> CaseResult:
        ran.append(job.title)
        return CaseResult(job.title, (), 0.0)

    reports: list[int] = []
    known = CaseResult("resnet18, batch 1", (), 5.0)
    found = autopilot.run(planned, one, lambda results: reports.append(len(results)), [known])
    assert found[0] is known
    assert ran == [job.title for job in planned[1:]]
    assert reports == [2, 3, 4]


@pytest.mark.parametrize(
    "arguments", [["--models", "resnet19"], ["--resume"], ["--policy", "/nowhere.yaml"]], ids=lambda given: given[0]
)
def test_invalid_arguments_are_refused_before_measuring(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autopilot, "measure", _must_not_run)
    with pytest.raises(SystemExit) as stopped:
        autopilot.main(arguments)
    assert stopped.value.code == 2


def _must_not_run(job: Job, progress: Callable[[str], None]) -> CaseResult:
    raise AssertionError(job)


@pytest.mark.parametrize(
    ("case", "code"),
    [
        (CaseResult("x", (graph(tried(FIRST, seen(1.3), again=seen(1.3)), final=FIRST),), 1.0), 0),
        (CaseResult("x", (graph(tried(FIRST, seen(1.3), again=seen(1.0)), final=FIRST),), 1.0), 1),
        (CaseResult("x", (), 1.0, ("its process ended with code 1",), failed=True), 1),
        (CaseResult("x", (), 1.0, ("frx could not look up",)), 0),
    ],
    ids=["holds", "does not replicate", "does not run", "warned"],
)
def test_the_exit_code(
    case: CaseResult, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(autopilot, "measure", lambda job, progress: replace(case, title=job.title))
    file = tmp_path / "found.json"
    assert autopilot.main(["--models", "resnet18", "--json", str(file)]) == code
    assert "resnet18, batch 1" in capsys.readouterr().out
    assert len(json.loads(file.read_text())["cases"]) == 1
