"""Events that a program writes about its run, `raw/trace.jsonl`: one JSON object a line.

The keys follow the published event stream: `event_type`, `timestamp_ns`, `pid`, `step_id`, `duration_ns` and `payload`,
whose keys depend on the type. Others are ignored, and each but the type may be missing, null or wrong. New here are
`strides`, `dtypes` and `of` in a snapshot, and the number by which steps refer to one.

Lines are only nearly in order of time. Several processes may write to one file, and the end of a step is written when
its loss arrives from a device, after later events.
"""

from __future__ import annotations

import enum
import sys
from dataclasses import dataclass
from typing import Annotated, Final

from annotated_types import Ge, Le, MaxLen

EVENT_SCHEMA: Final = "0.1.0"
"""The value of `schema_version` in the published stream's events."""


_LARGEST: Final = (1 << 63) - 1
_LARGEST_SIZE: Final = 1 << 48
_HIGHEST_RANK: Final = 64
Whole = Annotated[int, Ge(0), Le(_LARGEST)]
Number = Annotated[int, Ge(-_LARGEST), Le(_LARGEST)]
Sizes = Annotated[tuple[Annotated[int, Ge(-_LARGEST_SIZE), Le(_LARGEST_SIZE)], ...], MaxLen(_HIGHEST_RANK)]
_Percent = Annotated[float, Ge(0), Le(100)]


class EventType(enum.StrEnum):
    """The types of the published stream."""

    STEP_START = "step_start"
    STEP_END = "step_end"
    PHASE = "phase_span"
    LOADER = "dataloader_span"
    COPY = "memcpy_span"
    SYNC = "sync_wait"
    SHAPES = "shape_snapshot"
    PROFILER = "profiler_window"
    GPU_SAMPLE = "gpu_sample"
    SYSTEM = "system_info"
    WARNING = "warning_annotation"


class SnapshotOf(enum.StrEnum):
    """Subjects of a snapshot."""

    BATCH = "batch"
    PARAMETERS = "parameters"


@dataclass(frozen=True, slots=True)
class RecordedTensor:
    """A tensor of a batch, or a parameter. `strides` are in elements. None: not recorded."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    dtype: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """An event. `at_ns` is its writing time in nanoseconds since the epoch; for an event with a duration, its end.
    `process` is the writer's number, `step` the program's own. None: not recorded. The other fields are from the
    payload, where some have other names (`event_fields.KEYS`)."""

    at_ns: Whole
    process: Number | None = None
    step: Number | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStart(RunEvent):
    """The beginning of a step; `depth` is the number of steps around a nested one."""

    kind: str | None = None
    depth: Number = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd(RunEvent):
    """The end of a step; `duration_ns` is from its start, so it excludes the wait for its batch. None: not recorded.

    `status` in the payload is `ok` or `error`, `metrics` an object of numbers, and `batch_layout` the `layout` of the
    snapshot for the step's batch. Numbers that are not finite are the strings `NaN`, `Infinity` and `-Infinity`.
    """

    duration_ns: Whole | None = None
    kind: str | None = None
    failed: bool = False
    loss: float | None = None
    metrics: tuple[tuple[str, float], ...] = ()
    batch_layout: Number | None = None
    depth: Number = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSpan(RunEvent):
    """A part of a step: `forward`, `backward`, `optimizer` or the program's own."""

    phase: str = "unknown"
    duration_ns: Whole


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderWait(RunEvent):
    """A wait of the program for a batch.

    The payload also has `stage` (only `next` is a wait) and `persistent_workers`. `step` may be the number of the batch
    instead of the step: only the time counts.
    """

    duration_ns: Whole
    workers: Whole | None = None
    prefetch_factor: Whole | None = None
    pinned: bool | None = None
    batch_size: Whole | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderMark(RunEvent):
    """A loader has begun to iterate (`begins`), or had no further batch. The program waits for that, too, as a loader
    starts its workers when it begins."""

    begins: bool = False
    duration_ns: Whole | None = None
    workers: Whole | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySpan(RunEvent):
    """A copy between host and device: `h2d`, `d2h` or another."""

    direction: str = "unknown"
    duration_ns: Whole


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncWait(RunEvent):
    """A wait of the program for a device."""

    duration_ns: Whole


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeSnapshot(RunEvent):
    """Shapes and strides of a batch, or of the parameters.

    The payload has `shapes`, `strides` and `dtypes`, objects by the tensor's name. It is written after a change.
    `layout` numbers the layouts of batches in order of appearance; a repeated one is not written again, and steps refer
    to it. Parameters appear only if they changed, except in the first snapshot. Of a batch with many tensors only the
    first are listed; `tensor_count` counts all.
    """

    of: SnapshotOf = SnapshotOf.BATCH
    tensors: tuple[RecordedTensor, ...]
    layout: Number | None = None
    tensor_count: Whole | None = None
    batch_size: Whole | None = None
    training: bool | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerWindow(RunEvent):
    """A profile of some steps was written. The payload has `window_state` `exported`, `trace` (its path within the
    bundle, or null) and `steps` (the number of steps in it). Kernel figures that other programs add are also read."""

    trace: str | None = None
    kernels: Whole | None = None
    median_kernel_us: Annotated[float, Ge(0), Le(sys.float_info.max)] | None = None
    small_kernels: Annotated[float, Ge(0), Le(1)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample(RunEvent):
    """A sample of a device. Percentages are 0..100, memory is in bytes."""

    device: Whole | None = None
    busy_pct: _Percent | None = None
    memory_busy_pct: _Percent | None = None
    memory_used: Whole | None = None
    memory_total: Whole | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemInfo(RunEvent):
    """The program's environment.

    `rank` and `local_rank` are written if a launcher such as `torchrun` started several processes. The last event of a
    process counts.
    """

    torch: str | None = None
    python: str | None = None
    device_name: str | None = None
    job_name: str | None = None
    rank: Whole | None = None
    local_rank: Whole | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWarning(RunEvent):
    """A gap in the record: `dropped` is the number of missing events, from `at_ns` to `until_ns`, the time of the last
    one. The steps of that process before and after it are not consecutive, so the time between their ends is not a
    step's."""

    message: str = "something was not recorded"
    dropped: Whole | None = None
    until_ns: Whole | None = None
