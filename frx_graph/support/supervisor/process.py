"""Start a process in a new session, leave no process behind, and end cleanly after a signal.

Ctrl-C in a terminal does not reach the process. This process gets it, unwinds, and ends the other and its group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

from frx_graph.support.supervisor.forked_process import ForkedProcess

Leader = subprocess.Popen[bytes] | ForkedProcess
"""A process that leads its own session."""
Stream = int | IO[bytes] | None
"""A stream for `subprocess.Popen`; None: the stream of this process."""
_INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ENDING = (signal.SIGTERM, signal.SIGHUP)
PACKAGE_PARENT = str(Path(__file__).absolute().parents[3])
"""The folder that contains `frx_graph`."""
_SHORTEST_POLL, _LONGEST_POLL = 0.001, 0.05
"""Seconds. Python notices signals, and exceptions that another thread sends, only between two polls."""


@contextlib.contextmanager
def supervise(
    arguments: Sequence[str],
    *,
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = None,
    stderr: Stream = None,
    environment: Mapping[str, str] | None = None,
    folder: str | Path | None = None,
    stop_signal: signal.Signals = signal.SIGKILL,
    patience: float = 0.0,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `arguments`, without a shell, while the block runs; afterwards the process and its group are gone.

    A process that still runs then gets `stop_signal` first, and SIGKILL after `patience` seconds. `environment`
    replaces that of this process. Wait with `wait_for_exit`, and read `returncode` after the block. Raises `OSError` if
    the process cannot be started, and `ValueError` for arguments with a null byte.
    """
    owner = os.getpid()
    with defer_signals() as release:
        process = subprocess.Popen(
            arguments,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            bufsize=0,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
        try:
            release()
            yield process
        finally:
            # A fork of this process is not the owner.
            if os.getpid() == owner:
                end_process(process, stop_signal, patience)


def has_exited(process: Leader) -> bool:
    """Return whether the process has exited. It is not reaped, so its number cannot be reused."""
    if isinstance(process, ForkedProcess):
        return process.has_exited()
    if process.returncode is not None:
        return True
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # the kernel has reaped it, as it does while SIGCHLD is ignored
        return True


def wait_for_exit(process: Leader, seconds: float = float("inf")) -> bool:
    """Wait for up to `seconds`, and return whether the process has exited; it is not reaped."""
    deadline, pause = time.monotonic() + seconds, _SHORTEST_POLL
    while not has_exited(process):
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_POLL)
    return True


def signal_group(process: Leader, number: signal.Signals) -> None:
    """Send a signal to all processes of the group, unless the leader was reaped: its number may be reused."""
    keeps_pid = process.keeps_pid() if isinstance(process, ForkedProcess) else process.returncode is None
    if keeps_pid:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, number)


def end_process(process: Leader, stop_signal: signal.Signals = signal.SIGKILL, patience: float = 0.0) -> None:
    """End a process that leads a group, and the rest of the group; reap it, and close its pipes."""
    try:
        if stop_signal is not signal.SIGKILL and not has_exited(process):
            signal_group(process, stop_signal)
            wait_for_exit(process, patience)
    finally:
        # Also at once if Ctrl-C comes again.
        signal_group(process, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def finish_ending(end: Callable[[float], None], patience: float) -> None:
    """Call `end(patience)` until it returns, then raise the interrupt, such as Ctrl-C, that came meanwhile.

    After an interrupt `patience` is 0. An error ends the attempts.
    """
    interrupt: BaseException | None = None
    while True:
        try:
            end(patience)
            break
        except Exception:
            raise
        except BaseException as error:  # noqa: BLE001 - raised below
            interrupt, patience = error, 0.0
    if interrupt is not None:
        raise interrupt


@contextlib.contextmanager
def defer_signals() -> Iterator[Callable[[], None]]:
    """Hold back SIGINT, SIGTERM and SIGHUP until the function that this yields is called, or the block ends.

    An exception between the start of a process and the `try` that ends it would leave the process running. Processes
    started in the block handle signals as usual. Does nothing outside the main thread, where signals do not arrive.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in _INTERRUPTING}
    held = {number: handler for number, handler in handlers.items() if callable(handler)}

    def release() -> None:
        for number, handler in held.items():
            if signal.getsignal(number) is hold:
                signal.signal(number, handler)
        while came:
            first = came.pop(0)
            held[signal.Signals(first)](first, None)

    def hold(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    for number in held:
        signal.signal(number, hold)
    try:
        yield release
    finally:
        release()


_terminated_by: list[int] = []
"""Signals that arrived in the block of `unwind_on_termination`. Only the main thread has such a block."""


class Terminated(BaseException):
    """Unwinds the program that a signal has interrupted; only `unwind_on_termination` catches it."""


def raise_if_terminated() -> None:
    """Raise `Terminated` again if its signal has arrived.

    Python drops the exception of a signal handler that runs in `__del__` or in the callback of a weak reference.
    """
    if _terminated_by and threading.current_thread() is threading.main_thread():
        raise Terminated


@contextlib.contextmanager
def unwind_on_termination() -> Iterator[None]:
    """Raise `Terminated` in the block on SIGTERM or SIGHUP, and end the process by that signal afterwards.

    Signals with another handler stay as they are. Does nothing outside the main thread, where signals do not arrive.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def unwind(number: int, _frame: FrameType | None) -> None:
        _terminated_by.append(number)
        raise Terminated

    # A program that is started with nohup keeps ignoring SIGHUP.
    unhandled = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in unhandled:
        signal.signal(number, unwind)
    try:
        yield
    finally:
        for number in unhandled:
            if signal.getsignal(number) is unwind:
                signal.signal(number, signal.SIG_DFL)
        if unhandled and _terminated_by:
            # Also if other code has caught the exception.
            came = _terminated_by[-1]
            _terminated_by.clear()
            os.kill(os.getpid(), came)


def extend_pythonpath(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return `PYTHONPATH` with this package after the entries of `environment`."""
    given = environment.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join(filter(None, (given, PACKAGE_PARENT)))}
