"""Convert one line of an event stream to a typed event, checking its fields.

Only the type and the time, and the duration of a span, must be valid; any other invalid field counts as missing.
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
"""The loader stage in which the program waits for a batch."""
_MARKS = frozenset({"begin", "end"})
"""Stages without a wait: the loader begins to iterate, or has no further batch."""

_Time = Annotated[int, Field(ge=0, le=_LARGEST)]
_Number = Annotated[int, Field(ge=-_LARGEST, le=_LARGEST)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Percent = Annotated[float, Field(allow_inf_nan=False, ge=0, le=100)]
_Sizes = Annotated[
    tuple[Annotated[int, Field(ge=-_LARGEST_SIZE, le=_LARGEST_SIZE)], ...], Field(max_length=_HIGHEST_RANK)
]


class UnusableEventError(ValueError):
    """The event cannot be placed or measured; the text explains why."""


class _EventFields(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _EventLine(_EventFields):
    event_type: str
    timestamp_ns: _Time
    pid: _Number | None = None
    step_id: _Number | None = None
    duration_ns: _Time | None = None
    payload: dict[str, Any] | None = None


class _StepPayload(_EventFields):
    kind: str | None = Field(default=None, alias="step_kind")
    depth: _Number | None = None


class _StepEndPayload(_StepPayload):
    status: str | None = None
    loss: float | None = None
    metrics: dict[str, float] | None = None
    batch_layout: _Number | None = None


class _PhasePayload(_EventFields):
    phase: str = Field(default="unknown", alias="phase_name")


class _LoaderPayload(_EventFields):
    stage: str | None = None
    workers: _Time | None = Field(default=None, alias="num_workers")
    prefetch_factor: _Time | None = None
    pinned: bool | None = Field(default=None, alias="pinned_memory")
    batch_size: _Time | None = None


class _CopyPayload(_EventFields):
    direction: str = Field(default="unknown", alias="copy_kind")


class _ShapePayload(_EventFields):
    of: SnapshotOf = SnapshotOf.BATCH
    layout: _Number | None = None
    shapes: dict[str, _Sizes] | None = None
    strides: dict[str, _Sizes | None] | None = None
    dtypes: dict[str, str | None] | None = None
    batch_size: _Time | None = None
    training: bool | None = Field(default=None, alias="is_training")
    model: str | None = Field(default=None, alias="model_name")


class _ProfilerPayload(_EventFields):
    trace: str | None = None
    kernels: _Time | None = Field(default=None, alias="kernel_count")
    median_kernel_us: Annotated[_Finite, Field(ge=0)] | None = Field(
        default=None, alias="median_cuda_kernel_duration_us"
    )
    small_kernels: Annotated[_Finite, Field(ge=0, le=1)] | None = Field(default=None, alias="small_kernel_fraction")


class _GpuPayload(_EventFields):
    device: _Time | None = Field(default=None, validation_alias=AliasChoices("gpu_index", "device", "index"))
    busy_pct: _Percent | None = Field(default=None, alias="utilization_gpu_pct")
    memory_busy_pct: _Percent | None = Field(default=None, alias="utilization_mem_pct")
    memory_used: _Time | None = Field(default=None, alias="memory_used_bytes")
    memory_total: _Time | None = Field(default=None, alias="memory_total_bytes")


class _SystemPayload(_EventFields):
    torch: str | None = None
    python: str | None = None
    device_name: str | None = None
    job_name: str | None = None
    rank: _Time | None = None
    local_rank: _Time | None = None


class _WarningPayload(_EventFields):
    message: str = "something was not recorded"
    dropped: _Time | None = None
    until_ns: _Time | None = None


_Model = TypeVar("_Model", bound=_EventFields)


def parse_event(fields: object) -> RunEvent | None:
    """Return the event in a line's JSON value, or None for an unknown type or loader stage. Raises
    `UnusableEventError`."""
    line = _validate_lenient(_EventLine, fields)
    try:
        kind = EventType(line.event_type)
    except ValueError:
        return None
    return _build_event(kind, line, line.payload or {})


def _validate_lenient(model: type[_Model], fields: object) -> _Model:
    """Return the model's `fields`, without invalid ones that may be missing."""
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


def _build_event(kind: EventType, line: _EventLine, payload: dict[str, Any]) -> RunEvent | None:
    written: Any = {"at_ns": line.timestamp_ns, "process": line.pid, "step": line.step_id}
    match kind:
        case EventType.STEP_START:
            start = _validate_lenient(_StepPayload, payload)
            return StepStart(**written, kind=start.kind, depth=start.depth or 0)
        case EventType.STEP_END:
            end = _validate_lenient(_StepEndPayload, payload)
            return StepEnd(
                **written,
                duration_ns=line.duration_ns,
                kind=end.kind,
                failed=end.status is not None and end.status != "ok",
                loss=end.loss,
                metrics=tuple((end.metrics or {}).items()),
                batch_layout=end.batch_layout,
                depth=end.depth or 0,
            )
        case EventType.PHASE:
            return PhaseSpan(
                **written, duration_ns=_require_duration(line), **dict(_validate_lenient(_PhasePayload, payload))
            )
        case EventType.LOADER:
            loader = dict(_validate_lenient(_LoaderPayload, payload))
            stage = loader.pop("stage")
            if stage in _MARKS:
                return LoaderMark(**written, workers=loader["workers"])
            return (
                LoaderWait(**written, duration_ns=_require_duration(line), **loader)
                if stage in (None, WAITING)
                else None
            )
        case EventType.COPY:
            return CopySpan(
                **written, duration_ns=_require_duration(line), **dict(_validate_lenient(_CopyPayload, payload))
            )
        case EventType.SYNC:
            return SyncWait(**written, duration_ns=_require_duration(line))
        case EventType.SHAPES:
            return _build_snapshot(written, _validate_lenient(_ShapePayload, payload))
        case EventType.PROFILER:
            return ProfilerWindow(**written, **dict(_validate_lenient(_ProfilerPayload, payload)))
        case EventType.GPU_SAMPLE:
            return GpuSample(**written, **dict(_validate_lenient(_GpuPayload, payload)))
        case EventType.SYSTEM:
            return SystemInfo(**written, **dict(_validate_lenient(_SystemPayload, payload)))
        case EventType.WARNING:
            return RunWarning(**written, **dict(_validate_lenient(_WarningPayload, payload)))


def _require_duration(line: _EventLine) -> int:
    if line.duration_ns is None:
        raise UnusableEventError("`duration_ns` is missing or wrong")
    return line.duration_ns


def _build_snapshot(written: Any, payload: _ShapePayload) -> ShapeSnapshot:
    strides, dtypes = payload.strides or {}, payload.dtypes or {}
    tensors = []
    for name, shape in (payload.shapes or {}).items():
        steps = strides.get(name)
        known = steps if steps is not None and len(steps) == len(shape) else None
        tensors.append(RecordedTensor(name=name, shape=shape, strides=known, dtype=dtypes.get(name)))
    rest: Any = payload.model_dump(include={"of", "layout", "batch_size", "training", "model"})
    return ShapeSnapshot(**written, tensors=tuple(tensors), **rest)
