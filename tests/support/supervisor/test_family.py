"""A process and what it has started: nobody is lost, whoever goes while it is looked at."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator

import psutil
import pytest

from frx_graph.support.supervisor.family import MARK, ProcessFamily


def started(*command: str, mark: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, MARK: mark}
    return subprocess.Popen(command, start_new_session=True, env=environment, stdout=subprocess.PIPE)


@pytest.fixture
def leader() -> Iterator[subprocess.Popen[bytes]]:
    process = started("sleep", "600", mark="a test's own")
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize(
    "method", ["children", "memory_info", "environ", "status", "is_running", "send_signal", "__init__"]
)
@pytest.mark.parametrize(
    "error", [FileNotFoundError(), ProcessLookupError(), PermissionError(), psutil.NoSuchProcess(1)], ids=repr
)
def test_one_that_goes_while_it_is_looked_at(
    leader: subprocess.Popen[bytes], method: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object, **__: object) -> None:
        raise error

    family = ProcessFamily(leader, "a test's own")
    monkeypatch.setattr(psutil.Process, method, gone)
    if isinstance(error, PermissionError):
        # Nobody can tell that it does not run: it is waited for, here not for as long.
        monkeypatch.setattr("frx_graph.support.supervisor.family._GONE_SECONDS", 0.2)
    assert family.measure_memory() >= 0
    family.end(0.0)
    assert leader.wait(10) in (-signal.SIGTERM, -signal.SIGKILL)


def test_memory_shared_by_forked_processes_counts_once() -> None:
    hoard = 100 * 2**20
    # By one call, so that no other's comes between, whatever the buffering.
    code = f"import os, time; hoard = os.urandom({hoard}); [os.fork() for _ in range(2)]; os.write(1, b'x\\n')"
    mark = uuid.uuid4().hex
    process = started(sys.executable, "-c", f"{code}; time.sleep(600)", mark=mark)
    assert process.stdout is not None
    for _ in range(4):
        assert process.stdout.readline() == b"x\n"
    family = ProcessFamily(process, mark)
    assert family.measure_memory() > 4 * hoard
    assert hoard < family.measure_own_memory() < 2 * hoard
    family.end(0.0)
    process.communicate()


@pytest.mark.parametrize("method", ["memory_full_info", "memory_info"])
def test_unavailable_memory_falls_back_to_resident_memory(
    leader: subprocess.Popen[bytes], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise psutil.AccessDenied

    family = ProcessFamily(leader, "a test's own")
    # Before it has loaded its libraries, it shares no memory.
    while (resident := family.measure_memory()) < 2**19:
        time.sleep(0.01)
    monkeypatch.setattr(psutil.Process, method, refused)
    assert (family.measure_own_memory() == resident > 0) is (method == "memory_full_info")


def test_vanished_process_does_not_hide_a_marked_grandchild(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grandchild that has left session and parent is found by its mark, whoever comes before it."""
    mark = uuid.uuid4().hex
    process = started("sh", "-c", "(setsid sleep 602 & echo $!); exec sleep 601 >/dev/null", mark=mark)
    assert process.stdout is not None
    left = int(process.stdout.readline())
    while any(child.pid == left for child in psutil.Process(process.pid).children(recursive=True)):
        time.sleep(0.01)
    family = ProcessFamily(process, mark)
    others = {number for number in psutil.pids() if number < left and number != process.pid}
    plain = psutil.Process.__init__

    def goes(self: psutil.Process, number: int | None = None) -> None:
        if number in others:
            raise FileNotFoundError
        plain(self, number)

    with monkeypatch.context() as racing:
        racing.setattr(psutil.Process, "__init__", goes)
        family.end(0.0)
    assert process.returncode is not None
    with contextlib.suppress(psutil.NoSuchProcess):
        assert psutil.Process(left).status() == psutil.STATUS_ZOMBIE
    process.communicate()
