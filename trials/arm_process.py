"""A process of its own for one arm of a trial: whatever happens in there, nothing of it outlives the trial, but for a
process that has left its session and its parent, and has cleared its environment.

Messages go through two pipes of their own, a line of JSON each way, so that what the arm prints, or the user's code in
it, is output and nothing else. The arm's side is `connection()`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from frx_graph.errors import FrxError

_POLL_SECONDS = 0.05
_GONE_SECONDS = 5.0
"""All that an arm has started is gone after so long."""
_TERMINATE_SECONDS = 0.5
"""For whoever cleans up on SIGTERM."""
_TAIL_BYTES = 16 * 1024
_CHUNK = 64 * 1024
_PIPES = "FRX_ARM_PIPES"
"""Environment variable with the two file descriptors, read and write, of the arm's side, and the id of the process that
has started it."""
_MARK = "FRX_ARM"
"""Environment variable that all processes of one arm have: those that have left its session are found by it."""


class Cause(StrEnum):
    """Why an arm has come to nothing."""

    CRASHED = "crashed"
    """A signal has ended it: a segmentation fault, an illegal instruction, or the kernel, short of memory."""
    EXITED = "exited"
    """It ended by itself in the middle."""
    TIMED_OUT = "timed out"
    FLOODED = "flooded its output"
    OUT_OF_MEMORY = "ran out of memory"
    RAISED = "raised an error"
    """It says so itself."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an arm may use. `memory_bytes` counts the resident memory of all its processes; None is no limit."""

    start_seconds: float = 120.0
    output_bytes: int = 16 * 2**20
    memory_bytes: int | None = None


class ArmError(FrxError):
    """An arm has failed: its trial has, and nothing else. `output` is the end of what it printed."""

    def __init__(self, cause: Cause, message: str, output: str = "", hint: str = "") -> None:
        super().__init__(message, hint)
        self.cause = cause
        self.output = output


def raised(answer: Mapping[str, Any], output: str = "") -> ArmError:
    """What an arm says of itself, as the error that it is."""
    cause = Cause.OUT_OF_MEMORY if answer.get("out_of_memory") else Cause.RAISED
    return ArmError(cause, answer["error"], output, answer.get("hint", ""))


class ArmProcess:
    """Starts `command` in a session of its own; a context manager that leaves no process behind.

    `environment` is added to this process's own. The command finds the pipes through `connection()`.
    """

    def __init__(
        self, command: Sequence[str], *, limits: Limits | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._limits = limits or Limits()
        self._tail: deque[bytes] = deque()
        self._printed = 0
        self._received = b""
        self._peak = 0
        self._mark = uuid.uuid4().hex
        theirs, self._write = os.pipe()
        self._read, answers = os.pipe()
        os.set_blocking(self._read, False)
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs, answers),
                env={
                    **os.environ,
                    **(environment or {}),
                    _PIPES: f"{theirs} {answers} {os.getpid()}",
                    _MARK: self._mark,
                },
                start_new_session=True,
            )
            self._seen = {self._process.pid: psutil.Process(self._process.pid)}
            self._reader = threading.Thread(target=self._drain, daemon=True)
            self._reader.start()
        except BaseException as error:
            # Also where Ctrl-C comes between: an arm that finds nobody at the other end goes by itself.
            os.close(self._write)
            os.close(self._read)
            if isinstance(error, OSError):
                raise ArmError(Cause.EXITED, f"an arm cannot be started: {error}") from error
            raise
        finally:
            os.close(theirs)
            os.close(answers)

    def __enter__(self) -> ArmProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Of the process that was started."""
        return self._process.pid

    @property
    def peak_bytes(self) -> int:
        """The largest resident memory of all its processes together that was seen."""
        return self._peak

    @property
    def output(self) -> str:
        """The end of what it has printed."""
        return b"".join(self._tail)[-_TAIL_BYTES:].decode(errors="replace")

    def ask(self, message: Mapping[str, Any], *, seconds: float) -> dict[str, Any]:
        """Its answer to `message`. Raises `ArmError` where none comes within `seconds`, or the arm says that it has
        failed; the process has been ended then."""
        try:
            self._send(message)
            answer = self._answer(time.monotonic() + seconds, seconds)
        except BaseException:
            # Ctrl-C, too: there is no telling which question the next answer would be to.
            self.stop()
            raise
        if "error" in answer:
            self.stop()
            raise raised(answer, self.output)
        return answer

    def stop(self) -> None:
        """End it with all that it has started, wherever that went; returns when they are gone."""
        deadline = time.monotonic() + _GONE_SECONDS
        self._note_all()
        self._signal(signal.SIGTERM)
        self._wait_for_end(_TERMINATE_SECONDS)
        self._note_all()
        while self._signal(signal.SIGKILL) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS / 5)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))
        for descriptor in (self._write, self._read):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._write = self._read = -1
        self._reader.join(_POLL_SECONDS * 10)

    def _send(self, message: Mapping[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        try:
            while line:
                line = line[os.write(self._write, line) :]
        except OSError:
            # It has gone: what it is that ended it is told by whoever reads.
            return

    def _answer(self, deadline: float, seconds: float) -> dict[str, Any]:
        with selectors.DefaultSelector() as ready:
            ready.register(self._read, selectors.EVENT_READ)
            while b"\n" not in self._received:
                if ready.select(min(_POLL_SECONDS, max(0.0, deadline - time.monotonic()))):
                    chunk = os.read(self._read, _CHUNK)
                    if not chunk:
                        raise self._ended()
                    self._received += chunk
                    continue
                self._check_usage()
                if time.monotonic() >= deadline:
                    raise ArmError(Cause.TIMED_OUT, f"an arm did not answer within {seconds:.0f} s", self.output)
        line, _, self._received = self._received.partition(b"\n")
        found = json.loads(line)
        if not isinstance(found, dict):
            raise ArmError(Cause.RAISED, "an arm answered something that is no answer", self.output)
        return found

    def _ended(self) -> ArmError:
        if not self._wait_for_end(_GONE_SECONDS):
            return ArmError(Cause.EXITED, "an arm closed its connection", self.output)
        self._note_all()
        code = self._process.wait()
        self._reader.join(_POLL_SECONDS * 10)
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            return ArmError(Cause.CRASHED, f"an arm was ended by {name}", self.output)
        return ArmError(Cause.EXITED, f"an arm ended with exit code {code} before it answered", self.output)

    def _check_usage(self) -> None:
        if self._printed > self._limits.output_bytes:
            raise ArmError(Cause.FLOODED, f"an arm printed more than {self._limits.output_bytes} bytes", self.output)
        used = self._note_children()
        self._peak = max(self._peak, used)
        if self._limits.memory_bytes is not None and used > self._limits.memory_bytes:
            raise ArmError(
                Cause.OUT_OF_MEMORY,
                f"an arm used {used / 2**20:.0f} MiB, and may use {self._limits.memory_bytes / 2**20:.0f}",
                self.output,
                "end other programs, or take smaller inputs",
            )

    def _note_children(self) -> int:
        """Remember all processes that descend from it, also those that will have lost their parent when it has gone;
        returns their resident memory, its own included."""
        used = 0
        with contextlib.suppress(psutil.Error):
            for process in self._seen[self._process.pid].children(recursive=True):
                self._seen[process.pid] = process
        for process in self._seen.values():
            with contextlib.suppress(psutil.Error):
                used += process.memory_info().rss
        return used

    def _note_all(self) -> None:
        """Remember its descendants, and whoever is left of its session, or has left that one, too: those have lost
        their parent."""
        self._note_children()
        # While the arm is not waited for, no other session can have its number.
        if self._process.returncode is not None:
            return
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if os.getsid(process.pid) == self._process.pid or process.environ().get(_MARK) == self._mark:
                    self._seen[process.pid] = process

    def _wait_for_end(self, seconds: float) -> bool:
        """Whether the arm ends within `seconds`. It is not waited for, so that its number remains its own."""
        deadline = time.monotonic() + seconds
        while self._process.returncode is None and self._alive(self._process.pid):
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS / 5)
        return True

    def _alive(self, number: int) -> bool:
        """Of processes seen: False for one that is a zombie, or another's by now."""
        process = self._seen.get(number)
        try:
            return process is not None and process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def _signal(self, number: int) -> bool:
        """True if there still was somebody to signal. A process id that now is somebody else's is left alone."""
        if self._process.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, number)
        alive = [process for process in self._seen.values() if self._alive(process.pid)]
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
        return bool(alive)

    def _drain(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        kept = 0
        with contextlib.suppress(OSError, ValueError), stream:
            while chunk := os.read(stream.fileno(), _CHUNK):
                self._printed += len(chunk)
                self._tail.append(chunk)
                kept += len(chunk)
                while kept - len(self._tail[0]) > _TAIL_BYTES:
                    kept -= len(self._tail.popleft())


class Connection:
    """The arm's side: questions to answer, one by one, until the trial is over."""

    def __init__(self, questions: BufferedReader, answers: BinaryIO) -> None:
        self._questions = questions
        self._answers = answers

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for line in self._questions:
            yield json.loads(line)

    def comes_question(self) -> bool:
        """Waits for one; False where nobody will ask any more."""
        return bool(self._questions.peek(1))

    def answer(self, message: Mapping[str, Any]) -> None:
        """Send the answer to the last question."""
        self._answers.write(json.dumps(message).encode() + b"\n")
        self._answers.flush()


def connection() -> Connection:
    """The connection of the process that this one was started by as an arm. It is ended when that one dies, and at once
    if it has died. Raises `RuntimeError` in any other process."""
    try:
        read, write, parent = map(int, os.environ.pop(_PIPES).split())
    except KeyError:
        raise RuntimeError("this process is no arm of a trial") from None
    for descriptor in (read, write):
        # What the arm starts does not keep the connection open.
        os.set_inheritable(descriptor, False)
    _die_with_parent(parent)
    _be_killed_first()
    return Connection(os.fdopen(read, "rb"), os.fdopen(write, "wb"))


def _be_killed_first() -> None:
    """Where the kernel runs out of memory it ends this process, and what it starts, before any other."""
    # proc(5): from -1000, never, to 1000. Whoever may not be told so is on another system, or in a sandbox.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


_PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""


def _die_with_parent(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # It has gone already, and what it has asked for waits in the pipe.
        sys.exit("whoever has started this arm has gone")
