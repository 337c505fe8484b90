"""A ledger on a full disk, in a read-only folder, damaged, or locked by another process: the program runs as without us
and is warned once; `frx trial` says what is wrong before it works for nothing."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from frx_graph import backend
from frx_graph.autopilot.target_trial import TargetTrial
from frx_graph.cli.main import run
from frx_graph.compiler.plans import make_recorded_plan
from frx_graph.errors import LedgerUncertainError
from frx_graph.ledger.database.opening import open_ledger, open_to_read
from frx_graph.ledger.decision import Decision, Kind
from frx_graph.ledger.fast_path import read_promotions
from frx_graph.ledger.location import parse_location
from frx_graph.ledger.verification import verify
from frx_graph.records import Candidate
from frx_graph.trials.arm_messages import MadeGraph
from frx_graph.trials.environment import read_trial_environment
from frx_graph.trials.trial_run import TrialRun
from frx_graph.trials.verdict import Outcome, Verdict

HERE, ELSEWHERE = "a" * 16, "c" * 16
CANDIDATE = Candidate("propagate_layout", "0" * 16, ("convolution",), ("0,2,3,1",), 1e-3)
NOBODY = 65534

Trouble = Callable[[Path], AbstractContextManager[None]]


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A ledger's, in a folder that others may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        monkeypatch.setenv("FRX_LEDGER", str(folder / "ledger.sqlite3"))
        # Nobody has all day.
        monkeypatch.setattr("frx_graph.ledger.database.engine.BUSY_SECONDS", 0.05)
        monkeypatch.setattr("frx_graph.ledger.database.opening.CHECK_SECONDS", 0.2)
        monkeypatch.setattr("frx_graph.promotion.process_record.PATIENCE_SECONDS", 0.2)
        yield folder / "ledger.sqlite3"


def decided(signature: str, kind: Kind = Kind.PROPOSED) -> Decision:
    return Decision(
        kind=kind,
        signature=signature,
        environment="b" * 16,
        plan=make_recorded_plan((CANDIDATE,)).hash,
        reason="a test",
        decided_by="frx trial",
        host="here",
        process_id=1,
        recorded_at=datetime.now(UTC),
        candidates=(CANDIDATE,),
        trial='{"schema": "frx_trial_v1", "verdict": "promote"}' if kind is Kind.TRIED else None,
    )


def fill(file: Path, signature: str) -> None:
    """The one plan is promoted for the graph with this signature."""
    decisions = [decided(signature, kind) for kind in (Kind.PROPOSED, Kind.TRIED, Kind.PROMOTED)]
    open_ledger(parse_location(str(file))).append(decisions)


@contextlib.contextmanager
def full(_file: Path) -> Iterator[None]:
    """No file may grow beyond nothing, which to SQLite is a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def read_only(file: Path) -> Iterator[None]:
    file.parent.chmod(0o555)
    root = os.geteuid() == 0  # to whom nothing is read-only
    if root:
        os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        if root:
            os.setresuid(0, 0, 0)
        file.parent.chmod(0o755)


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    holder = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('BEGIN IMMEDIATE'); print(1); input()"
    with subprocess.Popen(
        [sys.executable, "-u", "-c", holder, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield
        process.communicate(b"\n")


@contextlib.contextmanager
def damaged(file: Path) -> Iterator[None]:
    content = file.read_bytes()
    file.write_bytes(b"no database at all" * 100)
    yield
    file.write_bytes(content)


TROUBLES = pytest.mark.parametrize(
    ("trouble", "said"),
    [(full, "full"), (read_only, "read-only"), (locked, "locked by another process"), (damaged, "not a SQLite")],
)


class Model(nn.Module):
    """Two graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        torch._dynamo.graph_break()
        return torch.relu(y) + 1


def runs_as_without_us(mode: str, *, are: Literal["always", "error"] = "always") -> list[str]:
    """What the program is warned of."""
    torch._dynamo.reset()
    backend.clear()
    model, x = Model(), torch.randn(3, 4)
    with warnings.catch_warnings(record=True) as warned:
        # Torch warns by other kinds of warnings.
        warnings.simplefilter(are, RuntimeWarning)
        found = torch.compile(model, backend="frx", options={"mode": mode, "inner": "eager"})(x)
    torch.testing.assert_close(found, model(x), rtol=0, atol=0)
    assert backend.rewritten() == ()
    return [str(one.message) for one in warned if "frx" in str(one.message)]


@pytest.fixture
def no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        pytest.fail("a trial whose decision would be lost")

    monkeypatch.setattr("frx_graph.promotion.promoted_plan.hash_compilation", lambda *_: HERE)
    monkeypatch.setattr("frx_graph.promotion.promoted_plan.compute_environment_key", lambda _: "b" * 16)
    monkeypatch.setattr("frx_graph.autopilot.search.try_graph", never)


@TROUBLES
@pytest.mark.parametrize("mode", ["apply", "autopilot"])
def test_a_program_runs_as_without_us_and_is_warned_once(
    file: Path, no_trial: None, mode: str, trouble: Trouble, said: str
) -> None:
    fill(file, HERE if mode == "apply" else ELSEWHERE)
    runs_as_without_us("advise")  # all that is imported late is imported now
    with trouble(file):
        warned = runs_as_without_us(mode)
    assert len(warned) == 1
    assert said in warned[0]
    assert str(file) in warned[0]
    ledger = open_to_read(parse_location(str(file)))
    assert verify(ledger).problem is None
    assert len(ledger.read_events()) == 3


@TROUBLES
@pytest.mark.parametrize("mode", ["apply", "autopilot"])
def test_a_program_runs_as_without_us_where_warnings_are_errors(
    file: Path, no_trial: None, mode: str, trouble: Trouble, said: str
) -> None:
    fill(file, HERE if mode == "apply" else ELSEWHERE)
    runs_as_without_us("advise")
    with trouble(file):
        assert runs_as_without_us(mode, are="error") == []


@pytest.mark.parametrize("mode", ["apply", "autopilot"])
def test_a_server_that_cannot_be_reached_is_asked_once(
    no_trial: None, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose packets are dropped costs its time limit each time."""
    pytest.importorskip("psycopg", reason="needs the [postgres] extra")
    monkeypatch.setenv("FRX_LEDGER", f"postgresql://ada@/decisions?host={tmp_path}")
    asked = []

    def watched(place: Any, *given: str) -> Any:
        asked.append(place)
        return read_promotions(place, *given)

    monkeypatch.setattr("frx_graph.promotion.active_plan.read_promotions", watched)
    runs_as_without_us("advise")
    (warned,) = runs_as_without_us(mode)
    assert "cannot be reached" in warned
    assert len(asked) == 1


def test_a_disk_that_is_full_when_a_trial_has_ended_leaves_the_baseline(
    file: Path, no_trial: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trying(*_: Any, record: Any, **__: Any) -> None:
        with full(file):
            record([decided(HERE, kind) for kind in (Kind.PROPOSED, Kind.TRIED, Kind.PROMOTED)])

    monkeypatch.setattr("frx_graph.autopilot.search.try_graph", trying)
    fill(file, ELSEWHERE)
    (warned,) = runs_as_without_us("autopilot")
    assert "full" in warned
    assert len(open_to_read(parse_location(str(file))).read_events()) == 3


def test_a_place_where_no_ledger_can_be_made(file: Path, no_trial: None) -> None:
    runs_as_without_us("advise")
    with read_only(file):
        assert runs_as_without_us("apply") == []
        (warned,) = runs_as_without_us("autopilot")
    assert f"{file.parent} cannot be written" in warned


@pytest.fixture
def target(file: Path) -> str:
    model = file.parent / "model.py"
    model.write_text("def build(): ...\n")
    return f"{model}:build"


@TROUBLES
def test_frx_trial_reports_it_before_trying(
    file: Path,
    target: str,
    trouble: Trouble,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("frx_graph.autopilot.target_trial.try_target", pytest.fail)
    fill(file, ELSEWHERE)
    run(["ledger", "list"])
    capsys.readouterr()
    with trouble(file):
        code = run(["trial", target])
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 2
    assert said in line
    assert str(file) in line
    assert any(hint in line for hint in ("name another ledger", "try again", "FRX_LEDGER"))


def test_frx_trial_prints_what_it_could_not_record(
    file: Path, target: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = read_trial_environment(torch.device("cpu"))
    verdict = Verdict(Outcome.PROMOTE, "faster", None, early=True)
    tried = TargetTrial(TrialRun((), verdict, (), environment, (HERE,)), (MadeGraph(HERE, (CANDIDATE,)),))
    monkeypatch.setattr("frx_graph.autopilot.target_trial.try_target", lambda *_: tried)
    check = open_ledger(parse_location(str(file)))
    monkeypatch.setattr("frx_graph.cli.trial.check_writable", lambda _: None)
    monkeypatch.setattr("frx_graph.cli.trial.share_warm_arms", contextlib.nullcontext)
    with full(file):
        code = run(["trial", target])
    captured = capsys.readouterr()
    assert code == 2
    assert "not recorded" in captured.out
    assert "full" in captured.err
    assert check.read_events() == ()
    assert run(["trial", target]) == 0
    assert [event.decision.kind for event in check.read_events()] == [Kind.PROPOSED, Kind.TRIED, Kind.PROMOTED]

    def lost(_place: object) -> None:
        raise LedgerUncertainError("the ledger cannot be reached")

    monkeypatch.setattr("frx_graph.cli.trial_record.open_ledger", lost)
    capsys.readouterr()
    assert run(["trial", target]) == 2
    out = capsys.readouterr().out
    assert "perhaps recorded" in out
    assert "not recorded" not in out
