"""Append the events of this process to its run's file, in a separate thread.

The program's threads put events into a queue, at 0.1 µs each. When the queue is full, events are dropped and counted.
The writer's thread wakes every 0.1 s and appends whole lines by one `write` to a file opened for appending. Processes
that share the file, such as ranks, therefore never break each other's lines. A local file system guarantees that; a
network file system does not. Written data survive a crash of the process: a killed process loses at most 0.2 s.

An error here ends the recording, with one line on standard error. It never ends the program.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import multiprocessing
import multiprocessing.util
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from frx_graph.errors import summarize_error
from frx_graph.evidence.run.events import SnapshotOf
from frx_graph.runs.sdk.event_lines import Event, format_shapes, format_step_end, format_warning
from frx_graph.runs.sdk.recording_settings import warn_once
from frx_graph.runs.sdk.scalar_reading import PendingScalar

CAPACITY = 32_768
"""Events. At eight a step and 5 ms a step, 20 seconds of a disk that does not answer; about 10 MB."""
_AWAITED = object()
"""Marks an event that waits for values, in place of the function that makes its line."""
_WAKES_S = 0.1
_AT_ONCE = 256
"""Lines between two chances for the program's threads to run."""
_MOST_LATE = 1_024
_LATE_S = 60.0
"""Time to wait for a value that a device has yet to compute."""
_PATIENCE_S = 1.0
"""Time that a flush, or the end of the program, waits for such values, and for another thread's flush."""
_PATIENCE_AT_END_S = 5.0
"""Time that the end of the program waits for a disk that does not answer."""

_FIRST_STRIDE = 16
_SHARE = 64
_HARD_BOUND = 1.5
"""Times the bound. It would take 2**32 times as many steps as the bound itself has room for."""


class TraceBudget:
    """Selects the events of one process for a file that should not grow beyond `max_bytes`.

    Once the events have filled it, ever fewer steps are kept, so that the file covers the whole run: first one step in
    16, and the interval doubles each time that another 1/64 of the bound has been written. A kept step comes with the
    end of the step before it, which gives its time from end to end. A warning before the two says how many events were
    dropped. Layouts of batches are always written, since steps refer to them.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.written = 0
        """Bytes; the writer adds them up."""
        self._stride = 0
        self._next_stride_at = max_bytes
        self._steps = 0
        self._keeping = True
        self._missing = 0
        self._missing_since = self._missing_until = 0

    def admit(self, event: Event) -> tuple[Event, ...]:
        """Return what to write for this event: itself, nothing, or a warning about the missing ones and itself."""
        if self.written < self.max_bytes:
            return (event,)
        if self.written >= self.max_bytes * _HARD_BOUND:
            return ()
        ends = event[0] is format_step_end
        if self._keeping:
            self._keeping = not ends
            return (event,)
        if event[0] is format_shapes and event[3] is SnapshotOf.BATCH:
            return (event,)
        self._steps += ends
        while self.written >= self._next_stride_at:
            self._stride = self._stride * 2 or _FIRST_STRIDE
            self._next_stride_at += max(self.max_bytes // _SHARE, 1)
        if ends and self._steps >= self._stride:
            since = self._missing_since or event[1]
            message = f"the events have filled their file ({self.max_bytes} bytes); only some steps are kept"
            gap = format_warning, since, None, message, self._missing, max(since, self._missing_until)
            self._keeping = True
            self._steps = self._missing = 0
            return gap, event
        if not self._missing:
            self._missing_since = event[1]
        self._missing_until = event[1]
        self._missing += 1
        return ()


class EventWriter:
    """Writes events. `opening` returns the first events, and is called by the thread that puts the first event; None:
    this process records nothing. The thread and the file are created only then."""

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        opening: Callable[[], tuple[Event, ...] | None] = tuple,
        capacity: int = CAPACITY,
    ) -> None:
        self._path = path
        self._opening = opening
        self._capacity = capacity
        self.room = 0
        """Events that may wait; none before the first, and none once the recording has ended."""
        self._budget = TraceBudget(max_bytes)
        self.queue: deque[Event] = deque()
        self._late: deque[tuple[Event, tuple[PendingScalar, ...], float]] = deque()
        self._drops = itertools.count()
        self._drops_told = 0
        self._dropped_at: int | None = None
        self._dropped_until = 0
        self._thread: threading.Thread | None = None
        self._beginning = threading.RLock()
        self._writing = threading.Lock()
        self._process = str(os.getpid())
        self._file: int | None = None
        self._dead = False

    @property
    def begun(self) -> bool:
        """True once there was an event, or no more are accepted."""
        return self._thread is not None

    def put(self, event: Event) -> None:
        """Queue an event for the thread; never wait."""
        if len(self.queue) < self.room:
            self.queue.append(event)
        elif not self._dead:
            if not self.room:
                self._begin()
            if len(self.queue) < self.room:
                self.queue.append(event)
            elif not self._dead:
                self._drop(event)

    def put_when_ready(self, event: Event, awaited: tuple[PendingScalar, ...]) -> None:
        """Queue an event that waits for values; it is written when they have arrived."""
        self.put((_AWAITED, event[1], event[2], event, awaited))

    def flush(self) -> None:
        """Write the queue; return when it is written, or after a second."""
        deadline = time.monotonic() + _PATIENCE_S
        self._drain(_PATIENCE_S)
        while self._late and not self._dead and time.monotonic() < deadline:
            time.sleep(0.005)
            self._drain(_PATIENCE_S)

    def close(self) -> None:
        """Write the remaining events and end. Values that take over a second to arrive are left out, and later events
        are ignored."""
        if self._thread is not None and not self._dead:
            self.flush()
            self._drain(_PATIENCE_AT_END_S, all_late=True)
        self.discard()

    def discard(self) -> None:
        """Stop taking and writing events. A forked child calls this on the copy of the parent's writer."""
        self._dead, self.room = True, 0
        # No thread starts from now on, not even in a child that was forked while another thread held the lock.
        self._thread = self._thread or threading.main_thread()
        self.queue.clear()
        self._late.clear()
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                os.close(file)

    def _begin(self) -> None:
        with self._beginning:
            if self._thread is not None or self._dead:
                return
            self._thread = threading.Thread(target=self._run, name="frx-events", daemon=True)
            try:
                first = self._opening()
                if first is None:
                    self.discard()
                    return
                self.queue.extend(first)
                self._thread.start()
                self.room = self._capacity
                self._close_at_exit()
            except Exception as error:  # noqa: BLE001 - no more threads, or an interpreter that is ending
                self._fail(error)

    def _close_at_exit(self) -> None:
        atexit.register(self.close)
        if multiprocessing.parent_process() is not None:
            # Children of `multiprocessing` end without what `atexit` has.
            multiprocessing.util.Finalize(None, self.close, exitpriority=0)

    def _drop(self, event: Event) -> None:
        # A count that no other thread can spoil, without a lock, which a signal's handler would find taken.
        next(self._drops)
        self._dropped_until = event[1]
        if self._dropped_at is None:
            self._dropped_at = event[1]

    def _run(self) -> None:
        while not self._dead:
            # One call in C: `Event.wait` runs 30 lines of Python, for which the program has to wait.
            time.sleep(_WAKES_S)
            self._drain(_PATIENCE_S)

    def _drain(self, patience: float, *, all_late: bool = False) -> None:
        if self._dead:
            return
        # Not `with`: a handler of a signal may flush in the thread that is writing, and would wait forever.
        if not self._writing.acquire(timeout=patience):
            return
        try:
            self._write_late(everything=all_late)
            left, take = len(self.queue), self.queue.popleft
            while left > 0 and not self._dead:
                self._append([take() for _ in range(min(left, _AT_ONCE))])
                left -= _AT_ONCE
            self._tell_drops()
        except Exception as error:  # noqa: BLE001 - the program continues after any error
            self._fail(error)
        finally:
            self._writing.release()

    def _append(self, events: list[Event]) -> None:
        if self._late or _AWAITED in [event[0] for event in events]:
            events = self._hold_back_waiting(events)
        self._write_events(events)

    def _hold_back_waiting(self, events: list[Event]) -> list[Event]:
        """Return the events that can be written now. The end of a step that waits for nothing comes behind those that
        do: a reader of the growing file takes ends that follow each other for steps that do."""
        writable = []
        for event in events:
            awaited: tuple[PendingScalar, ...] = ()
            waits = event[0] is _AWAITED
            if waits:
                event, awaited = event[3], event[4]
            if (waits or (self._late and event[0] is format_step_end)) and len(self._late) < _MOST_LATE:
                self._late.append((event, awaited, time.monotonic() + _LATE_S))
            else:
                writable.append(event)
        return writable

    def _write_late(self, *, everything: bool) -> None:
        """Write waiting events in order: values computed later also arrive later."""
        now = time.monotonic()
        arrived = []
        while self._late:
            event, awaited, deadline = self._late[0]
            if not (everything or now > deadline or all(scalar.is_ready() for scalar in awaited)):
                break
            self._late.popleft()
            arrived.append(event)
        self._write_events(arrived)

    def _write_events(self, events: list[Event]) -> None:
        budget, process = self._budget, self._process
        if budget.written < budget.max_bytes:
            lines = [event[0](process, event) for event in events]
            size = sum(map(len, lines))
            if budget.written + size <= budget.max_bytes:
                budget.written += size
                self._write_lines(lines)
                return
        lines = []
        for event in events:
            for admitted in budget.admit(event):
                line = admitted[0](process, admitted)
                budget.written += len(line)
                lines.append(line)
        self._write_lines(lines)

    def _tell_drops(self) -> None:
        if self._dropped_at is None:
            return
        at, self._dropped_at = self._dropped_at, None
        counted = next(self._drops) - self._drops_told
        self._drops_told += counted + 1
        message = f"{counted} events were dropped: they came faster than they could be written"
        self._write_events([(format_warning, at, None, message, counted, max(at, self._dropped_until))])

    def _write_lines(self, lines: list[str]) -> None:
        if not lines:
            return
        file = self._open_file()
        data = memoryview("".join(lines).encode("ascii"))
        while data:
            data = data[os.write(file, data) :]

    def _open_file(self) -> int:
        if self._file is not None:
            return self._file
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Not blocking: a pipe without a reader would block here.
        file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
        self._file = file
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(f"{self._path} is not a regular file")
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            # A process was killed while writing; the line that follows must not be lost with its line. If it is still
            # writing, a blank line does no harm.
            os.write(file, b"\n")
        return file

    def _fail(self, error: Exception) -> None:
        self.discard()
        warn_once(f"events are no longer recorded to {self._path}: {summarize_error(error)}")
