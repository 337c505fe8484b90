"""Ctrl-C and SIGTERM in the middle of a trial, by `frx trial` and inside of a program that the autopilot works for: no
process and no folder is left, and the ledger is whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
import torch
from pydantic_core import SchemaError
from trial_writer import MARK, marked, seconds_until_gone

from frx_graph.ledger.database.opening import open_ledger, open_to_read
from frx_graph.ledger.decision import Decision, Kind
from frx_graph.ledger.location import parse_location
from frx_graph.ledger.verification import Verification, verify
from frx_graph.promotion.lookup import PromotedPlans
from frx_graph.support.supervisor.process import extend_pythonpath
from frx_graph.trial_worker.launch import _COMMAND

MODEL = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval(), (torch.randn(1, 8, 12, 12),)
"""
PROGRAM = """
import sys
import torch
from frx_graph.autopilot import search
from frx_graph.records import Candidate
from frx_graph.trials.arm_messages import MadeGraph
from model import build

# What measured times speak for is the machine's to say: here they do for something.
candidate = Candidate("propagate_layout", "0" * 16, ("convolution",), ("0,2,3,1",), 1e-3)
search.proposed = lambda *_: (MadeGraph("0" * 16, (candidate,)),)
model, (x,) = build()
expected = model(x)
compiled = torch.compile(model, backend="frx", options={"mode": "autopilot", "inner": "eager"})
print("ready", flush=True)
try:
    compiled(x)
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.stdin.readline()
torch._dynamo.reset()
found = torch.compile(model, backend="frx", options={"inner": "eager"})(x)
torch.testing.assert_close(found, expected)
print("goes on", flush=True)
"""


@pytest.fixture
def started(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts Python in a folder with the model, with a ledger that holds one event, marked, its temporary files in a
    folder of their own."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "temporary").mkdir()
    first = Decision(Kind.PROPOSED, *("a" * 16,) * 3, "a test", "ada", "here", 1, datetime.now(UTC))
    open_ledger(parse_location(str(tmp_path / "ledger.sqlite3"))).append([first])
    environment = {
        **os.environ,
        **extend_pythonpath(),
        MARK: str(tmp_path),
        "FRX_LEDGER": str(tmp_path / "ledger.sqlite3"),
        "TMPDIR": str(tmp_path / "temporary"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
    }

    def start(*arguments: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [sys.executable, *arguments],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            env=environment,
            cwd=tmp_path,
            start_new_session=True,
        )

    return start


def wait_for_arms(process: subprocess.Popen[str], count: int) -> None:
    """Until so many arms of a trial are running at the same time."""
    parent = psutil.Process(process.pid)
    deadline = time.monotonic() + 120
    while sum(is_running(child) for child in list_arms(parent)) < count:
        assert process.poll() is None, "it ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def list_arms(parent: psutil.Process) -> list[psutil.Process]:
    """Return the processes of arms: started by `parent`, or forked from one that is no arm itself."""
    started = parent.children()
    return [one for one in parent.children(recursive=True) if one not in started] or [
        one for one in started if not is_server(one)
    ]


def is_server(process: psutil.Process) -> bool:
    try:
        return len(process.cmdline()) > len(_COMMAND)
    except psutil.NoSuchProcess:
        return False


def is_running(process: psutil.Process) -> bool:
    """Neither a zombie nor gone; it may go while it is looked at."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def nothing_is_left(folder: Path) -> None:
    assert seconds_until_gone(str(folder)) is not None, marked(str(folder), but=0)
    assert list((folder / "temporary").iterdir()) == []
    ledger = open_to_read(parse_location(str(folder / "ledger.sqlite3")))
    assert verify(ledger) == Verification(1, None)


def to_one(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)


def to_all(process: subprocess.Popen[str]) -> None:
    """As a terminal does."""
    os.killpg(process.pid, signal.SIGINT)


def terminate(process: subprocess.Popen[str]) -> None:
    process.terminate()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("end", "arms", "code"),
    [(to_one, 1, 130), (to_all, 2, 130), (terminate, 2, -15)],
    ids=["Ctrl-C at the first arm", "Ctrl-C of the group", "SIGTERM"],
)
def test_a_trial_that_is_ended(
    started: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    end: Callable[[subprocess.Popen[str]], None],
    arms: int,
    code: int,
) -> None:
    # Quiet, since a notice names other programs on a busy machine.
    with started("-m", "frx_graph", "trial", "model.py:build", "--aa", "--inner", "eager", "--quiet") as process:
        wait_for_arms(process, arms)
        end(process)
        _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert said.strip().splitlines()[-1:] == (["frx: interrupted"] if code == 130 else [])
    nothing_is_left(tmp_path)


@pytest.mark.integration
def test_a_program_goes_on_after_ctrl_c(started: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    with started("program.py") as process:
        wait_for_arms(process, 2)
        assert list((tmp_path / "temporary").iterdir())
        to_all(process)
        assert process.stdout is not None
        # Rather than to wait for ever for what does not come.
        end = threading.Timer(120, process.kill)
        end.start()
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n", "interrupted\n"]
        end.cancel()
        assert seconds_until_gone(str(tmp_path), but=process.pid) is not None
        assert list((tmp_path / "temporary").iterdir()) == []
        said, warned = process.communicate("\n", timeout=120)
    assert (process.returncode, said) == (0, "goes on\n"), warned
    nothing_is_left(tmp_path)


def test_interrupt_wrapped_by_pydantic_is_still_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise SchemaError("Error building `literal` serializer:\n  KeyboardInterrupt: ")

    monkeypatch.setattr(PromotedPlans, "find", interrupted)
    compiled = torch.compile(lambda x: x + 1, backend="frx", options={"mode": "autopilot", "inner": "eager"})
    with pytest.raises(KeyboardInterrupt):
        compiled(torch.ones(2))


@pytest.mark.integration
def test_a_program_that_is_terminated(started: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    with started("program.py") as process:
        wait_for_arms(process, 2)
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    nothing_is_left(tmp_path)


HANDLED = """
import os, signal
from frx_graph.support.supervisor.process import unwind_on_termination

came = []
signal.signal(signal.SIGTERM, lambda *_: came.append(1))
with unwind_on_termination():
    os.kill(os.getpid(), signal.SIGTERM)
assert came
signal.signal(signal.SIGTERM, signal.SIG_DFL)
with unwind_on_termination():
    pass
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
try:
    with unwind_on_termination():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            print("cleaned up", flush=True)
except BaseException:
    print("must not go on", flush=True)
"""


def test_sigterm_handler_stays_and_the_default_still_ends_the_program() -> None:
    environment = {**os.environ, **extend_pythonpath()}
    ran = subprocess.run([sys.executable, "-c", HANDLED], capture_output=True, text=True, env=environment)
    assert (ran.returncode, ran.stdout) == (-signal.SIGTERM, "cleaned up\n"), ran.stderr


DROPPED = """
import os, signal
from frx_graph.support.supervisor.process import unwind_on_termination
from frx_graph.trials.arm_process import ArmProcess

class Dying:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

with unwind_on_termination(), ArmProcess(["sleep", "60"]) as arm:
    dying = Dying()
    del dying
    print("dropped", flush=True)
    try:
        arm.ask({}, seconds=10)
    except BaseException as error:
        print(type(error).__name__, flush=True)
        raise
"""


def test_a_sigterm_that_python_drops_ends_the_trial_at_its_next_question() -> None:
    environment = {**os.environ, **extend_pythonpath()}
    ran = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, text=True, env=environment)
    assert (ran.returncode, ran.stdout) == (-signal.SIGTERM, "dropped\nTerminated\n"), ran.stderr
