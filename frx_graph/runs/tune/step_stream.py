"""The steps of a workload, read from its event stream while it grows.

Only what a tune goes by: when each step ended, how many samples it had, its loss and what the program measured of
itself. Steps are those of the process that was first to end one; of a distributed program that is one rank.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frx_graph.evidence.run.events import EventType, SnapshotOf

_LONGEST_LINE = 1 << 20
_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True, slots=True)
class Step:
    """One step that has ended, at `end_ns` nanoseconds since the epoch. None: not told."""

    end_ns: int
    samples: int | None = None
    loss: float | None = None
    metrics: tuple[tuple[str, float], ...] = ()


class StepStream:
    """Reads `path`, which need not be there yet. A line that is no event is passed over; one that is not whole yet
    waits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""
        self._process: object = None
        self._batch_sizes: dict[int, int] = {}
        self._loader_batch: int | None = None
        self._last_batch: int | None = None
        self.workers: int | None = None
        """Of the data loader, as far as the stream tells."""
        self.layouts: set[int] = set()
        """Numbers of the layouts that batches have had."""

    def read(self) -> list[Step]:
        """The steps that have come since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                chunk = file.read()
        except OSError:
            return []
        self._offset += len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            self._rest = b""
        return [step for line in lines if (step := self._step(line)) is not None]

    def _step(self, line: bytes) -> Step | None:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(event, dict):
            return None
        given = event.get("payload")
        payload: Mapping[str, Any] = given if isinstance(given, dict) else {}
        match event.get("event_type"):
            case EventType.SHAPES if payload.get("of", SnapshotOf.BATCH) == SnapshotOf.BATCH:
                self._note_snapshot(payload)
            case EventType.LOADER:
                self._loader_batch = _count(payload.get("batch_size")) or self._loader_batch
                workers = payload.get("num_workers")
                self.workers = workers if _is_count(workers) else self.workers
            case EventType.STEP_END:
                return self._ended(event, payload)
        return None

    def _note_snapshot(self, payload: Mapping[str, Any]) -> None:
        size, layout = _count(payload.get("batch_size")), payload.get("layout")
        self._last_batch = size or self._last_batch
        if _is_count(layout):
            self.layouts.add(layout)
            if size is not None:
                self._batch_sizes[layout] = size

    def _ended(self, event: Mapping[str, Any], payload: Mapping[str, Any]) -> Step | None:
        end, process = event.get("timestamp_ns"), event.get("pid")
        if not _is_count(end):
            return None
        self._process = self._process if self._process is not None else process
        if process != self._process:
            return None
        layout = payload.get("batch_layout")
        known = self._batch_sizes.get(layout) if _is_count(layout) else None
        metrics = payload.get("metrics")
        return Step(
            end_ns=end,
            samples=known or self._last_batch or self._loader_batch,
            loss=_number(payload.get("loss")),
            metrics=tuple(
                (str(name), number)
                for name, value in (metrics.items() if isinstance(metrics, dict) else ())
                if (number := _number(value)) is not None
            ),
        )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _number(value: object) -> float | None:
    if isinstance(value, str):
        return _NUMBERS.get(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
