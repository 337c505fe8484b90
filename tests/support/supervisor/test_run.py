"""Programs as they are run once: what they wrote, how they ended, and that nothing of them is left."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from frx_graph.support.supervisor.run import MOST_OUTPUT, ProgramRun, RunEnding, run_program


def shell(script: str, limit: float = 60.0) -> ProgramRun:
    return run_program(["/bin/sh", "-c", script], limit_seconds=limit)


def wait_for_end(orphan: int) -> None:
    """Whoever has adopted it reaps it at some time."""
    deadline = time.monotonic() + 10
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(orphan).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_program_that_ends_well() -> None:
    ran = shell("printf 'out\\000'; printf err >&2; sleep 0.05")
    assert (ran.ending, ran.exit_code, ran.output, ran.errors) == (RunEnding.EXITED, 0, b"out\0", b"err")
    assert ran.problem is None
    assert ran.seconds >= 0.05


@pytest.mark.parametrize(
    ("script", "says"),
    [("exit 3", "exit code 3"), ("kill -SEGV $$", "ended by SIGSEGV"), ("kill -40 $$", "ended by signal 40")],
)
def test_how_a_program_failed(script: str, says: str) -> None:
    ran = shell(script)
    assert ran.ending is RunEnding.EXITED
    assert ran.problem is not None
    assert says in ran.problem


def test_a_program_that_does_not_end_is_ended() -> None:
    ran = shell("echo begun; exec sleep 600", limit=2.0)
    assert (ran.ending, ran.exit_code, ran.output) == (RunEnding.TIMED_OUT, -9, b"begun\n")
    assert ran.problem is not None


def test_a_program_that_writes_without_end_is_ended() -> None:
    ran = shell("exec yes")
    assert ran.ending is RunEnding.FLOODED
    assert len(ran.output) < MOST_OUTPUT + (1 << 20)
    assert "8 MiB" in (ran.problem or "")


def test_a_program_that_wrote_too_much_and_ended_has_flooded() -> None:
    assert shell(f"head -c {MOST_OUTPUT + 1} /dev/zero").ending is RunEnding.FLOODED
    assert shell(f"head -c {MOST_OUTPUT} /dev/zero").ending is RunEnding.EXITED


def test_errors_are_kept_from_the_first_on_and_do_not_hold_a_program_up() -> None:
    ran = shell("echo first >&2; head -c 20000000 /dev/zero >&2; echo done")
    assert ran.output == b"done\n"
    assert ran.errors.startswith(b"first\n")
    assert MOST_OUTPUT < len(ran.errors) < MOST_OUTPUT + (1 << 20)


def test_there_is_nothing_to_read_and_no_shell() -> None:
    assert run_program(["/bin/cat"], limit_seconds=60).output == b""
    assert run_program(["/bin/echo", "$HOME; exit 3"], limit_seconds=60).output == b"$HOME; exit 3\n"


def test_what_cannot_be_started(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        run_program([str(tmp_path / "none")], limit_seconds=1)


@pytest.mark.parametrize("told", [True, False], ids=["told of the end", "Linux before 5.3"])
@pytest.mark.parametrize("limit", [60.0, 2.0], ids=["leader ends", "leader is ended"])
def test_child_processes_end_with_the_program(limit: float, told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that holds its output open does not hold up the run either."""
    if not told:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    # Waiting for it would take longer than a test may.
    ran = shell(f"sleep 50 & echo $!; {'exit 0' if limit == 60.0 else 'exec sleep 50'}", limit)
    assert ran.ending is (RunEnding.EXITED if limit == 60.0 else RunEnding.TIMED_OUT)
    wait_for_end(int(ran.output))


WAITS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(sys.argv[1] + ".new", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""


@pytest.fixture
def interrupt_when() -> Iterator[Callable[[Path], None]]:
    """Raises `KeyboardInterrupt` in this thread once a file is there."""
    before = signal.getsignal(signal.SIGALRM)

    def when(written: Path) -> None:
        def look(*_: object) -> None:
            if written.exists():
                signal.setitimer(signal.ITIMER_REAL, 0)
                raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, look)
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)

    yield when
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_an_interrupt_leaves_nothing(tmp_path: Path, interrupt_when: Callable[[Path], None]) -> None:
    written = tmp_path / "pids"
    interrupt_when(written)
    with pytest.raises(KeyboardInterrupt):
        run_program([sys.executable, "-c", WAITS, str(written)], limit_seconds=600)
    leader, child = map(int, written.read_text().split())
    assert not psutil.pid_exists(leader)
    wait_for_end(child)


def test_no_descriptor_is_left_open() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        shell("echo x")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
