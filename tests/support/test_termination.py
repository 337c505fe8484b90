"""What is started while a signal comes is ended with everything else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from frx_graph.measure.program_run import run_program
from frx_graph.support.termination import Terminated, held_back

SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]


def alive(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


def unwind(_number: int, _frame: object) -> None:
    raise Terminated


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
    with pytest.raises(KeyboardInterrupt), held_back() as release:
        os.kill(os.getpid(), signal.SIGINT)
        reached = True
        release()
        pytest.fail("it did not come")
    assert reached
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt), held_back():
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_what_is_ignored_stays_so() -> None:
    program = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with held_back():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert subprocess.check_output([sys.executable, "-c", program]) == b"True\n"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_get_no_signals() -> None:
    found: list[object] = []

    def run() -> None:
        with held_back() as release:
            release()
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]
