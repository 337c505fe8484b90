"""Bundles of runs as a program and `frx collect` write them, made by hand; times in milliseconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_MS = 1_000_000
_BEGIN = 1_700_000_000_000 * _MS
_HEADER = "timestamp, index, utilization.gpu [%], utilization.memory [%], memory.used [MiB], memory.total [MiB]"


@dataclass
class WrittenRun:
    """Collects events and samples of one process; `write` makes the bundle."""

    process: int = 7
    now: float = 0.0
    number: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    samples: list[str] = field(default_factory=lambda: [_HEADER])

    def event(self, kind: str, at: float, duration: float | None = None, **payload: Any) -> None:
        """One line of the stream."""
        self.events.append(
            {
                "event_type": kind,
                "timestamp_ns": _BEGIN + round(at * _MS),
                "pid": self.process,
                "step_id": self.number,
                "duration_ns": None if duration is None else round(duration * _MS),
                "payload": payload,
            }
        )

    def step(self, ms: float = 100, wait: float | None = None, forward: float | None = None, **payload: Any) -> None:
        """A step of `ms` from batch to batch."""
        begin, end = self.now + (wait or 0), self.now + ms
        if wait is not None:
            self.event("dataloader_span", begin, wait, stage="next", num_workers=0)
        self.event("step_start", begin, step_kind="train")
        if forward is not None:
            self.event("phase_span", begin + forward, forward, phase_name="forward")
        self.event("step_end", end, end - begin, **{"step_kind": "train", "status": "ok", **payload})
        self.now, self.number = end, self.number + 1

    def batch(self, layout: int, shape: Sequence[int], strides: Sequence[int], name: str = "image") -> None:
        """What the batches that refer to `layout` look like."""
        self.event(
            "shape_snapshot",
            self.now,
            of="batch",
            layout=layout,
            shapes={name: list(shape)},
            strides={name: list(strides)},
            dtypes={name: "float32"},
        )

    def sample(self, busy: float, used_mib: int = 1000, total_mib: int = 16384) -> None:
        """A row of `gpu_metrics.csv`."""
        when = datetime.fromtimestamp((_BEGIN / 1e9) + self.now / 1e3, UTC).isoformat()
        self.samples.append(f"{when}, 0, {busy:g} %, 12 %, {used_mib} MiB, {total_mib} MiB")

    def lines(self) -> str:
        """The event stream."""
        return "".join(json.dumps(event) + "\n" for event in self.events)

    def write(self, folder: Path) -> Path:
        """The bundle, without what `frx collect` makes of it."""
        (folder / "raw").mkdir(parents=True, exist_ok=True)
        (folder / "raw" / "trace.jsonl").write_text(self.lines())
        if len(self.samples) > 1:
            (folder / "gpu_metrics.csv").write_text("\n".join(self.samples) + "\n")
        return folder


def waiting_run(steps: int = 30) -> WrittenRun:
    """One that waits for its batches 60 % of the time, with a device that is idle, and images that change strides."""
    run = WrittenRun()
    plain, channels_last = (3072, 1024, 32, 1), (3072, 1, 96, 3)
    run.batch(0, (8, 3, 32, 32), plain)
    run.batch(1, (8, 3, 32, 32), channels_last)
    for number in range(steps):
        run.step(100, wait=60, forward=20, loss=1 / (number + 1), batch_layout=int(number % 10 == 9))
        run.sample(4)
    return run
