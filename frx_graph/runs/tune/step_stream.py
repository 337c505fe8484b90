"""Read the steps of a workload from its event stream while it grows, and select those of a block that count.

It reads only the data that a tune uses: the end of each step, its number of samples, its loss, and the program's own
measurements. Steps come from the process that ended a step first; in a distributed program that is one rank.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic_core import from_json

from frx_graph.evidence.run.event_fields import UnusableEventError, parse_event
from frx_graph.evidence.run.event_stream import LONGEST_LINE
from frx_graph.evidence.run.events import LoaderMark, LoaderWait, ShapeSnapshot, SnapshotOf, StepEnd
from frx_graph.trials.configuration_trial import StepBlock
from frx_graph.trials.schedule import Arm

_AT_ONCE = 1 << 24

FEWEST_SETTLING = 2
"""Steps that do not count once a block has settled, even without workers."""
SETTLE_NS = 250_000_000
"""Nanoseconds after a stop in which no step counts. Caches are cold then, and workers have batches ready that the
program has not waited for. Without it, gains of steps of 11 ms were claimed up to 14 points below the wall clock's."""


@dataclass(frozen=True, slots=True)
class EndedStep:
    """One step that has ended, at `end_ns` nanoseconds since the epoch. None: not reported."""

    end_ns: int
    samples: int | None = None
    loss: float | None = None
    metrics: tuple[tuple[str, float], ...] = ()


class StepStream:
    """Reads `path`, which need not exist yet. A line that is not an event is skipped; a partial line is read later."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""
        self._process: int | None = None
        self._batch_sizes: dict[int, int] = {}
        self._last_batch: int | None = None
        self._loader_batch: int | None = None
        self.workers: int | None = None
        """The number of the data loader's workers that the stream reports."""
        self.layouts: set[int] = set()

    def read(self) -> list[EndedStep]:
        """Return the steps that have come since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                chunk = file.read(_AT_ONCE)
        except OSError:
            return []
        self._offset += len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            self._rest = b""
        return [step for line in lines if (step := self._parse_step(line)) is not None]

    def _parse_step(self, line: bytes) -> EndedStep | None:
        try:
            event = parse_event(from_json(line))
        except (UnusableEventError, ValueError):
            return None
        match event:
            case StepEnd():
                return self._make_ended_step(event)
            case ShapeSnapshot(of=SnapshotOf.BATCH, layout=layout, batch_size=size):
                self._last_batch = size or self._last_batch
                if layout is not None:
                    self.layouts.add(layout)
                    if size:
                        self._batch_sizes[layout] = size
            case LoaderMark(workers=workers):
                self.workers = self.workers if workers is None else workers
            case LoaderWait(workers=workers, batch_size=size):
                self.workers = self.workers if workers is None else workers
                self._loader_batch = size or self._loader_batch
        return None

    def _make_ended_step(self, event: StepEnd) -> EndedStep | None:
        self._process = event.process if self._process is None else self._process
        if event.process != self._process or event.depth:
            return None
        known = None if event.batch_layout is None else self._batch_sizes.get(event.batch_layout)
        samples = known or self._last_batch or self._loader_batch
        return EndedStep(event.at_ns, samples, event.loss, event.metrics)


@dataclass(frozen=True, slots=True)
class BlockLength:
    """The length of a block, in steps."""

    settle: int
    """Steps after a stop that do not count."""
    count: int

    @property
    def ends(self) -> int:
        """The number of ends of steps to wait for: the first one begins the first whole step."""
        return 1 + self.settle + self.count


def compute_block_length(steps: int, workers: int | None) -> BlockLength:
    """Return at least `steps`, in whole rounds of `workers`, so that a block has as many early batches as late ones;
    two rounds settle."""
    round_of = max(1, workers or 1)
    return BlockLength(settle=max(FEWEST_SETTLING, 2 * round_of), count=-(-steps // round_of) * round_of)


def select_block(
    arm: Arm,
    steps: Sequence[EndedStep],
    running: tuple[int, int],
    length: BlockLength,
) -> StepBlock | None:
    """Return the block of `steps` that ended between the two moments of `running`, from when the workload had settled
    until it was stopped, in nanoseconds; None if there are too few."""
    begin, end = running
    inside = [step for step in steps if begin <= step.end_ns <= end]
    if len(inside) < length.ends:
        return None
    counted = inside[length.settle : length.ends]
    return StepBlock(arm, compute_step_seconds(counted), sum_samples(counted[1:]))


def compute_step_seconds(steps: Sequence[EndedStep]) -> tuple[float, ...]:
    """Return the seconds between the ends of steps."""
    # A clock that is set back, or two events at one moment, must not give a time of 0.
    return tuple(max(after.end_ns - before.end_ns, 1) / 1e9 for before, after in itertools.pairwise(steps))


def sum_samples(steps: Sequence[EndedStep]) -> int | None:
    """Return the samples of all steps; None if one is unknown."""
    told = [step.samples for step in steps if step.samples]
    return sum(told) if told and len(told) == len(steps) else None
