"""Convert one line of an event stream to a typed event, checking its fields.

Only the type and the time, and the duration of a span, must be valid; any other invalid field counts as missing.
"""

from __future__ import annotations

import functools
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from frx_graph.evidence.run import events
from frx_graph.evidence.run.events import EventType, Number, RecordedTensor, RunEvent, Sizes, Whole

WAITING = "next"
"""The loader stage in which the program waits for a batch."""
BEGINNING = "begin"
"""The loader stage in which it begins to iterate."""

_EVENTS: dict[str, type[RunEvent]] = {
    EventType.STEP_START: events.StepStart,
    EventType.STEP_END: events.StepEnd,
    EventType.PHASE: events.PhaseSpan,
    EventType.LOADER: events.LoaderWait,
    EventType.COPY: events.CopySpan,
    EventType.SYNC: events.SyncWait,
    EventType.SHAPES: events.ShapeSnapshot,
    EventType.PROFILER: events.ProfilerWindow,
    EventType.GPU_SAMPLE: events.GpuSample,
    EventType.SYSTEM: events.SystemInfo,
    EventType.WARNING: events.RunWarning,
}
KEYS = {
    "kind": "step_kind",
    "phase": "phase_name",
    "workers": "num_workers",
    "pinned": "pinned_memory",
    "direction": "copy_kind",
    "training": "is_training",
    "model": "model_name",
    "kernels": "kernel_count",
    "median_kernel_us": "median_cuda_kernel_duration_us",
    "small_kernels": "small_kernel_fraction",
    "busy_pct": "utilization_gpu_pct",
    "memory_busy_pct": "utilization_mem_pct",
    "memory_used": "memory_used_bytes",
    "memory_total": "memory_total_bytes",
}
"""Keys of a payload, for fields of an event with another name."""
_PAYLOAD_KEYS = {
    kind: tuple((field.name, KEYS.get(field.name, field.name)) for field in fields(kind))
    for kind in {*_EVENTS.values(), events.LoaderMark}
}
"""Fields of each kind of event, with their keys in its payload."""


class UnusableEventError(ValueError):
    """The event cannot be placed or measured; the text explains why."""


@dataclass(frozen=True, slots=True)
class _EventLine:
    event_type: str
    timestamp_ns: Whole
    pid: Number | None = None
    step_id: Number | None = None
    duration_ns: Whole | None = None
    payload: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _Tensors:
    shapes: dict[str, Sizes] | None = None
    strides: dict[str, Sizes | None] | None = None
    dtypes: dict[str, str | None] | None = None


_Record = TypeVar("_Record")


def parse_event(value: object) -> RunEvent | None:
    """Return the event in a line's JSON value, or None for an unknown type or loader stage. Raises
    `UnusableEventError`."""
    line = _validate_lenient(_EventLine, value)
    kind, payload = _EVENTS.get(line.event_type), line.payload or {}
    stage = payload.get("stage") if kind is events.LoaderWait else None
    if stage in (BEGINNING, "end"):
        kind = events.LoaderMark
    elif isinstance(stage, str) and stage != WAITING:
        return None
    if kind is None:
        return None
    found = {name: payload[key] for name, key in _PAYLOAD_KEYS[kind] if key in payload}
    found |= {"at_ns": line.timestamp_ns, "process": line.pid, "step": line.step_id, "duration_ns": line.duration_ns}
    if kind is events.LoaderMark:
        found["begins"] = stage == BEGINNING
    if kind is events.ShapeSnapshot:
        found["tensors"] = _build_tensors(_validate_lenient(_Tensors, payload))
    if kind is events.GpuSample:
        found["device"] = next((payload[key] for key in ("gpu_index", "device", "index") if key in payload), None)
    if kind is events.StepEnd:
        metrics, status = payload.get("metrics"), payload.get("status")
        found["metrics"] = tuple(metrics.items()) if isinstance(metrics, dict) else ()
        found["failed"] = isinstance(status, str) and status != "ok"
    return _validate_lenient(kind, found)


def _validate_lenient(kind: type[_Record], found: object) -> _Record:
    """Return the record of the fields that are `found`, without invalid ones that may be missing."""
    described: Any = kind
    adapter: TypeAdapter[_Record] = _get_adapter(described)
    try:
        return adapter.validate_python(found)
    except ValidationError as error:
        if not isinstance(found, dict):
            raise UnusableEventError("expected an object") from None
        wrong = {str(problem["loc"][0]) for problem in error.errors(include_url=False, include_input=False)}
        required = {field.name for field in fields(kind) if field.default is MISSING}  # type: ignore[arg-type]
        if missing := sorted(wrong & required):
            raise UnusableEventError(f"`{missing[0]}` is missing or wrong") from None
        return adapter.validate_python({name: found[name] for name in found if name not in wrong})


@functools.cache
def _get_adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _build_tensors(written: _Tensors) -> tuple[RecordedTensor, ...]:
    strides, dtypes = written.strides or {}, written.dtypes or {}
    tensors = []
    for name, shape in (written.shapes or {}).items():
        steps = strides.get(name)
        known = steps if steps is not None and len(steps) == len(shape) else None
        tensors.append(RecordedTensor(name=name, shape=shape, strides=known, dtype=dtypes.get(name)))
    return tuple(tensors)
