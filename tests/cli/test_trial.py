"""`frx trial` as it is typed."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from frx_graph.advisor.target import check_spelling
from frx_graph.autopilot import target_trial
from frx_graph.autopilot.target_trial import TargetTrial, TrialRequest, UntriedTarget
from frx_graph.cli.main import run
from frx_graph.cli.printing.output import print_notice
from frx_graph.errors import TargetError
from frx_graph.ledger.database.opening import open_ledger
from frx_graph.ledger.location import parse_location
from frx_graph.ledger.store import Ledger
from frx_graph.ledger.verification import verify
from frx_graph.measure.machine.busy_programs import BusyProgram, MachineLoad
from frx_graph.records import Candidate
from frx_graph.reports.trials.trial_document import TrialDocument
from frx_graph.support.allocator import Allocation
from frx_graph.trials.allocation_check import AllocationCheck
from frx_graph.trials.arm_messages import MadeGraph
from frx_graph.trials.environment import read_trial_environment
from frx_graph.trials.samples import Block, MeasuredQuad
from frx_graph.trials.schedule import Arm, Quad
from frx_graph.trials.trial_run import EagerComparison, Gate, TrialRun
from frx_graph.trials.verdict import Outcome, TrialStatistics, Verdict

MODEL = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval(), (torch.randn(1, 8, 12, 12),)

def broken():
    return nn.Linear(3, 3), (torch.randn(4),)

class Reinterpreted(nn.Module):
    def forward(self, x):
        return torch.as_strided(torch.copysign(x, torch.ones(8, 1, 1)), (6, 8), (5, 1), 2).sin()

def reinterpreted():
    return Reinterpreted().eval(), (torch.randn(2, 8, 16, 16).contiguous(memory_format=torch.channels_last),)
"""
UNTRIED = UntriedTarget(EagerComparison())
FLAT = """
import torch
from torch import nn

class Flat(nn.Module):
    def forward(self, x):
        return torch.copysign(x.t(), torch.ones(6, 1)).reshape(-1)

def build():
    return Flat().eval(), (torch.randn(5, 6),)
"""
POLICY = "process_pairs: 2\nquads_per_pair: 3\nsteps_per_block: 1\nvoid_quads_allowed: 0\ntime_budget_seconds: 240\n"


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "policy.yaml").write_text(POLICY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FRX_LEDGER", str(tmp_path / "ledger.sqlite3"))
    return tmp_path


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs do nothing, unless a test says otherwise."""
    monkeypatch.setattr("frx_graph.cli.trial.sample_machine_load", lambda _: None)
    monkeypatch.setattr("frx_graph.cli.trial.share_warm_arms", contextlib.nullcontext)


def ledger(workplace: Path) -> Ledger:
    return open_ledger(parse_location(str(workplace / "ledger.sqlite3")))


@pytest.mark.integration
def test_the_baseline_does_not_win_against_itself(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["trial", "model.py:build", "--aa", "--inner", "eager", "--policy", "policy.yaml", "--format", "json"])
    captured = capsys.readouterr()
    assert code == 1, captured.err
    found = TrialDocument.model_validate_json(captured.out)
    assert found.verdict != "promote"
    assert [gate.name for gate in found.gates] == list(Gate)
    assert all(gate.passed is not False for gate in found.gates[:-1])
    assert len(found.signatures) == 1
    assert not (workplace / "ledger.sqlite3").exists()


@pytest.mark.integration
def test_trials_are_recorded(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["trial", "model.py:build", "--train", "--inner", "eager", "--policy", "policy.yaml"])
    captured = capsys.readouterr()
    if "nothing was tried" in captured.err:
        # What measured times speak for is the machine's to say.
        assert code == 0
        assert not (workplace / "ledger.sqlite3").exists()
        return
    events = ledger(workplace).read_events()
    kinds = [event.decision.kind.value for event in events]
    assert kinds[:2] == ["proposed", "tried"]
    assert code == (0 if kinds[2] == "promoted" else 1)
    assert verify(ledger(workplace)).problem is None
    assert "recorded in" in captured.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["model.py:nothing"], "has no 'nothing'"),
        (["model.py:biuld"], "model.py has no 'biuld' (did you mean 'build'?)"),
        (["model:"], "target 'model:' is not of the form module:callable"),
        (["model.py:build", "--inner", "inducter"], "did you mean 'inductor'"),
        (["model.py:build", "--inner", "cudagraphs"], "--inner cudagraphs takes no plan (take one of aot"),
        (["model.py:build", "--policy", "nowhere.yaml"], "cannot be read"),
        (["model.py:build", "--dtype", "f32"], "unknown --dtype 'f32' (did you mean float32?)"),
        (["model.py:build", "--device", "nope"], "unknown --device 'nope'"),
        (["model.py:build", "--aa", "--candidate", "hoist_copy"], "--aa tries the baseline against itself"),
        (["model.py:build", "--aa", "--frozen"], "--aa tries the baseline against itself, without --frozen"),
        (["model.py:build", "--train", "--frozen"], "constants for Inductor, but --train trains them"),
        (["model.py:build", "--inner", "eager", "--frozen"], "but --inner eager does not use Inductor"),
        (["\x1b[31m\u202e.py:build", "--aa"], "no such file: [31m.py"),
    ],
)
def test_errors_give_a_hint_before_anything_starts(
    workplace: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    said: str,
) -> None:
    # An error is the only thing that is said, although the machine is busy.
    monkeypatch.setattr("frx_graph.cli.trial.sample_machine_load", lambda _: BUSY)
    monkeypatch.setattr(target_trial, "try_target", lambda *_: pytest.fail("it was tried"))
    assert run(["trial", *arguments]) == 2
    message = capsys.readouterr().err
    assert said in message
    assert len(message.splitlines()) == 1
    assert message.rstrip("\n").isprintable()
    assert not (workplace / "ledger.sqlite3").exists()


@pytest.mark.integration
def test_a_program_that_does_not_run_is_an_error(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trial", "model.py:broken", "--aa"]) == 2
    message = capsys.readouterr().err
    assert "the baseline does not run" in message
    assert len(message.splitlines()) == 1


@pytest.mark.integration
def test_program_without_a_candidate_is_compared_with_eager(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Eager's copysign keeps the layout of its first operand, its decomposition does not.
    assert run(["trial", "model.py:reinterpreted", "--policy", "policy.yaml", "--json"]) == 1
    found = TrialDocument.model_validate_json(capsys.readouterr().out)
    assert found.departure.startswith("Inductor alone computes something else than eager (output 0")
    assert run(["trial", "model.py:build", "--inner", "aot_eager", "--policy", "policy.yaml", "--json"]) in (0, 1)
    assert TrialDocument.model_validate_json(capsys.readouterr().out).departure == ""


@pytest.mark.integration
def test_baseline_that_raises_is_an_error_without_a_candidate(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workplace / "flat.py").write_text(FLAT)
    assert run(["trial", "flat.py:build", "--inner", "aot_eager", "--policy", "policy.yaml"]) == 2
    assert "the baseline does not run" in capsys.readouterr().err


def test_an_error_has_one_hint(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trial", "model.py:nothing"]) == 2
    assert capsys.readouterr().err == "frx: model.py has no 'nothing' (check the name)\n"


@pytest.mark.parametrize(
    "source",
    ["from other import *\n", "def __getattr__(name):\n    ...\n", "globals()['bu' + 'ild'] = None\n", "build = 1\n"],
)
def test_a_name_that_the_source_may_define_is_left_to_the_loader(tmp_path: Path, source: str) -> None:
    file = tmp_path / "model.py"
    file.write_text(source)
    check_spelling(f"{file}:build")
    file.write_text("def builder():\n    ...\n")
    with pytest.raises(TargetError, match="has no 'build'"):
        check_spelling(f"{file}:build")


def test_that_nothing_was_tried_is_a_document(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_trial, "try_target", lambda *_: UNTRIED)
    assert run(["trial", "model.py:build", "--format", "json"]) == 0
    captured = capsys.readouterr()
    found = TrialDocument.model_validate_json(captured.out)
    assert (found.verdict, found.target, len(found.arms)) == ("inconclusive", "model.py:build", 1)
    assert "nothing was tried" in found.reason
    assert "nothing was tried" in captured.err
    assert run(["trial", "model.py:build"]) == 0
    assert capsys.readouterr().out == ""


def test_wrong_compiler_is_reported_although_nothing_was_tried(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    departure = "Inductor alone computes something else than eager (output 0)"
    monkeypatch.setattr(target_trial, "try_target", lambda *_: UntriedTarget(EagerComparison(departure)))
    assert run(["trial", "model.py:build", "--format", "json"]) == 1
    captured = capsys.readouterr()
    found = TrialDocument.model_validate_json(captured.out)
    assert found.departure == departure
    assert found.reason.startswith(f"{departure}; ")
    assert departure in captured.err
    assert "Next: keep this program in eager" in captured.err
    assert "--inner aot_eager tells" in captured.err
    assert run(["trial", "model.py:build", "--inner", "aot_eager"]) == 1
    assert "--inner aot_eager" not in capsys.readouterr().err


def test_unknown_comparison_with_eager_is_reported(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    untried = UntriedTarget(EagerComparison(unknown="the program does not compute the same twice"))
    monkeypatch.setattr(target_trial, "try_target", lambda *_: untried)
    assert run(["trial", "model.py:build", "--format", "json"]) == 0
    found = TrialDocument.model_validate_json(capsys.readouterr().out)
    assert found.reason.startswith("not compared with eager, the program does not compute the same twice; ")
    assert found.departure == ""


def test_trial_that_ended_early_is_not_recorded(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = (MadeGraph("1" * 16, (Candidate("hoist_copy", "a" * 16, ("clone",)),)),)
    verdict = Verdict(Outcome.INCONCLUSIVE, "the time budget ended", None, early=True)
    monkeypatch.setattr(target_trial, "try_target", lambda *_: TargetTrial(TrialRun((), verdict, (), None, ()), made))
    assert run(["trial", "model.py:build"]) == 1
    printed = capsys.readouterr().out
    assert "not recorded: the trial ended before" in printed
    assert "recorded in" not in printed
    assert not (workplace / "ledger.sqlite3").exists()


@pytest.mark.parametrize(("count", "code"), [(1, 0), (2, 1)])
def test_gain_of_several_graphs_is_not_promoted(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, count: int, code: int
) -> None:
    candidate = Candidate("hoist_copy", "a" * 16, ("clone",))
    made = tuple(MadeGraph(str(number) * 16, (candidate,)) for number in range(count))
    verdict = Verdict(Outcome.PROMOTE, "10 % faster", None, early=False)
    here = read_trial_environment(torch.device("cpu"))
    monkeypatch.setattr(target_trial, "try_target", lambda *_: TargetTrial(TrialRun((), verdict, (), here, ()), made))
    assert run(["trial", "model.py:build"]) == code
    printed = " ".join(capsys.readouterr().out.split())
    assert ("#2 tried, #4 tried. Nothing is decided: the verdict is that of several graphs" in printed) is (count > 1)
    assert ("#3 promoted" in printed) is (count == 1)
    assert printed.count("Nothing is decided") == count - 1
    assert len(ledger(workplace).read_events()) == (3 if count == 1 else 4)


def make_stats(outcome: Outcome, quads: int) -> Verdict:
    return Verdict(outcome, "as measured", TrialStatistics(1.0, 0.9, 1.1, quads, 6, (1.0,) * 6, 0), early=False)


def make_quad() -> MeasuredQuad:
    arms = (Arm.BASELINE, Arm.CANDIDATE, Arm.CANDIDATE, Arm.BASELINE)
    first, second, third, fourth = (Block(arm, (0.01,)) for arm in arms)
    return MeasuredQuad(Quad(0, 0, arms), (first, second, third, fourth))


TWO = (Candidate("hoist_copy", "a" * 16, ("clone",)), Candidate("propagate_layout", "a" * 16, ("conv",)))
FROZEN = (Candidate("inner_choice", "", (), ("freezing",)),)


@pytest.mark.parametrize(
    ("verdict", "candidates", "said"),
    [
        (make_stats(Outcome.REJECT, 36), TWO, "Next: try each change by itself, by adding --candidate hoist_copy "),
        (make_stats(Outcome.EQUIVALENT, 36), TWO, "Next: try each change by itself"),
        (make_stats(Outcome.INCONCLUSIVE, 72), TWO, "Next: run it again when the machine is idle, or raise extra_"),
        # What there is to do is in the reason.
        (make_stats(Outcome.INCONCLUSIVE, 20), TWO, ""),
        (make_stats(Outcome.REJECT, 36), TWO[:1], "Next: --frozen also tries weights as constants"),
        (make_stats(Outcome.REJECT, 36), FROZEN, ""),
        (make_stats(Outcome.PROMOTE, 36), TWO, 'torch.compile(model, backend="frx") applies it'),
        (make_stats(Outcome.PROMOTE, 36), TWO, "; --frozen also tries weights as constants"),
    ],
)
def test_screen_says_what_to_do_next(
    workplace: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    verdict: Verdict,
    candidates: tuple[Candidate, ...],
    said: str,
) -> None:
    environment = read_trial_environment(torch.device("cpu"))
    ended = TrialRun((), verdict, (make_quad(),), environment, ("1" * 16,))
    made = (MadeGraph("1" * 16, candidates),)
    monkeypatch.setattr(target_trial, "try_target", lambda *_: TargetTrial(ended, made))
    run(["trial", "model.py:build"])
    printed = " ".join(capsys.readouterr().out.split())
    assert said in printed
    assert ("Next:" in printed) is bool(said)


@pytest.mark.parametrize("shows", [True, False])
def test_screen_says_for_which_processes_a_promotion_holds(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, shows: bool
) -> None:
    here = read_trial_environment(torch.device("cpu"))
    pooled = replace(here, setup=replace(here.setup, allocation=Allocation.POOLED))
    check = AllocationCheck(Allocation.DEFAULT, shows, 1.1 if shows else 0.9, (1.1 if shows else 0.9,) * 3)
    verdict = make_stats(Outcome.PROMOTE, 36)
    check = replace(check, verdict=check.derive_verdict(verdict))
    ended = TrialRun((), verdict, (make_quad(),), pooled, ("1" * 16,), check=check)
    made = (MadeGraph("1" * 16, TWO),)
    monkeypatch.setattr(target_trial, "try_target", lambda *_: TargetTrial(ended, made))
    run(["trial", "model.py:build"])
    printed = " ".join(capsys.readouterr().out.split())
    assert ('(model, backend="frx") applies it in your program' in printed) is shows
    assert ("it is proved for processes that pool their memory only" in printed) is not shows


def test_help_names_the_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trial", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "The baseline is the model under torch.compile with Inductor" in text


BUSY = MachineLoad(0.5, 2, 0.75, False, 3.25, None, (BusyProgram(4711, "cc1plus", 1.5),))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "close these programs, or use --ignore-load"),
        (["--ignore-load"], "measurements count all the same (--ignore-load)"),
    ],
)
def test_busy_machine_is_reported_at_once(
    workplace: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    said: str,
) -> None:
    asked: list[TrialRequest] = []

    def try_target(request: TrialRequest, *_: object) -> UntriedTarget:
        # The notice comes before the first arm is started.
        assert "the machine is busy" in capsys.readouterr().err
        asked.append(request)
        return UNTRIED

    monkeypatch.setattr(target_trial, "try_target", try_target)
    monkeypatch.setattr("frx_graph.cli.trial.sample_machine_load", lambda _: BUSY)
    notices: list[str] = []
    monkeypatch.setattr("frx_graph.cli.trial.print_notice", lambda text: (notices.append(text), print_notice(text)))
    assert run(["trial", "model.py:build", *options]) == 0
    assert "cc1plus (pid 4711) uses 1.5 of 2 processors, load 3.2" in notices[0].replace("\n     ", " ")
    assert said in notices[0].replace("\n     ", " ")
    assert max(map(len, notices[0].splitlines())) <= 80
    assert [request.ignore_load for request in asked] == [bool(options)]


def test_quiet_machine_and_quiet_option_print_no_notice(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_trial, "try_target", lambda *_: UNTRIED)
    monkeypatch.setattr("frx_graph.cli.trial.sample_machine_load", lambda _: replace(BUSY, share=0.1))
    assert run(["trial", "model.py:build"]) == 0
    assert "busy" not in capsys.readouterr().err
    monkeypatch.setattr("frx_graph.cli.trial.sample_machine_load", lambda _: BUSY)
    assert run(["trial", "model.py:build", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_load_is_in_the_document(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = (MadeGraph("1" * 16, (Candidate("hoist_copy", "a" * 16, ("clone",)),)),)
    verdict = Verdict(Outcome.INCONCLUSIVE, "the machine is busy", None, early=False)
    ended = TrialRun((), verdict, (), None, (), ignore_load=True, load=BUSY)
    monkeypatch.setattr(target_trial, "try_target", lambda *_: TargetTrial(ended, made))
    assert run(["trial", "model.py:build", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ignore_load"], found["reason"]) == (True, "the machine is busy")
    assert found["load"]["programs"] == [{"pid": 4711, "name": "cc1plus", "processors": 1.5}]
    assert TrialDocument.model_validate(found).load == BUSY
