"""`frx fix` as it is typed."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
import torch

from frx_graph.autopilot.fix_decisions import hash_patch
from frx_graph.autopilot.source_trial import SourceTrial
from frx_graph.cli.main import run
from frx_graph.errors import LedgerError
from frx_graph.ledger.database.opening import open_ledger
from frx_graph.ledger.decision import Kind
from frx_graph.ledger.location import parse_location
from frx_graph.reports.advice.fix_document import FixDocument
from frx_graph.support.allocator import Allocation
from frx_graph.trials.allocation_check import AllocationCheck
from frx_graph.trials.environment import read_trial_environment
from frx_graph.trials.environment_record import TrialEnvironment
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.trial_run import Gate, GateResult, TrialRun
from frx_graph.trials.verdict import Outcome, TrialStatistics, Verdict

PUBLISHED = resources.files("frx_graph.reports").joinpath("frx_fix_v1.schema.json")
MODEL = """\
import torch
from torch import nn


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(16, 1))

    def forward(self, x):
        y = x.transpose(1, 2).contiguous()  # in memory order
        z = x.permute(0, 2, 1).permute(0, 2, 1)
        return (y * self.scale).sum((0, 1, 2)) + z.exp().sum((0, 1, 2))


def build():
    torch.manual_seed(0)
    return Gate().eval(), (torch.randn(4, 8, 16),)
"""
FIXED = MODEL.replace(".contiguous()", "").replace("x.permute(0, 2, 1).permute(0, 2, 1)", "x")
LEAN = "[tool.frx]\nmeasure = false\nselect = ['FRX002', 'FRX003']\n"
SEEN = "2 changed, of 9 that the baseline has; aten::clone (aten) from 3 to 1; aten::empty_like (aten) from 3 to 1"
POLICY = "process_pairs: 2\nquads_per_pair: 3\nsteps_per_block: 1\nvoid_quads_allowed: 0\ntime_budget_seconds: 240\n"
pytestmark = pytest.mark.usefixtures("nothing_compiled")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("frx_graph.cli.fix.share_warm_arms", contextlib.nullcontext)
    monkeypatch.setenv("FRX_LEDGER", str(tmp_path.with_name(f"{tmp_path.name}.sqlite3")))
    (tmp_path / "pyproject.toml").write_text(LEAN)
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def make_trial(
    ratio: float,
    outcome: Outcome = Outcome.PROMOTE,
    *,
    failed: Gate | None = None,
    environment: TrialEnvironment | None = None,
) -> SourceTrial:
    gates = (GateResult(failed, False, "3 of 4 results differ"),) if failed else (GateResult(Gate.KERNELS, True, SEEN),)
    found = None if failed else TrialStatistics(ratio, ratio - 0.02, ratio + 0.02, 36, 6, (ratio,) * 6, 0)
    verdict = Verdict(outcome, "numerics: 3 of 4 results differ" if failed else "as measured", found, early=False)
    return SourceTrial(TrialRun(gates, verdict, (), environment, ()), TrialPolicy())


def play(monkeypatch: pytest.MonkeyPatch, *trials: SourceTrial) -> list[str]:
    """Answer each trial in turn; the changed files that were tried."""
    tried: list[str] = []
    rest = list(trials)

    def answer(_workload: object, changed: Mapping[Path, bytes], *_: object, **_how: object) -> SourceTrial:
        tried.append(b"".join(changed.values()).decode())
        return rest.pop(0)

    monkeypatch.setattr("frx_graph.cli.fix.try_change", answer)
    return tried


def test_default_shows_the_diff_and_changes_nothing(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fix", "model.py:build"]) == 1
    printed = capsys.readouterr().out
    assert "+        y = x.transpose(1, 2)  # in memory order" in printed
    assert "proposed: FRX002 model.py:11" in printed
    assert "--apply proves the fixes in a trial, and writes them" in printed
    assert model.read_text() == MODEL


def test_document_is_as_published(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fix", "model.py:build", "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    jsonschema.validate(printed, json.loads(PUBLISHED.read_text("utf-8")))
    document = FixDocument.model_validate(printed)
    assert [fix.state for fix in document.fixes] == ["proposed", "proposed"]
    assert (document.applied, document.proved, document.verdict) == (False, False, "")


@pytest.mark.parametrize("command", [["git", "apply"], ["patch", "-p1", "--input"]])
def test_patch_is_one_that_others_apply(model: Path, command: list[str]) -> None:
    assert run(["fix", "model.py:build", "--quiet", "--patch", "found.patch"]) == 1
    assert model.read_text() == MODEL
    subprocess.run([*command, "found.patch"], check=True, cwd=model.parent, capture_output=True)
    assert model.read_text() == FIXED


def test_proved_fixes_are_written_once(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model.chmod(0o755)
    tried = play(monkeypatch, make_trial(1.2))
    assert run(["fix", "model.py:build", "--apply"]) == 0
    assert tried == [FIXED]
    assert model.read_text() == FIXED
    assert model.stat().st_mode & 0o777 == 0o755
    printed = capsys.readouterr().out
    assert "Proved, all together: the same results, and faster: 20.0 % faster" in printed
    assert "In one step: aten::clone (aten) from 3 to 1." in printed
    assert run(["fix", "model.py:build", "--apply"]) == 0
    assert "model.py:build: no findings" in capsys.readouterr().out


def test_fixes_that_fail_together_are_tried_alone(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = make_trial(1.0, Outcome.REJECT, failed=Gate.NUMERICS)
    tried = play(monkeypatch, wrong, make_trial(1.0, Outcome.EQUIVALENT), wrong)
    assert run(["fix", "model.py:build", "--apply"]) == 1
    assert len(tried) == 3
    assert model.read_text() == tried[1]
    printed = " ".join(capsys.readouterr().out.split())
    assert "proved: FRX" in printed
    assert "the same results, and as fast, as far as can be measured: 0.0 % faster" in printed
    assert "rejected: FRX" in printed


@pytest.mark.parametrize(
    "trial",
    [
        make_trial(0.9, Outcome.REJECT),
        make_trial(1.0, Outcome.REJECT, failed=Gate.STRIDES),
    ],
)
def test_nothing_is_written_that_was_not_proved(
    trial: SourceTrial, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, *(trial for _ in range(3)))
    assert run(["fix", "model.py:build", "--apply"]) == 1
    assert model.read_text() == MODEL


def test_ledger_keeps_the_verdict_with_the_hash_of_the_patch(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = read_trial_environment(torch.device("cpu"))
    play(
        monkeypatch,
        make_trial(1.0, Outcome.REJECT, failed=Gate.NUMERICS, environment=here),
        make_trial(1.2, environment=here),
        make_trial(0.8, Outcome.REJECT, environment=here),
    )
    assert run(["fix", "model.py:build", "--apply", "--ledger", "here.sqlite3", "--patch", "kept.patch"]) == 1
    patch = hash_patch((model.parent / "kept.patch").read_text())
    assert f"#4, patch {patch}" in " ".join(capsys.readouterr().out.split())
    events = open_ledger(parse_location("here.sqlite3")).read_events()
    assert {event.decision.kind for event in events[1::2]} == {Kind.TRIED}
    assert [event.decision.reason.partition(":")[0] for event in events[1::2]] == ["rejected", "proved", "rejected"]
    assert [event.decision.plan == patch for event in events[1::2]] == [False, True, False]


def test_proof_counts_without_a_record(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, make_trial(1.2, environment=read_trial_environment(torch.device("cpu"))))

    def fail(*_: object) -> None:
        raise LedgerError("the disk is full", "make room")

    monkeypatch.setattr("frx_graph.cli.fix_record.open_ledger", fail)
    assert run(["fix", "model.py:build", "--apply"]) == 0
    assert model.read_text() == FIXED
    assert "Not recorded: the disk is full" in capsys.readouterr().out


def test_busy_machine_ends_the_proof_at_once(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = Verdict(Outcome.INCONCLUSIVE, "only 3 of 36 rounds were measured", None, early=True)
    tried = play(monkeypatch, SourceTrial(TrialRun((), verdict, (), None, ()), TrialPolicy()))
    assert run(["fix", "model.py:build", "--apply"]) == 1
    assert len(tried) == 1
    assert model.read_text() == MODEL
    assert "open: FRX" in capsys.readouterr().out


def test_without_proof_the_files_are_written_at_once(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fix", "model.py:build", "--apply", "--no-prove"]) == 0
    assert model.read_text() == FIXED
    assert "The files are changed; nothing was proved." in capsys.readouterr().out


def test_uncommitted_changes_are_not_mixed_with_fixes(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *words], check=True, cwd=model.parent, capture_output=True)

    git("init")
    git("add", "model.py")
    arguments = ["fix", "model.py:build", "--apply", "--no-prove"]
    assert run(arguments) == 2
    assert "has changes that are not committed (commit them, or use --allow-dirty)" in capsys.readouterr().err
    assert model.read_text() == MODEL
    git("commit", "-m", "first")
    assert run(arguments) == 0
    assert model.read_text() == FIXED
    model.write_text(MODEL)
    model.write_text(f"{MODEL}\n")
    assert run(arguments) == 2
    assert run([*arguments, "--allow-dirty"]) == 0
    assert model.read_text() == f"{FIXED}\n"


def test_installed_package_is_never_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "site-packages"
    package.mkdir()
    (tmp_path / "pyproject.toml").write_text(LEAN)
    (package / "model.py").write_text(MODEL)
    assert run(["fix", "site-packages/model.py:build", "--apply", "--no-prove"]) == 1
    assert (package / "model.py").read_text() == MODEL
    assert "left: FRX002" in capsys.readouterr().out
    assert run(["fix", "site-packages/model.py:build", "--patch", "found.patch"]) == 1
    assert "+++ b/model.py" in (tmp_path / "found.patch").read_text()


def test_only_the_chosen_rules_are_fixed(model: Path) -> None:
    assert run(["fix", "model.py:build", "--apply", "--no-prove", "--select", "FRX003"]) == 0
    assert model.read_text() == MODEL.replace("x.permute(0, 2, 1).permute(0, 2, 1)", "x")


def test_suppressed_findings_are_left_alone(model: Path) -> None:
    suppressed = MODEL.replace("# in memory order", "# frx: ignore[FRX002]")
    model.write_text(suppressed)
    assert run(["fix", "model.py:build", "--apply", "--no-prove"]) == 0
    assert ".contiguous()" in model.read_text()


def test_annotations_show_the_change_at_its_lines(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fix", "model.py:build", "--format", "github"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "::notice title=frx fix::2 changes for model.py:build; 0 findings not fixable"
    assert any(line.startswith("::notice file=model.py,line=11,endLine=11,title=FRX002 proposed::@@") for line in lines)


def test_a_file_that_cannot_be_replaced_stays(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    assert run(["fix", "model.py:build", "--apply", "--no-prove"]) == 2
    assert model.read_text() == MODEL
    assert sorted(path.name for path in model.parent.iterdir()) == ["model.py", "pyproject.toml"]


@pytest.mark.integration
@pytest.mark.parametrize("seconds", [3.0, 5.0, 6.0, 7.0, 8.0])
def test_killed_at_any_moment_the_file_is_as_it_was_or_as_fixed(model: Path, seconds: float) -> None:
    command = [sys.executable, "-m", "frx_graph", "fix", "model.py:build", "--apply", "--no-prove", "--quiet"]
    with subprocess.Popen(command, cwd=model.parent) as process:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.kill()
    assert model.read_text() in (MODEL, FIXED)


@pytest.mark.integration
def test_a_real_trial_decides(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model.parent / "policy.yaml").write_text(POLICY)
    code = run(["fix", "model.py:build", "--apply", "--ignore-load", "--policy", "policy.yaml", "--json"])
    document = FixDocument.model_validate_json(capsys.readouterr().out)
    # Which of them is faster is the machine's to say; that both compute the same is not.
    assert document.verdict.startswith(("the same results", "only", "most likely", "perhaps"))
    assert document.applied is document.proved is (code == 0)
    assert model.read_text() == (FIXED if code == 0 else MODEL)


@pytest.mark.integration
def test_program_is_tried_as_it_is_written(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With Dynamo around both programs, `@torch.compile` in one of them would change nothing."""
    (model.parent / "pyproject.toml").write_text("[tool.frx]\nselect = ['FRX005']\n")
    (model.parent / "policy.yaml").write_text(POLICY)
    chain = MODEL.replace("return (y", "return (x.sigmoid() * x.tanh() + x.exp()).sum() + (y").replace(
        "4, 8, 16", "64, 512, 16"
    )
    model.write_text(chain)
    options = ["--unsafe-fixes", "--ignore-load", "--policy", "policy.yaml", "--json"]
    code = run(["fix", "model.py:build", "--apply", *options])
    document = FixDocument.model_validate_json(capsys.readouterr().out)
    assert [(fix.fixer, fix.unsafe) for fix in document.fixes] == [("compile_region", True)]
    assert document.verdict.startswith("the same results")
    # In one step fewer operators run one by one.
    assert "aten::sigmoid (aten) from 1 to 0" in document.kernels
    assert model.read_text() == (
        chain.replace("    def forward", "    @torch.compile\n    def forward") if code == 0 else chain
    )


@pytest.mark.integration
def test_a_wrong_change_is_caught_by_its_trial(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (model.parent / "policy.yaml").write_text(POLICY)
    from frx_graph.cli import fix
    from frx_graph.fix.source_change import FileChange

    build = fix.build_changes

    def spoil(*given: object) -> tuple[FileChange, ...]:
        changes = build(*given)  # type: ignore[arg-type]
        return tuple(FileChange(one.path, one.before, one.after.replace(b"exp()", b"expm1()")) for one in changes)

    monkeypatch.setattr(fix, "build_changes", spoil)
    assert run(["fix", "model.py:build", "--apply", "--ignore-load", "--policy", "policy.yaml", "--json"]) == 1
    document = FixDocument.model_validate_json(capsys.readouterr().out)
    assert (document.applied, document.proved) == (False, False)
    assert {fix.state for fix in document.fixes} == {"rejected"}
    assert model.read_text() == MODEL


def test_a_change_that_is_slower_with_the_users_own_allocator_is_not_proved() -> None:
    faster = make_trial(1.2)
    slower = AllocationCheck(Allocation.DEFAULT, False, 0.8, (0.8, 0.79, 0.81))
    noisy = AllocationCheck(Allocation.DEFAULT, None, 0.95, (0.8, 0.95, 1.2))
    failing = AllocationCheck(Allocation.DEFAULT, False, failure="crashed")

    def prove(check: AllocationCheck) -> SourceTrial:
        return SourceTrial(replace(faster.run, check=check), faster.policy)

    assert [prove(check).proves for check in (slower, noisy, failing)] == [False, True, False]
    assert "With the default allocator, your own: 20.0 % slower" in prove(slower).reason
    assert prove(failing).reason.endswith("With the default allocator, your own: it fails: crashed")
