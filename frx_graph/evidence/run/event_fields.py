"""From one line of an event stream to a typed event: the door at which its fields are checked.

Only the type and the time must be right, and the duration of a span; any other field that is wrong counts as missing.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from frx_graph.evidence.run.events import (
    CopySpan,
    EventType,
    GpuSample,
    LoaderMark,
    LoaderWait,
    PhaseSpan,
    ProfilerWindow,
    RecordedTensor,
    RunEvent,
    RunWarning,
    ShapeSnapshot,
    SnapshotOf,
    StepEnd,
    StepStart,
    SyncWait,
    SystemInfo,
)

_LARGEST = (1 << 63) - 1
_LARGEST_SIZE = 1 << 48
_HIGHEST_RANK = 64
WAITING = "next"
"""The stage of a loader in which the program waits for a batch."""
_MARKS = frozenset({"begin", "end"})
"""Stages that are no wait: it begins to iterate, or has no further batch."""

_Time = Annotated[int, Field(ge=0, le=_LARGEST)]
_Number = Annotated[int, Field(ge=-_LARGEST, le=_LARGEST)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Percent = Annotated[float, Field(allow_inf_nan=False, ge=0, le=100)]
_Sizes = Annotated[
    tuple[Annotated[int, Field(ge=-_LARGEST_SIZE, le=_LARGEST_SIZE)], ...], Field(max_length=_HIGHEST_RANK)
]


class UnusableEventError(ValueError):
    """The event cannot be placed or measured; the text says why."""


class _Fields(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Line(_Fields):
    event_type: str
    timestamp_ns: _Time
    pid: _Number | None = None
    step_id: _Number | None = None
    duration_ns: _Time | None = None
    payload: dict[str, Any] | None = None


class _StepPayload(_Fields):
    step_kind: str | None = None
    status: str | None = None
    loss: float | None = None
    metrics: dict[str, float] | None = None
    batch_layout: _Number | None = None
    depth: _Number | None = None


class _PhasePayload(_Fields):
    phase_name: str = "unknown"


class _LoaderPayload(_Fields):
    stage: str | None = None
    num_workers: _Time | None = None
    prefetch_factor: _Time | None = None
    pinned_memory: bool | None = None
    batch_size: _Time | None = None


class _CopyPayload(_Fields):
    copy_kind: str = "unknown"


class _ShapePayload(_Fields):
    of: SnapshotOf = SnapshotOf.BATCH
    layout: _Number | None = None
    shapes: dict[str, _Sizes] | None = None
    strides: dict[str, _Sizes | None] | None = None
    dtypes: dict[str, str | None] | None = None
    batch_size: _Time | None = None
    is_training: bool | None = None
    model_name: str | None = None


class _ProfilerPayload(_Fields):
    trace: str | None = None
    kernel_count: _Time | None = None
    median_cuda_kernel_duration_us: Annotated[_Finite, Field(ge=0)] | None = None
    small_kernel_fraction: Annotated[_Finite, Field(ge=0, le=1)] | None = None


class _GpuPayload(_Fields):
    gpu_index: _Time | None = Field(default=None, validation_alias=AliasChoices("gpu_index", "device", "index"))
    utilization_gpu_pct: _Percent | None = None
    utilization_mem_pct: _Percent | None = None
    memory_used_bytes: _Time | None = None
    memory_total_bytes: _Time | None = None


class _SystemPayload(_Fields):
    torch: str | None = None
    python: str | None = None
    device_name: str | None = None
    job_name: str | None = None
    rank: _Time | None = None
    local_rank: _Time | None = None


class _WarningPayload(_Fields):
    message: str = "something was not recorded"
    dropped: _Time | None = None
    until_ns: _Time | None = None


_Model = TypeVar("_Model", bound=_Fields)


def parse_event(fields: object) -> RunEvent | None:
    """The event in a line's JSON value. None: of a type, or a stage of the loader, that is not known. Raises
    `UnusableEventError`."""
    line = _checked(_Line, fields)
    try:
        kind = EventType(line.event_type)
    except ValueError:
        return None
    return _event(kind, line, line.payload or {})


def _checked(model: type[_Model], fields: object) -> _Model:
    """`fields` as the model has them, without those that are wrong and may be missing."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        if not isinstance(fields, dict):
            raise UnusableEventError("expected an object") from None
        wrong = {str(problem["loc"][0]) for problem in error.errors(include_url=False, include_input=False)}
        required = {name for name, field in model.model_fields.items() if field.is_required()}
        if missing := sorted(wrong & required):
            raise UnusableEventError(f"`{missing[0]}` is missing or wrong") from None
        return model.model_validate({name: value for name, value in fields.items() if name not in wrong})


def _event(kind: EventType, line: _Line, payload: dict[str, Any]) -> RunEvent | None:
    at_ns, process, step = line.timestamp_ns, line.pid, line.step_id
    match kind:
        case EventType.STEP_START:
            begun = _checked(_StepPayload, payload)
            return StepStart(at_ns=at_ns, process=process, step=step, kind=begun.step_kind, depth=begun.depth or 0)
        case EventType.STEP_END:
            ended = _checked(_StepPayload, payload)
            return StepEnd(
                at_ns=at_ns,
                process=process,
                step=step,
                duration_ns=line.duration_ns,
                kind=ended.step_kind,
                failed=ended.status is not None and ended.status != "ok",
                loss=ended.loss,
                metrics=tuple((ended.metrics or {}).items()),
                batch_layout=ended.batch_layout,
                depth=ended.depth or 0,
            )
        case EventType.PHASE:
            phase = _checked(_PhasePayload, payload).phase_name
            return PhaseSpan(at_ns=at_ns, process=process, step=step, phase=phase, duration_ns=_duration(line))
        case EventType.LOADER:
            loader = _checked(_LoaderPayload, payload)
            if loader.stage in _MARKS:
                return LoaderMark(at_ns=at_ns, process=process, step=step, workers=loader.num_workers)
            if loader.stage not in (None, WAITING):
                return None
            return LoaderWait(
                at_ns=at_ns,
                process=process,
                step=step,
                duration_ns=_duration(line),
                workers=loader.num_workers,
                prefetch_factor=loader.prefetch_factor,
                pinned=loader.pinned_memory,
                batch_size=loader.batch_size,
            )
        case EventType.COPY:
            direction = _checked(_CopyPayload, payload).copy_kind
            return CopySpan(at_ns=at_ns, process=process, step=step, direction=direction, duration_ns=_duration(line))
        case EventType.SYNC:
            return SyncWait(at_ns=at_ns, process=process, step=step, duration_ns=_duration(line))
        case EventType.SHAPES:
            return _snapshot(line, _checked(_ShapePayload, payload))
        case EventType.PROFILER:
            window = _checked(_ProfilerPayload, payload)
            return ProfilerWindow(
                at_ns=at_ns,
                process=process,
                step=step,
                trace=window.trace,
                kernels=window.kernel_count,
                median_kernel_us=window.median_cuda_kernel_duration_us,
                small_kernels=window.small_kernel_fraction,
            )
        case EventType.GPU_SAMPLE:
            sample = _checked(_GpuPayload, payload)
            return GpuSample(
                at_ns=at_ns,
                process=process,
                step=step,
                device=sample.gpu_index,
                busy_pct=sample.utilization_gpu_pct,
                memory_busy_pct=sample.utilization_mem_pct,
                memory_used=sample.memory_used_bytes,
                memory_total=sample.memory_total_bytes,
            )
        case EventType.SYSTEM:
            system = _checked(_SystemPayload, payload)
            return SystemInfo(at_ns=at_ns, process=process, step=step, **system.model_dump())
        case EventType.WARNING:
            warning = _checked(_WarningPayload, payload)
            return RunWarning(at_ns=at_ns, process=process, step=step, **warning.model_dump())


def _duration(line: _Line) -> int:
    if line.duration_ns is None:
        raise UnusableEventError("`duration_ns` is missing or wrong")
    return line.duration_ns


def _snapshot(line: _Line, payload: _ShapePayload) -> ShapeSnapshot:
    strides, dtypes = payload.strides or {}, payload.dtypes or {}
    tensors = []
    for name, shape in (payload.shapes or {}).items():
        steps = strides.get(name)
        known = steps if steps is not None and len(steps) == len(shape) else None
        tensors.append(RecordedTensor(name=name, shape=shape, strides=known, dtype=dtypes.get(name)))
    return ShapeSnapshot(
        at_ns=line.timestamp_ns,
        process=line.pid,
        step=line.step_id,
        of=payload.of,
        tensors=tuple(tensors),
        layout=payload.layout,
        batch_size=payload.batch_size,
        training=payload.is_training,
        model=payload.model_name,
    )
