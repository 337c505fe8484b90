"""A workload in processes of its own that can be stopped and continued as a whole: the keeper's other end.

`frx_graph.runs.tune.keeper` says what the keeper does.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from frx_graph.errors import TrialError
from frx_graph.runs.tune import keeper
from frx_graph.termination import held_back
from frx_graph.trials.process_family import MARK, ProcessFamily

_ANSWER_SECONDS = 10.0
_TERMINATE_SECONDS = 1.0
"""For whoever cleans up on SIGTERM, such as a data loader that has shared memory."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When the workload was stopped or continued, in nanoseconds since the epoch: before it was, so that a step that
    ends before a stop has ended without it, and one that begins after a continuation has begun behind it.

    `cpu_seconds` is what all of its processes have used of the processors so far; it is counted while they stand.
    """

    at_ns: int
    cpu_seconds: float


class KeptWorkload:
    """Starts `command`, by no shell, with nothing on standard input and its output in `stdout.log` and `stderr.log` of
    `folder`. Raises `TrialError` for what cannot be started. To be ended by `end`."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self.exit_code: int | None = None
        """Once it is known that the workload has ended; a signal's number is negative."""
        self._received = b""
        theirs: list[int] = []
        ours: list[int] = []
        mark = uuid.uuid4().hex
        with held_back() as release, contextlib.ExitStack() as undo:
            for reading, writing in ((theirs, ours), (ours, theirs)):
                read, write = os.pipe()
                undo.callback(os.close, read)
                undo.callback(os.close, write)
                reading.append(read)
                writing.append(write)
            with (folder / "stdout.log").open("wb") as output, (folder / "stderr.log").open("wb") as errors:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", keeper.__file__, *map(str, theirs), *command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    pass_fds=theirs,
                    env={**environment, MARK: mark},
                    start_new_session=True,
                )
            undo.pop_all()
            self._asking, self._answering = ours
            for descriptor in theirs:
                os.close(descriptor)
            self._keeper = process
            self._family = ProcessFamily(process, mark)
            try:
                release()
                started = self._answer()
            except BaseException:
                self.end(0.0)
                raise
        if "pid" not in started:
            self.end(0.0)
            raise TrialError(f"{command[0]} cannot be started: {started.get('error', 'it says nothing')}")
        self.pid = int(started["pid"])

    def pause(self) -> Moment:
        """Stop all of its processes; returns when they stand."""
        return self._moment("pause")

    def resume(self) -> Moment:
        """Let all of its processes go on."""
        return self._moment("resume")

    def ended(self) -> bool:
        """Whether the workload has come to its own end; then `exit_code` says how."""
        while self.exit_code is None and self._ready(0.0):
            if not self._read():
                break
        return self.exit_code is not None

    def memory_bytes(self) -> int:
        """Resident memory of all of its processes; pages that they share count in each."""
        with contextlib.suppress(psutil.Error, OSError):
            keeper_has = psutil.Process(self._keeper.pid).memory_info().rss
            return max(0, self._family.memory_bytes() - keeper_has)
        return 0

    def end(self, patience: float = _TERMINATE_SECONDS) -> None:
        """End all of its processes, stopped ones too; returns when they are gone. What interrupts that waits until
        then."""
        interrupt: BaseException | None = None
        while self._keeper.returncode is None:
            try:
                if patience and self.exit_code is None and self._keeper.poll() is None:
                    with contextlib.suppress(OSError, TrialError):
                        self._ask(f"end {patience}", patience + _ANSWER_SECONDS)
                # A keeper without a connection kills what is left, and goes.
                self._close()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._keeper.wait(_ANSWER_SECONDS)
                if self._keeper.returncode is None:
                    self._family.end(0.0)
            except Exception:
                raise
            except BaseException as error:  # noqa: BLE001 - raised below
                interrupt, patience = error, 0.0
        self._close()
        if interrupt is not None:
            raise interrupt

    def _close(self) -> None:
        for descriptor in (self._asking, self._answering):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._asking = self._answering = -1

    def _moment(self, command: str) -> Moment:
        answer = self._ask(command, _ANSWER_SECONDS)
        return Moment(int(answer["at_ns"]), float(answer["cpu_seconds"]))

    def _ask(self, command: str, seconds: float) -> dict[str, Any]:
        os.write(self._asking, command.encode() + b"\n")
        return self._answer(seconds)

    def _answer(self, seconds: float = _ANSWER_SECONDS) -> dict[str, Any]:
        """The next line that answers, past one that tells of the workload's end. Raises `TrialError` without one."""
        deadline = time.monotonic() + seconds
        while True:
            line, found, rest = self._received.partition(b"\n")
            if found:
                self._received = rest
                answer: dict[str, Any] = json.loads(line)
                if "exit_code" not in answer:
                    return answer
                self.exit_code = answer["exit_code"]
                continue
            if not self._ready(max(0.0, deadline - time.monotonic())) or not self._read_more():
                raise TrialError("what holds the workload's processes has gone", "somebody has ended it: try again")

    def _read(self) -> bool:
        """What came unasked. False where nothing will come any more."""
        more = self._read_more()
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            self.exit_code = json.loads(line).get("exit_code", self.exit_code)
        return more

    def _read_more(self) -> bool:
        chunk = os.read(self._answering, 4096)
        self._received += chunk
        return bool(chunk)

    def _ready(self, seconds: float) -> bool:
        if self._answering < 0:
            return False
        ready = select.poll()
        ready.register(self._answering, select.POLLIN)
        return bool(ready.poll(1000 * seconds))
