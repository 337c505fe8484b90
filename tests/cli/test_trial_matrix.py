"""`frx trial` with several trials: what is recorded, printed and returned, whatever engine has run them."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Generator, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from pydantic import TypeAdapter

from frx_graph.autopilot.target_trial import TargetTrial, TrialJob, UntriedTarget, build_matrix
from frx_graph.cli import trial
from frx_graph.cli.main import run
from frx_graph.compiler.code_fingerprint import compute_environment_key
from frx_graph.engines.engine import Holding, JobResult, Placement
from frx_graph.errors import FrxError, TrialError
from frx_graph.ledger.database.opening import open_ledger
from frx_graph.ledger.decision import Kind
from frx_graph.ledger.location import parse_location
from frx_graph.records import Candidate
from frx_graph.reports.trials.trial_document import TrialDocument, TrialMatrixDocument
from frx_graph.trial_worker.workload import load_workload
from frx_graph.trials.arm_messages import MadeGraph, TargetWorkload
from frx_graph.trials.environment import read_trial_environment
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.trial_run import EagerComparison, TrialRun
from frx_graph.trials.verdict import Outcome, TrialStatistics, Verdict

PUBLISHED = resources.files("frx_graph.reports").joinpath("frx_trial_matrix_v1.schema.json").read_text("utf-8")
ENVIRONMENT = read_trial_environment(torch.device("cpu"))
UNTRIED = UntriedTarget(EagerComparison())
HOSTILE = "\x1b[31mred\nsecond"


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs do nothing."""
    monkeypatch.setattr("frx_graph.cli.trial.sample_machine_load", lambda _: None)
    monkeypatch.setattr("frx_graph.cli.trial.share_warm_arms", contextlib.nullcontext)
    # No target here has a file.
    monkeypatch.setattr("frx_graph.cli.trial_jobs.check_spelling", lambda _: None)


def tried(outcome: Outcome, signature: str, *, rewrite: str = "hoist_copy", ratio: float = 1.1) -> TargetTrial:
    made = (MadeGraph(signature * 16, (Candidate(rewrite, signature * 16, ("clone",)),)),)
    measured = TrialStatistics(ratio, 1.0, 2.0, 9, 3, (ratio,) * 3, 0)
    return TargetTrial(TrialRun((), Verdict(outcome, "as measured", measured, early=False), (), ENVIRONMENT, ()), made)


class Scripted:
    """An engine whose jobs end as they are told, in this order, or else in the opposite of that they were given in."""

    def __init__(
        self,
        results: Sequence[TargetTrial | UntriedTarget | FrxError],
        *,
        placed: bool = True,
        order: Sequence[int] | None = None,
    ) -> None:
        self.results = results
        self.placed = placed
        self.order = order if order is not None else range(len(results))[::-1]
        self.closed = False

    def run(self, jobs: Sequence[TrialJob], progress: object) -> Generator[JobResult[Any]]:
        assert len(jobs) == len(self.results)
        try:
            for number in self.order:
                result = self.results[number]
                place = Placement(f"attempt{number}", "node", "10.0.0.1", ("attempt9 on 10.0.0.2: the node died",))
                yield JobResult(number, result, place if self.placed else None)
        finally:
            self.closed = True


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FRX_LEDGER", str(tmp_path / "ledger.sqlite3"))
    return tmp_path


def use(monkeypatch: pytest.MonkeyPatch, engine: Scripted) -> list[Holding]:
    asked: list[Holding] = []

    @contextlib.contextmanager
    def opened(_name: object, _address: object, _folder: object, holding: Holding) -> Iterator[Scripted]:
        asked.append(holding)
        yield engine
        assert engine.closed

    monkeypatch.setattr(trial, "open_engine", opened)
    return asked


def matrix_of(capsys: pytest.CaptureFixture[str]) -> TrialMatrixDocument:
    return TrialMatrixDocument.model_validate_json(capsys.readouterr().out)


def kinds(workplace: Path) -> list[str]:
    return [e.decision.kind.value for e in open_ledger(parse_location(str(workplace / "ledger.sqlite3"))).read_events()]


def test_each_trial_is_recorded_once_and_printed_in_the_order_of_the_matrix(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, Scripted([tried(Outcome.PROMOTE, "1"), tried(Outcome.REJECT, "2"), UNTRIED, TrialError("void")]))
    arguments = ["--dtype", "float32", "--dtype", "bfloat16", "--engine", "ray", "--json"]
    assert run(["trial", "a.py:build", "b.py:build", *arguments]) == 2
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    jsonschema.Draft202012Validator(json.loads(PUBLISHED)).validate(document)
    found = TrialMatrixDocument.model_validate(document)
    assert [(one.target, one.dtype) for one in found.trials] == [
        ("a.py:build", "float32"),
        ("a.py:build", "bfloat16"),
        ("b.py:build", "float32"),
        ("b.py:build", "bfloat16"),
    ]
    verdicts = [one.trial and one.trial.verdict for one in found.trials]
    assert verdicts == ["promote", "reject", "inconclusive", None]
    assert [one.error for one in found.trials] == [None, None, None, "void"]
    first = found.trials[0].trial
    assert first is not None
    assert first.place is not None
    assert first.place.attempt == "attempt0"
    assert first.place.lost == ("attempt9 on 10.0.0.2: the node died",)
    # The last that finished was the first of the matrix; what is void is nowhere.
    one_each = [Kind.PROPOSED, Kind.TRIED]
    assert kinds(workplace) == [*one_each, Kind.REJECTED, *one_each, Kind.PROMOTED]
    assert "void" in captured.err


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ([tried(Outcome.PROMOTE, "1"), UNTRIED], 0),
        ([tried(Outcome.PROMOTE, "1"), tried(Outcome.EQUIVALENT, "2")], 1),
        ([tried(Outcome.PROMOTE, "1"), TrialError("void")], 2),
    ],
)
def test_the_exit_code_is_that_of_all(
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    results: list[Any],
    code: int,
) -> None:
    use(monkeypatch, Scripted(results))
    assert run(["trial", "a.py:build", "b.py:build", "--engine", "ray"]) == code
    printed = capsys.readouterr().out
    assert "promote       a.py:build" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_one_trial_is_printed_as_ever_with_where_it_ran(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = use(monkeypatch, Scripted([tried(Outcome.PROMOTE, "1")]))
    assert run(["trial", "a.py:build", "--engine", "ray", "--device", "cuda", "--json"]) == 0
    found = TrialDocument.model_validate_json(capsys.readouterr().out)
    assert found.place is not None
    assert asked == [Holding.GPU]
    use(monkeypatch, Scripted([tried(Outcome.PROMOTE, "2")], placed=False))
    assert run(["trial", "a.py:build", "--json"]) == 0
    assert TrialDocument.model_validate_json(capsys.readouterr().out).place is None


@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_fastest_promoted_candidate_is_active_whatever_finished_last(
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    order: tuple[int, ...],
    *,
    placed: bool,
) -> None:
    ratios = {"hoist_copy": 1.2, "propagate_layout": 1.3, "freezing": 1.1}
    results = [tried(Outcome.PROMOTE, "1", rewrite=name, ratio=ratio) for name, ratio in ratios.items()]
    use(monkeypatch, Scripted(results, placed=placed, order=order))
    wanted = [text for name in ratios for text in ("--candidate", name)]
    assert run(["trial", "a.py:build", *wanted, "--json"]) == 0
    ledger = open_ledger(parse_location(str(workplace / "ledger.sqlite3")))
    promotions = ledger.read_promotions("1" * 16, compute_environment_key(ENVIRONMENT.setup))
    assert len(promotions) == 3
    (candidate,) = promotions[0].decision.candidates
    assert candidate.rewrite == "propagate_layout"
    assert ledger.read_evidence(promotions[0]) is not None
    last_was_best = order[-1] == 1
    assert kinds(workplace).count(Kind.PROMOTED) == (3 if last_was_best else 4)
    said = [one.trial.decision for one in matrix_of(capsys).trials if one.trial is not None]
    again = "#10 once more, as the fastest of 3"
    assert [again in text for text in said] == [False, not last_was_best, False]
    assert "promoted plans, 1.300" in promotions[0].decision.reason or last_was_best


@pytest.mark.parametrize("rewrite", ["hoist_copy", "propagate_layout"])
def test_fastest_so_far_stays_active_after_an_interrupt(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, rewrite: str
) -> None:
    ratios = {"hoist_copy": 1.2, "propagate_layout": 1.3 if rewrite == "propagate_layout" else 1.1}
    results = [tried(Outcome.PROMOTE, "1", rewrite=name, ratio=ratio) for name, ratio in ratios.items()]

    class Interrupted(Scripted):
        def run(self, jobs: Sequence[TrialJob], progress: object) -> Generator[JobResult[Any]]:
            yield from super().run(jobs[:2], progress)
            raise KeyboardInterrupt

    use(monkeypatch, Interrupted(results, order=(0, 1)))
    wanted = [text for name in (*ratios, "freezing") for text in ("--candidate", name)]
    assert run(["trial", "a.py:build", *wanted]) == 130
    ledger = open_ledger(parse_location(str(workplace / "ledger.sqlite3")))
    promotions = ledger.read_promotions("1" * 16, compute_environment_key(ENVIRONMENT.setup))
    assert [one.rewrite for one in promotions[0].decision.candidates] == [rewrite]
    assert len(promotions) == 2


def test_promotions_of_several_graphs_are_left_as_they_are(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = [tried(Outcome.PROMOTE, "1", ratio=1.3), tried(Outcome.PROMOTE, "2", rewrite="freezing")]
    use(monkeypatch, Scripted(results, order=(0, 1)))
    assert run(["trial", "a.py:build", "--candidate", "hoist_copy", "--candidate", "freezing", "--json"]) == 0
    assert kinds(workplace) == [Kind.PROPOSED, Kind.TRIED, Kind.PROMOTED] * 2


def test_a_void_trial_is_an_error_and_in_no_ledger(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, Scripted([TrialError(f"void: {HOSTILE}")], placed=False))
    assert run(["trial", "a.py:build", "--engine", "ray"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "\x1b" not in captured.err
    assert not (workplace / "ledger.sqlite3").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--address", "auto"], "--address is for a Ray cluster"),
        (["--working-dir", "."], "--working-dir is for a Ray cluster"),
        (["--engine", "ray", "--working-dir", "gone"], "--working-dir gone is not a folder"),
        (["--shape", "batch=8,size"], "'size' is not NAME=SIZE"),
        (["--shape", "batch=-8"], "'batch=-8' is not NAME=SIZE"),
        (["--shape", "batch=8,batch=9"], "gives batch twice"),
        (["--engine", "ray", "--device", "cuda:1"], "Ray chooses the GPU of a node"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_starts(
    workplace: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert run(["trial", "a.py:build", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_missing_ray_error_names_the_extra(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    assert run(["trial", "a.py:build", "--engine", "ray"]) == 2
    assert "pip install 'frx-graph[ray]'" in capsys.readouterr().err


def test_unreachable_cluster_is_an_error(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray")
    assert run(["trial", "a.py:build", "--engine", "ray", "--address", "127.0.0.1:1"]) == 2
    assert "Ray at 127.0.0.1:1: ConnectionRefusedError" in capsys.readouterr().err


def test_alpha_is_divided_among_the_candidates_of_one_program() -> None:
    jobs = build_matrix(
        ["a.py:build", "b.py:build", "a.py:build"],
        [(("batch", 8),)],
        ["float32"],
        ["hoist_copy", "freezing", "eager"],
        device=None,
        train=True,
        inner="eager",
        against_itself=False,
        policy=TrialPolicy(),
    )
    assert len(jobs) == 6
    assert {job.asked.candidates for job in jobs} == {3}
    assert jobs[0].label == "a.py:build batch=8 float32 hoist_copy"


def test_frozen_weights_are_tried_beside_what_is_asked_for(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for asked, names in (((), [None]), (("--candidate", "hoist_copy"), ["hoist_copy"])):
        use(monkeypatch, Scripted([tried(Outcome.PROMOTE, "1")] * 3, placed=False))
        assert run(["trial", "a.py:build", "--frozen", *asked, "--json"]) == 0
        found = TrialMatrixDocument.model_validate_json(capsys.readouterr().out)
        assert [one.candidate for one in found.trials] == [*names, "freezing", "freezing_cpp_wrapper"]


def test_each_shape_is_a_separate_trial(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, Scripted([tried(Outcome.PROMOTE, "1"), UNTRIED], placed=False))
    arguments = ["trial", "a.py:build", "--shape", "batch=8,size=224", "--shape", " batch = 1"]
    assert run([*arguments, "--json"]) == 0
    found = TrialMatrixDocument.model_validate_json(capsys.readouterr().out)
    assert [one.shape for one in found.trials] == [{"batch": 8, "size": 224}, {"batch": 1}]
    use(monkeypatch, Scripted([tried(Outcome.PROMOTE, "2"), UNTRIED], placed=False))
    assert run(arguments) == 0
    assert "promote       a.py:build batch=8,size=224" in capsys.readouterr().out


def test_an_arm_calls_the_target_with_its_shape(workplace: Path) -> None:
    program = workplace / "shaped.py"
    program.write_text("import torch\ndef build(batch):\n    return torch.nn.Linear(3, 2), (torch.randn(batch, 3),)\n")
    (job,) = build_matrix(
        [f"{program}:build"],
        [(("batch", 8),)],
        [],
        [],
        device=None,
        train=False,
        inner="eager",
        against_itself=False,
        policy=TrialPolicy(),
    )
    workload = TypeAdapter(TargetWorkload).validate_json(TypeAdapter(TargetWorkload).dump_json(job.asked.workload))
    assert load_workload(workload).args[0].shape == (8, 3)
