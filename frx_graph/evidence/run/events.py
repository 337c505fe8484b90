"""Events that a program writes about its run, `raw/trace.jsonl`: one JSON object a line.

The keys follow the published event stream: `event_type`, `timestamp_ns`, `pid`, `step_id`, `duration_ns` and `payload`,
whose keys depend on the type. Others are ignored, and each but the type may be missing, null or wrong. New here are
`strides`, `dtypes` and `of` in a snapshot, and the number by which steps refer to one.

Lines are only nearly in order of time. Several processes may write to one file, and the end of a step is written when
its loss arrives from a device, after later events.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

EVENT_SCHEMA: Final = "0.1.0"
"""The value of `schema_version` in the published stream's events."""


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
    `process` is the writer's number, `step` the program's own. None: not recorded."""

    at_ns: int
    process: int | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStart(RunEvent):
    """The beginning of a step. The payload has `step_kind` and, for a nested step, `depth`: the number of steps around
    it."""

    kind: str | None = None
    depth: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd(RunEvent):
    """The end of a step; `duration_ns` is from its start, so it excludes the wait for its batch. None: not recorded.

    The payload has `step_kind`, `status` (`ok` or `error`), `loss`, `metrics` (an object of numbers) and
    `batch_layout`: the `layout` of the snapshot for the step's batch. Numbers that are not finite are the strings
    `NaN`, `Infinity` and `-Infinity`. In a nested step, `depth` is the number of steps around it.
    """

    duration_ns: int | None = None
    kind: str | None = None
    failed: bool = False
    loss: float | None = None
    metrics: tuple[tuple[str, float], ...] = ()
    batch_layout: int | None = None
    depth: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSpan(RunEvent):
    """A part of a step: `phase_name` in the payload, `forward`, `backward`, `optimizer` or the program's own."""

    phase: str
    duration_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderWait(RunEvent):
    """A wait of the program for a batch.

    The payload has `stage` (only `next` is a wait), `num_workers`, `prefetch_factor`, `pinned_memory`,
    `persistent_workers` and `batch_size`. `step` may be the number of the batch instead of the step: only the time
    counts.
    """

    duration_ns: int
    workers: int | None = None
    prefetch_factor: int | None = None
    pinned: bool | None = None
    batch_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderMark(RunEvent):
    """A loader has begun to iterate, or had no further batch: `stage` is `begin` or `end`. It is not a wait for a
    batch."""

    workers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySpan(RunEvent):
    """A copy between host and device: `copy_kind` in the payload, `h2d`, `d2h` or another."""

    direction: str
    duration_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncWait(RunEvent):
    """A wait of the program for a device."""

    duration_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeSnapshot(RunEvent):
    """Shapes and strides of a batch, or of the parameters.

    The payload has `of` (a batch if missing), `layout`, `shapes`, `strides` and `dtypes` (objects by the tensor's
    name), `batch_size`, `is_training` and `model_name`. It is written after a change. `layout` numbers the layouts of
    batches in order of appearance; a repeated one is not written again, and steps refer to it. Parameters appear only
    if they changed, except in the first snapshot.
    """

    of: SnapshotOf
    tensors: tuple[RecordedTensor, ...]
    layout: int | None = None
    batch_size: int | None = None
    training: bool | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerWindow(RunEvent):
    """A profile of some steps was written. The payload has `window_state` `exported`, `trace` (its path within the
    bundle, or null) and `steps` (the number of steps in it). Kernel figures that other programs add are also read:
    `kernel_count`, `median_cuda_kernel_duration_us`, `small_kernel_fraction`."""

    trace: str | None = None
    steps: int | None = None
    kernels: int | None = None
    median_kernel_us: float | None = None
    small_kernels: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample(RunEvent):
    """A sample of a device. The payload has `utilization_gpu_pct`, `utilization_mem_pct`, `memory_used_bytes` and
    `memory_total_bytes`. Percentages are 0..100."""

    device: int | None = None
    busy_pct: float | None = None
    memory_busy_pct: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemInfo(RunEvent):
    """The program's environment.

    The payload has `torch`, `python`, `device_name`, `job_name` and, if a launcher such as `torchrun` started several
    processes, `rank` and `local_rank`. The last event of a process counts.
    """

    torch: str | None = None
    python: str | None = None
    device_name: str | None = None
    job_name: str | None = None
    rank: int | None = None
    local_rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWarning(RunEvent):
    """A gap in the record, such as dropped events. The payload has `message`, and `dropped`, the number of missing
    events, from `timestamp_ns` to `until_ns`, the time of the last one. The steps of that process before and after
    it are not consecutive, so the time between their ends is not a step's."""

    message: str
    dropped: int | None = None
    until_ns: int | None = None
