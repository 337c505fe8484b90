"""How a process that was started here ends, whatever comes between."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from frx_graph.support.supervisor.process import (
    Terminated,
    defer_signals,
    finish_ending,
    has_exited,
    supervise,
    wait_for_exit,
)
from frx_graph.support.supervisor.run import run_program

SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]


def alive(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


def unwind(_number: int, _frame: object) -> None:
    raise Terminated


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def first_line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    found = b""
    while not found.endswith(b"\n"):
        found += process.stdout.read(1) or b"?\n"
    return found


def test_a_process_that_has_ended_keeps_its_exit_code() -> None:
    with supervise(shell("exit 3")) as process:
        assert wait_for_exit(process)
        # It is not reaped: what is left of its group can be signalled.
        assert process.returncode is None
    assert process.returncode == 3


def test_process_leads_its_own_session_and_reads_nothing(tmp_path: Path) -> None:
    with supervise(shell("cat; echo $$ $PWD"), stdout=subprocess.PIPE, folder=tmp_path) as process:
        assert first_line(process).split() == [str(process.pid).encode(), str(tmp_path).encode()]
        assert os.getsid(process.pid) == process.pid


def test_it_is_killed_at_once_or_asked_first() -> None:
    polite = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done"
    with supervise(shell(polite), stdout=subprocess.PIPE) as process:
        first_line(process)
    assert process.returncode == -signal.SIGKILL
    with supervise(shell(polite), stdout=subprocess.PIPE, stop_signal=signal.SIGTERM, patience=60.0) as process:
        first_line(process)
    assert process.returncode == 7
    deaf = "trap '' TERM; echo ready; while :; do sleep 0.01; done"
    with supervise(shell(deaf), stdout=subprocess.PIPE, stop_signal=signal.SIGTERM, patience=0.1) as process:
        first_line(process)
    assert process.returncode == -signal.SIGKILL


def test_what_a_leader_leaves_behind_ends_with_the_block() -> None:
    with supervise(shell("sleep 600 & echo $!"), stdout=subprocess.PIPE) as process:
        left = int(first_line(process))
        assert wait_for_exit(process)
        assert alive(left)
    assert process.returncode == 0
    # Whoever adopts it reaps it at some time.
    for _ in range(2000):
        if not alive(left) or Path(f"/proc/{left}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.01)
    pytest.fail("it goes on")


def test_an_exception_ends_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), supervise(SLEEPS) as process:
        _ = 1 / 0
    assert process.returncode == -signal.SIGKILL


def test_a_copy_of_this_process_ends_nothing() -> None:
    with contextlib.ExitStack() as life:
        process = life.enter_context(supervise(SLEEPS))
        copy = os.fork()
        if copy == 0:
            life.close()
            os._exit(0)
        os.waitpid(copy, 0)
        assert not has_exited(process)


def test_what_interrupts_an_end_waits_for_it() -> None:
    given: list[float] = []

    def end(patience: float) -> None:
        given.append(patience)
        if len(given) < 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finish_ending(end, 5.0)
    assert given == [5.0, 0.0, 0.0]
    finish_ending(end, 5.0)
    assert given[3:] == [5.0]
    with pytest.raises(ZeroDivisionError):
        finish_ending(lambda patience: print(1 / 0), 5.0)


def test_waiting_has_an_end() -> None:
    with supervise(SLEEPS) as process:
        assert not wait_for_exit(process, 0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_as_a_program_is_started_ends_it(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    started: list[int] = []
    real = subprocess.Popen

    def interrupted(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = real(*arguments, **options)
        started.append(process.pid)
        os.kill(os.getpid(), number)
        return process

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    before = signal.signal(number, unwind)
    try:
        with pytest.raises(Terminated):
            run_program(SLEEPS, limit_seconds=60)
        assert signal.getsignal(number) is unwind
    finally:
        signal.signal(number, before)
    assert len(started) == 1
    assert not alive(started[0])


def test_it_comes_when_it_is_let_through_and_handlers_are_what_they_were() -> None:
    before = signal.getsignal(signal.SIGINT)
    reached = False
    with pytest.raises(KeyboardInterrupt), defer_signals() as release:
        os.kill(os.getpid(), signal.SIGINT)
        reached = True
        release()
        pytest.fail("it did not come")
    assert reached
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt), defer_signals():
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_ignored_signals_stay_ignored() -> None:
    program = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with defer_signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert subprocess.check_output([sys.executable, "-c", program]) == b"True\n"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_get_no_signals() -> None:
    found: list[object] = []

    def run() -> None:
        with defer_signals() as release:
            release()
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]
