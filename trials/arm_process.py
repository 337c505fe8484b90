"""Run one arm of a trial in a separate process.

The arm's processes end with the trial, except one that has left its session and its parent and cleared its environment.

Messages go through two separate pipes, a line of JSON each way. Text that the arm or the user's code prints is
therefore never read as a message. The arm's side is `frx_graph.trials.arm_connection`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import time
import uuid
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import IO, Any

import psutil

from frx_graph.errors import FrxError
from frx_graph.support.supervisor.family import MARK, ProcessFamily
from frx_graph.support.supervisor.fork_server import ForkServer
from frx_graph.support.supervisor.lines import LineReader, LineTooLongError, OutputTail
from frx_graph.support.supervisor.process import Leader, end_process, finish_ending, raise_if_terminated
from frx_graph.support.supervisor.run import get_signal_name
from frx_graph.trials.arm_connection import PIPES

_POLL_SECONDS = 0.05
_TERMINATE_SECONDS = 0.5
"""Time to clean up on SIGTERM."""
_ENDING_SECONDS = 0.5
"""Seconds between the closing of an arm's pipe and its end: the kernel does one after the other."""
_SHARED_SECONDS = 1.0
"""Seconds between two measurements of shared memory, which hold up the arm. Nothing else shows that forked processes
have come to own memory that they shared."""
_QUOTED_LINES = 3
"""Lines of a traceback's end, which show the error and its place."""
_QUOTED_CHARACTERS = 160
_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""Colours and other control sequences of a terminal (ECMA-48)."""
NO_ANSWER = "an arm sent an invalid answer"


class Cause(StrEnum):
    """The reason why an arm failed."""

    NOT_STARTED = "not started"
    """The process, a pipe or a thread could not be created."""
    CRASHED = "crashed"
    """The arm crashed by a signal: a segmentation fault, an illegal instruction."""
    KILLED = "killed"
    """SIGKILL ended the arm. The kernel, short of memory, or another program sent it."""
    EXITED = "exited"
    TIMED_OUT = "timed out"
    FLOODED = "flooded its output"
    OUT_OF_MEMORY = "ran out of memory"
    RAISED = "raised an error"
    """The arm reported a failure, or sent an invalid answer."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`memory_bytes` limits the resident memory of all the arm's processes, what they share counted once;
    None for no limit."""

    output_bytes: int = 16 * 2**20
    memory_bytes: int | None = None


class ArmError(FrxError):
    """An arm has failed, and so has its trial, but nothing else. The message quotes the last lines of the `output`,
    unless the arm has reported the error."""

    def __init__(self, cause: Cause, message: str, output: str = "", hint: str = "") -> None:
        last = "" if cause is Cause.RAISED else quote_last_lines(output)
        super().__init__(f"{message}; it has printed last: {last}" if last else message, hint)
        self.cause = cause
        self.output = output


def make_arm_error(answer: Mapping[str, Any], output: str = "") -> ArmError:
    """Return an arm's own error message as an error."""
    cause = Cause.OUT_OF_MEMORY if answer.get("out_of_memory") else Cause.RAISED
    return ArmError(cause, str(answer["error"]), output, str(answer.get("hint", "")))


class ArmProcess(contextlib.AbstractContextManager["ArmProcess"]):
    """Starts `command` in a new session, with `environment` added to this process's own, or forks it from a server; a
    context manager that leaves no process behind. An arm without references is ended, too, as after a Ctrl-C before the
    caller has stored it. The command finds the pipes by `arm_connection.connect_to_parent()`. Raises `ArmError` if it
    cannot be started."""

    def __init__(
        self,
        command: Sequence[str] | ForkServer,
        *,
        limits: Limits | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self._begun: Mapping[str, Any] | None = None
        self._resident_allowed = 0
        self._own_seen = 0.0
        theirs: list[int] = []
        ours: list[int] = []
        process: Leader | None = None
        stream: IO[bytes] | None = None
        try:
            for reading, writing in ((theirs, ours), (ours, theirs)):
                read, write = os.pipe()
                reading.append(read)
                writing.append(write)
            for descriptor in ours:
                os.set_blocking(descriptor, False)
            output, printed = os.pipe()
            theirs.append(printed)
            stream = os.fdopen(output, "rb", buffering=0)
            mark = uuid.uuid4().hex
            variables = {**(environment or {}), MARK: mark}
            process = (
                command.fork(theirs, variables)
                if isinstance(command, ForkServer)
                else _start_command(command, theirs, variables)
            )
            self._family = ProcessFamily(process, mark)
            self._output = OutputTail(stream)
            self._ours = ours
            self._answers = LineReader(ours[1], self.limits.output_bytes)
            # Last, since an error before is handled here.
            self._left = weakref.finalize(self, _end_unstopped_arm, os.getpid(), self._family, ours)
        except BaseException as error:
            # Also after a Ctrl-C in between: an arm whose connection is closed ends by itself.
            _close(ours)
            if stream is not None:
                stream.close()
            if process is not None:
                end_process(process)
            # That there can be no more threads is a RuntimeError.
            if isinstance(error, (OSError, psutil.Error, RuntimeError)):
                raise ArmError(Cause.NOT_STARTED, f"an arm cannot be started: {error}") from error
            raise
        finally:
            _close(theirs)

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The number of the process that was started."""
        return self._family.pid

    @property
    def output(self) -> str:
        """The end of the arm's output."""
        return self._output.get_tail()

    def begin(self, message: Mapping[str, Any]) -> None:
        """Let the arm work on `message`, which must be the next that it is asked. Failures are raised then."""
        line = json.dumps(message).encode() + b"\n"
        write, _ = self._ours
        # A pipe takes up to 4 KiB as a whole or not at all (PIPE_BUF); what it does not take is sent when asked.
        if len(line) <= select.PIPE_BUF:
            with contextlib.suppress(OSError):
                os.write(write, line)
                self._begun = message

    def ask(self, message: Mapping[str, Any], *, seconds: float) -> dict[str, Any]:
        """Return the arm's answer to `message`. Raises `ArmError` if none comes within `seconds`, or the arm reports a
        failure; the process has then been ended."""
        deadline = time.monotonic() + seconds
        try:
            raise_if_terminated()
            if self._begun is None:
                self._send(message, deadline, seconds)
            elif message != self._begun:
                raise ValueError("an arm is asked something else than what it has begun")
            self._begun = None
            answer = self._read_answer(deadline, seconds)
        except BaseException:
            # Also after Ctrl-C, since the next answer might belong to an earlier question.
            self.stop()
            raise
        if "error" in answer:
            self.stop()
            raise make_arm_error(answer, self.output)
        return answer

    def stop(self) -> None:
        """End the arm and all its descendants, in any session; return when they are gone. Interrupts, such as a second
        Ctrl-C, are deferred until then."""
        try:
            finish_ending(self._end, _TERMINATE_SECONDS)
        finally:
            self._output.join()

    def _end(self, patience: float) -> None:
        if self._left.alive:
            self._family.end(patience)
            _close(self._ours)
            self._left.detach()

    def _send(self, message: Mapping[str, Any], deadline: float, seconds: float) -> None:
        write, _ = self._ours
        line = memoryview(json.dumps(message).encode() + b"\n")
        ready = select.poll()
        ready.register(write, select.POLLOUT)
        while line:
            # An arm that does not read leaves the pipe full.
            if not ready.poll(1000 * _get_poll_seconds(deadline)):
                self._check(deadline, seconds)
                continue
            try:
                line = line[os.write(write, line) :]
            except BlockingIOError:
                continue
            except OSError:
                # It has gone: the next read finds out why.
                return

    def _read_answer(self, deadline: float, seconds: float) -> dict[str, Any]:
        try:
            while (line := self._answers.read_line(_get_poll_seconds(deadline))) is None:
                if self._answers.ended:
                    raise self._make_end_error()
                self._check(deadline, seconds)
        except LineTooLongError:
            raise self._make_flood_error("answered with") from None
        found = None
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(line)
        if not isinstance(found, dict):
            raise ArmError(Cause.RAISED, NO_ANSWER, self.output)
        return found

    def _make_end_error(self) -> ArmError:
        if not self._family.wait_for_leader(_ENDING_SECONDS):
            return ArmError(Cause.EXITED, "an arm closed its connection", self.output)
        code = self._family.reap_leader()
        self._output.join()
        if code < 0:
            cause = Cause.KILLED if -code == signal.SIGKILL else Cause.CRASHED
            return ArmError(cause, f"an arm was ended by {get_signal_name(-code)}", self.output)
        return ArmError(Cause.EXITED, f"an arm ended with exit code {code} before it answered", self.output)

    def _check(self, deadline: float, seconds: float) -> None:
        """Raise `ArmError` if the arm exceeds its memory, its output or its time."""
        if self._output.printed > self.limits.output_bytes:
            raise self._make_flood_error("printed")
        self._check_memory()
        if time.monotonic() >= deadline:
            raise ArmError(Cause.TIMED_OUT, f"an arm did not answer within {seconds:.0f} s", self.output)

    def _check_memory(self) -> None:
        allowed = self.limits.memory_bytes
        # Resident memory is quick to read, and never less than used memory.
        resident = self._family.measure_memory()
        if allowed is None or resident <= allowed:
            return
        if resident <= self._resident_allowed and time.monotonic() < self._own_seen + _SHARED_SECONDS:
            return
        used = self._family.measure_own_memory()
        if used > allowed:
            raise ArmError(
                Cause.OUT_OF_MEMORY,
                f"an arm used {used / 2**20:.0f} MiB, and may use {allowed / 2**20:.0f}",
                self.output,
                "end other programs, or take smaller inputs",
            )
        # Of what comes to be resident no more than all can be its own.
        self._resident_allowed = resident + allowed - used
        self._own_seen = time.monotonic()

    def _make_flood_error(self, how: str) -> ArmError:
        return ArmError(Cause.FLOODED, f"an arm {how} more than {self.limits.output_bytes} bytes", self.output)


def _start_command(command: Sequence[str], theirs: Sequence[int], variables: Mapping[str, str]) -> Leader:
    questions, answers, output = theirs
    return subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=(questions, answers),
        env={**os.environ, **variables, PIPES: f"{questions} {answers} {os.getpid()}"},
        start_new_session=True,
    )


def _get_poll_seconds(deadline: float) -> float:
    return min(_POLL_SECONDS, max(0.0, deadline - time.monotonic()))


def quote_last_lines(text: str) -> str:
    """Return the last non-empty lines of an output, joined in one. Characters that do not print are left out."""
    printable = ("".join(c for c in line if c.isprintable()).strip() for line in _ESCAPE.sub("", text).splitlines())
    last = [line for line in printable if line][-_QUOTED_LINES:]
    return " | ".join(
        line if len(line) <= _QUOTED_CHARACTERS else f"{line[: _QUOTED_CHARACTERS - 1]}…" for line in last
    )


def _end_unstopped_arm(owner: int, family: ProcessFamily, ours: list[int]) -> None:
    """End an arm that was not stopped, unless this process is a fork of the arm's owner."""
    if os.getpid() == owner:
        family.end(0.0)
    _close(ours)


def _close(descriptors: list[int]) -> None:
    while descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptors.pop())
