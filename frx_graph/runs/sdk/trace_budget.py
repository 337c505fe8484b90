"""Thin the events of a run once they have filled their file.

The file then covers the whole run at a bounded size, because ever fewer steps are kept. First one step in 16 is kept.
The interval doubles each time that another 1/64 of the bound has been written. A kept step comes with the end of the
step before it, which gives its time from end to end. A warning before the two says how many events were dropped.
Layouts of batches are always written, since steps refer to them.
"""

from __future__ import annotations

from frx_graph.evidence.run.events import SnapshotOf
from frx_graph.runs.sdk.event_lines import Event, format_shapes, format_step_end, format_warning

_FIRST_STRIDE = 16
_SHARE = 64
_HARD_BOUND = 1.5
"""Times the bound. It would take 2**32 times as many steps as the bound itself has room for."""


class TraceBudget:
    """Selects the events of one process for a file that should not grow beyond `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
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
        if self.written < self._max_bytes:
            return (event,)
        if self.written >= self._max_bytes * _HARD_BOUND:
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
            self._next_stride_at += max(self._max_bytes // _SHARE, 1)
        if ends and self._steps >= self._stride:
            since = self._missing_since or event[1]
            message = f"the events have filled their file ({self._max_bytes} bytes); only some steps are kept"
            gap = format_warning, since, None, message, self._missing, max(since, self._missing_until)
            self._keeping = True
            self._steps = self._missing = 0
            return gap, event
        if not self._missing:
            self._missing_since = event[1]
        self._missing_until = event[1]
        self._missing += 1
        return ()
