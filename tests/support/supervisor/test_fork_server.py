"""Arms that are forked from one process: as separate as those that are started, and as easily ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from frx_graph.support.supervisor.fork_server import ForkServer
from frx_graph.support.supervisor.process import extend_pythonpath, wait_for_exit
from frx_graph.trials.arm_process import ArmError, ArmProcess, Cause

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="arms are forked on Linux alone")

PROGRAM = """
import ctypes, os, signal, sys, time

from frx_graph.support.supervisor.fork_server import serve_forks
from frx_graph.trials.arm_connection import connect

server = os.getpid()
pipes = serve_forks(int(sys.argv[1]))
if pipes is not None:
    asked = connect(*pipes, server)
    for message in asked:
        do = message["do"]
        if do == "exit":
            sys.exit(3)
        if do == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if do == "sleep":
            time.sleep(60)
        if do == "print":
            print("a line", flush=True)
        asked.answer({
            "pid": os.getpid(), "session": os.getsid(0), "parent": os.getppid(), "input": sys.stdin.read(),
            "heap": ctypes.CDLL(None).sbrk(0), "mark": os.environ.get("FRX_ARM"), "given": os.environ.get("GIVEN"),
        })
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ForkServer]:
    program = tmp_path / "server.py"
    program.write_text(PROGRAM, encoding="utf-8")
    made = ForkServer([sys.executable, str(program)], {**os.environ, **extend_pythonpath()})
    yield made
    made.close()


def ask(arm: ArmProcess, do: str, seconds: float = 30.0) -> dict[str, object]:
    return arm.ask({"do": do}, seconds=seconds)


def test_forked_arms_are_separate_processes(server: ForkServer) -> None:
    with ArmProcess(server, environment={"GIVEN": "1"}) as one, ArmProcess(server) as other:
        first, second = ask(one, "tell"), ask(other, "tell")
    assert first["pid"] == first["session"] == one.pid
    assert second["pid"] == second["session"] == other.pid
    assert first["parent"] == second["parent"] != os.getpid()
    assert (first["given"], second["given"]) == ("1", None)
    assert first["mark"] != second["mark"]
    assert first["input"] == ""
    # As in a program that the kernel starts, addresses differ.
    assert first["heap"] != second["heap"]
    assert not psutil.pid_exists(one.pid)
    assert not psutil.pid_exists(other.pid)


def test_its_output_and_its_end_are_seen(server: ForkServer) -> None:
    with ArmProcess(server) as arm:
        ask(arm, "print")
        with pytest.raises(ArmError, match="ended with exit code 3") as failure:
            ask(arm, "exit")
    assert failure.value.cause is Cause.EXITED
    assert "a line" in failure.value.output


@pytest.mark.parametrize(
    ("do", "cause"), [("crash", Cause.CRASHED), ("sleep", Cause.TIMED_OUT)], ids=["crashed", "late"]
)
def test_one_arm_that_fails_leaves_the_others_alone(server: ForkServer, do: str, cause: Cause) -> None:
    with ArmProcess(server) as arm, ArmProcess(server) as other:
        with pytest.raises(ArmError) as failure:
            ask(arm, do, seconds=1.0 if do == "sleep" else 30.0)
        assert failure.value.cause is cause
        assert ask(other, "tell")["pid"] == other.pid
        with ArmProcess(server) as third:
            assert ask(third, "tell")["pid"] == third.pid


def test_arms_end_with_the_server(server: ForkServer) -> None:
    with ArmProcess(server) as arm:
        parent = ask(arm, "tell")["parent"]
        assert isinstance(parent, int)
        os.kill(parent, signal.SIGKILL)
        wait_until_gone([parent, arm.pid])
        with pytest.raises(ArmError) as failure:
            ask(arm, "tell")
        assert failure.value.cause in (Cause.KILLED, Cause.EXITED)
    with pytest.raises(ArmError, match="cannot be started") as failure:
        ArmProcess(server)
    assert failure.value.cause is Cause.NOT_STARTED


def test_the_server_and_its_arms_end_with_the_process_that_uses_them(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(PROGRAM, encoding="utf-8")
    user = f"""
import os, sys
from frx_graph.support.supervisor.fork_server import ForkServer
from frx_graph.trials.arm_process import ArmProcess
server = ForkServer([sys.executable, {str(tmp_path / "server.py")!r}], os.environ)
arm = ArmProcess(server)
print(arm.ask({{"do": "tell"}}, seconds=30)["parent"], arm.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run(
        [sys.executable, "-c", user],
        env={**os.environ, **extend_pythonpath()},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    left = [int(number) for number in done.stdout.split()]
    assert len(left) == 2
    wait_until_gone(left)


def wait_until_gone(left: list[int]) -> None:
    """The kernel ends children a moment after their parent."""
    deadline = time.monotonic() + 10
    while any(map(is_running, left)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(is_running, left))


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_forked_process_is_reaped_once(server: ForkServer) -> None:
    read, write = os.pipe()
    process = server.fork((os.dup(read), os.dup(write), write), {})
    os.close(read)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    os.kill(process.pid, signal.SIGTERM)
    assert wait_for_exit(process, 10.0)
    # Not reaped yet, so that its number stays taken.
    assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE
    assert process.wait() == process.wait() == process.returncode == -signal.SIGTERM
    assert process.has_exited()
    os.close(write)


def test_an_interrupted_request_ends_the_server(server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with ArmProcess(server) as arm:
        ask(arm, "tell")
        with monkeypatch.context() as patched:
            patched.setattr(json, "dumps", raise_interrupt)
            with pytest.raises(KeyboardInterrupt):
                server.fork((), {})
        # Its answers would no longer belong to the questions.
        with pytest.raises(OSError, match="Bad file descriptor"):
            server.fork((), {})
        wait_until_gone([arm.pid])


def raise_interrupt(*_: object, **__: object) -> str:
    raise KeyboardInterrupt


class Interrupted:
    """A socket on which another request is made while an answer is awaited."""

    def __init__(self, server: ForkServer, request: Callable[[], object]) -> None:
        self._server, self._request = server, request
        self._real = server._socket

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def recv(self, size: int) -> bytes:
        self._server._socket = self._real
        self._request()
        return self._real.recv(size)


def test_a_request_may_come_in_between(server: ForkServer) -> None:
    # As when Python collects an arm while another is started.
    with ArmProcess(server) as arm:
        ask(arm, "tell")
        arms: list[ArmProcess] = []
        server._socket = Interrupted(server, lambda: arms.append(ArmProcess(server)))  # type: ignore[assignment]
        with ArmProcess(server) as other, arms[0] as between:
            assert ask(other, "tell")["pid"] == other.pid
            assert ask(between, "tell")["pid"] == between.pid != other.pid


def test_orphans_of_an_arm_are_ended_with_it(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    leaving = """
        if do == "leave":
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    asked_pid = os.getpid()
                    open(message["file"], "w").write(str(asked_pid))
                    time.sleep(60)
                os._exit(0)
            while not os.path.exists(message["file"]):
                time.sleep(0.01)
"""
    program.write_text(
        PROGRAM.replace('        if do == "print":', leaving[1:] + '        if do == "print":'), encoding="utf-8"
    )
    server = ForkServer([sys.executable, str(program)], {**os.environ, **extend_pythonpath()})
    try:
        with ArmProcess(server) as arm:
            arm.ask({"do": "leave", "file": str(tmp_path / "orphan")}, seconds=30)
            time.sleep(0.1)
            orphan = int((tmp_path / "orphan").read_text(encoding="utf-8"))
            assert is_running(orphan)
        wait_until_gone([orphan])
    finally:
        server.close()
