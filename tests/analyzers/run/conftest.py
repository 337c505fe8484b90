"""Runs drawn by hand, in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from frx_graph.analyzers.run.analysis import RunRecord, analyze_record
from frx_graph.analyzers.timeline.labels import RunLabel
from frx_graph.evidence.run.events import (
    CopySpan,
    GpuSample,
    LoaderWait,
    PhaseSpan,
    ProfilerWindow,
    RecordedTensor,
    RunEvent,
    ShapeSnapshot,
    SnapshotOf,
    StepEnd,
    StepStart,
    SyncWait,
)

MS = 1_000_000
BEGIN = 1_700_000_000_000 * MS


@dataclass
class RunSketch:
    """Collects events. `step` appends one at the end of what there is: a wait for the loader, and what follows it."""

    process: int | None = 7
    now: float = 0.0
    number: int = 0
    events: list[RunEvent] = field(default_factory=list)
    samples: list[GpuSample] = field(default_factory=list)

    def at(self, ms: float) -> int:
        return BEGIN + round(ms * MS)

    def add(self, event: type[RunEvent], at: float, /, **fields: Any) -> None:
        self.events.append(event(at_ns=self.at(at), process=self.process, **fields))

    def step(
        self,
        ms: float = 100,
        *,
        wait: float | None = None,
        h2d: float | None = None,
        sync: float | None = None,
        forward: float | None = None,
        **fields: Any,
    ) -> None:
        """A step of `ms` from batch to batch, of which the wait is before its mark."""
        begin, end = self.now + (wait or 0), self.now + ms
        if wait is not None:
            self.add(LoaderWait, begin, step=self.number, duration_ns=round(wait * MS))
        self.add(StepStart, begin, step=self.number)
        at = begin
        for length, kind, extra in (
            (h2d, CopySpan, {"direction": "h2d"}),
            (forward, PhaseSpan, {"phase": "forward"}),
            (sync, SyncWait, {}),
        ):
            if length is not None:
                at += length
                self.add(kind, at, step=self.number, duration_ns=round(length * MS), **extra)
        self.add(StepEnd, end, step=self.number, duration_ns=round((end - begin) * MS), **fields)
        self.now, self.number = end, self.number + 1

    def sample(self, busy: float | None, used: int | None = None, total: int | None = None, device: int = 0) -> None:
        self.samples.append(
            GpuSample(at_ns=self.at(self.now), device=device, busy_pct=busy, memory_used=used, memory_total=total)
        )

    def batch(self, layout: int, *tensors: RecordedTensor, of: SnapshotOf = SnapshotOf.BATCH) -> None:
        self.add(
            ShapeSnapshot,
            self.now,
            step=self.number,
            of=of,
            tensors=tensors,
            layout=layout if of is SnapshotOf.BATCH else None,
        )

    def profiled(self, kernels: int | None, median_us: float | None, small: float | None) -> None:
        self.add(ProfilerWindow, self.now, kernels=kernels, median_kernel_us=median_us, small_kernels=small)

    def analyse(self) -> RunRecord:
        return analyze_record(self.events, self.samples, None)

    def labels(self) -> dict[str, RunLabel]:
        """Of all steps."""
        return {label.label: label for label in self.analyse().run.labels}


@pytest.fixture
def run() -> RunSketch:
    return RunSketch()
