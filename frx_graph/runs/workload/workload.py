"""Run a user's program, pass its output and signals on at once, and leave no process behind.

A small guard process (`workload_guard`) ends the workload if this process is killed. The workload runs in a new
session: a terminal's Ctrl-C reaches this process, which passes it on. Standard input of the workload may be a pipe or a
file, but not a terminal.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from frx_graph.errors import FrxError
from frx_graph.runs.workload.guarded_process import GuardedProcess, adopt_orphans
from frx_graph.runs.workload.workload_output import WorkloadLog, WorkloadOutput
from frx_graph.support.plain_text import escape_surrogates

_FORWARDED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PATIENCE: Final = 25.0
"""Seconds that a workload has to end after SIGTERM or SIGHUP came, or its time was over. Slurm (`KillWait`) and
Kubernetes (`terminationGracePeriodSeconds`) wait for 30 before they kill, and something is left to do then. Ctrl-C has
no such limit: a second one kills."""
_ONE_SIGNAL: Final = 0.5
"""Seconds: a second signal within them is the first one again. `timeout` signals a process and its group, too."""
_POLL_SECONDS: Final = 0.1
_AFTER: Final = "the program comes after --"
STDOUT: Final = 1
STDERR: Final = 2

REDACTED: Final = "[redacted]"
_SECRET = re.compile(
    r"(token|secrets?|passwd|password|passphrase|credentials?|apikey)$|(^|[-_.])(key|keys|auth|authorization|pw)$",
    re.IGNORECASE,
)
"""Endings of names of options or variables whose values are secret: `--hf-token`, `AWS_SECRET_ACCESS_KEY`; neither
`--tokenizer` nor `--max-tokens`."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_USER_OF_URL = re.compile(r"(?<=://)[^/@\s]*(?=@)")


class WorkloadError(FrxError):
    """The workload could not be started."""


@dataclass(frozen=True, slots=True)
class WorkloadEnd:
    """The end of a workload. One of `exit_code` and `signal` is None."""

    exit_code: int | None
    signal: int | None
    """The signal that ended the workload."""
    seconds: float
    """From the workload's start to its end, without processes that it left behind."""
    log_problem: str | None = None
    """The reason why the log is incomplete, for people."""

    @property
    def shell_code(self) -> int:
        """The exit code that a shell gives it: 128 and the signal if one has ended it."""
        return 128 + self.signal if self.signal is not None else self.exit_code or 0


def run_workload(
    command: Sequence[str],
    *,
    log: Path | None = None,
    environment: Mapping[str, str] | None = None,
    patience_seconds: float = _PATIENCE,
    stdout: int | None = STDOUT,
    stderr: int | None = STDERR,
    started: Callable[[int], None] | None = None,
) -> WorkloadEnd:
    """Run `command`, without a shell, to its end.

    Its output goes to the descriptors `stdout` and `stderr`, None for nowhere, and to the file `log`. `environment`
    replaces that of this process. `started` is called with the id of a process whose descendants are the workload's
    processes. SIGINT, SIGTERM and SIGHUP are passed on while it runs, and the second one kills. Outside the main thread
    they are not handled. Raises `WorkloadError` if it cannot be started.
    """
    with contextlib.ExitStack() as stack:
        try:
            kept = None if log is None else WorkloadLog(log)
        except OSError as error:
            raise WorkloadError(f"{log} cannot be written: {error.strerror or error}") from None
        guarded = GuardedProcess()
        end_orphans = stack.enter_context(adopt_orphans())
        signals = _SignalForwarder(guarded.send, patience_seconds)
        stack.enter_context(signals.forward_signals())
        stack.callback(guarded.close)
        # A process outside of the terminal's session gets an error for what it reads there.
        stdin = subprocess.DEVNULL if os.isatty(0) else None
        try:
            guard = guarded.start(command, environment, stdin, subprocess.PIPE, subprocess.PIPE)
        except (OSError, ValueError) as error:
            raise WorkloadError(f"{command[0]} cannot be started: {error}") from None
        assert guard.stdout is not None
        assert guard.stderr is not None
        output = WorkloadOutput({guard.stdout: stdout, guard.stderr: stderr}, kept)
        stack.callback(output.close)
        stack.callback(_end_workload, guarded, guard, end_orphans)
        tell = functools.partial(started or (lambda _: None), guard.pid)
        end = _follow_guard(guarded, command[0], signals, tell)
        output.finish(lambda: signals.killed)
    if kept is None:
        return end
    kept.close()
    return dataclasses.replace(end, log_problem=kept.problem)


def _end_workload(guarded: GuardedProcess, guard: subprocess.Popen[bytes], end_orphans: Callable[[], None]) -> None:
    guarded.close()
    if guard.returncode < 0:
        # Another process has killed the guard, so its work is left to this one.
        end_orphans()


def _follow_guard(
    guarded: GuardedProcess, name: str, signals: _SignalForwarder, started: Callable[[], None]
) -> WorkloadEnd:
    begin = time.monotonic()
    while True:
        match guarded.read_words(_POLL_SECONDS):
            case ["started", _]:
                started()
            case ["failed", error]:
                raise WorkloadError(f"{name} cannot be started: {os.strerror(int(error))}", _AFTER)
            case ["ended", said, seconds, _]:
                code = int(said)
                exit_code, killer = (code, None) if code >= 0 else (None, -code)
                return WorkloadEnd(exit_code, killer, float(seconds))
            case _ if guarded.silent:
                # The workload was killed with its guard.
                return WorkloadEnd(None, signal.SIGKILL, time.monotonic() - begin)
        signals.kill_if_due()


class _SignalForwarder:
    def __init__(self, send: Callable[[int], None], patience_seconds: float) -> None:
        self._send = send
        self._patience = patience_seconds
        self._first: float | None = None
        self._kill_at = math.inf
        self.killed = False

    @contextlib.contextmanager
    def forward_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in _FORWARDED}
        # Who was started with nohup ignores SIGHUP, as the workload does then. None: it is handled by no Python code.
        ours = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
        for number in ours:
            signal.signal(number, self._handle_signal)
        try:
            yield
        finally:
            for number in ours:
                signal.signal(number, before[number])

    def kill_if_due(self) -> None:
        if time.monotonic() >= self._kill_at:
            self._kill()

    def _handle_signal(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = now
            self._send(number)
            if number != signal.SIGINT:
                self._kill_at = min(self._kill_at, now + self._patience)
        elif now > self._first + _ONE_SIGNAL:
            self._kill()

    def _kill(self) -> None:
        self.killed, self._kill_at = True, math.inf
        self._send(signal.SIGKILL)


def redact_secrets(command: Sequence[str]) -> tuple[str, ...]:
    """Return the command without the values of `--api-key=X`, `--api-key X` and `API_KEY=X`, and without the user of a
    URL. It may be any bytes; the result can be encoded."""
    shown: list[str] = []
    hide = False
    for word in map(escape_surrogates, command):
        name, is_set, _ = word.partition("=")
        hidden = hide and not word.startswith("-")
        secret = not hidden and _SECRET.search(_CAMEL.sub("-", name)) is not None
        hide = secret and not is_set and name.startswith("-")
        plain = f"{name}={REDACTED}" if secret and is_set else _USER_OF_URL.sub(REDACTED, word)
        shown.append(REDACTED if hidden else plain)
    return tuple(shown)
