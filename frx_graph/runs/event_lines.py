"""The lines of `raw/trace.jsonl`, one function for each type of event.

An event waits in the queue as a tuple: the function that writes its line, when it was (`at_ns`, nanoseconds since the
epoch), the step's number, and what else the function takes, in its order. Making such a tuple costs a twentieth of a
microsecond, the program's time; the line is made by the thread that writes it. All text is ASCII, as JSON escapes it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from frx_graph.evidence.run.events import EVENT_SCHEMA, EventType, SnapshotOf
from frx_graph.runs.batch_layout import Layout
from frx_graph.runs.scalar_reading import Reading, number_of

Event: TypeAlias = tuple[Any, ...]
Line: TypeAlias = Callable[..., str]

_LONGEST_TEXT = 400
"""Characters of a name or a message; a program's own may be anything."""


def line_of(event: Event, process: int) -> str:
    """The event as a line, with its end."""
    line: Line = event[0]
    return line(process, *event[1:])


def _head(event: EventType) -> str:
    return f'{{"schema_version":"{EVENT_SCHEMA}","event_type":"{event}","timestamp_ns":'


_START = _head(EventType.STEP_START)
_END = _head(EventType.STEP_END)
_PHASE = _head(EventType.PHASE)
_LOADER = _head(EventType.LOADER)
_COPY = _head(EventType.COPY)
_SYNC = _head(EventType.SYNC)


def step_start(process: int, at: int, step: int | None, kind: str) -> str:
    """A step has begun."""
    return (
        f'{_START}{at},"pid":{process},"step_id":{_whole(step)},"duration_ns":null,'
        f'"payload":{{"step_kind":{quoted(kind)}}}}}\n'
    )


def step_end(
    process: int,
    at: int,
    step: int | None,
    took: int,
    kind: str,
    failed: bool,
    loss: Reading | None,
    metrics: Mapping[str, Reading] | None,
    layout: int | None,
) -> str:
    """A step has ended. Readings that have not arrived are null."""
    told = ""
    if metrics:
        told = ",".join(f"{quoted(name)}:{_number(number_of(reading))}" for name, reading in metrics.items())
    return (
        f'{_END}{at},"pid":{process},"step_id":{_whole(step)},"duration_ns":{took},"payload":{{'
        f'"step_kind":{quoted(kind)},"status":"{"error" if failed else "ok"}",'
        f'"loss":{_number(number_of(loss))},"metrics":{{{told}}},"batch_layout":{_whole(layout)}}}}}\n'
    )


def phase_span(process: int, at: int, step: int | None, took: int, phase: str) -> str:
    """A part of a step has ended."""
    return (
        f'{_PHASE}{at},"pid":{process},"step_id":{_whole(step)},"duration_ns":{took},'
        f'"payload":{{"phase_name":{quoted(phase)}}}}}\n'
    )


def loader_wait(process: int, at: int, step: int | None, took: int, stage: str, loader: str) -> str:
    """A loader has given a batch, or has begun, or ended; `loader` are the payload's other members (`loader_members`)."""
    return (
        f'{_LOADER}{at},"pid":{process},"step_id":{_whole(step)},"duration_ns":{took},'
        f'"payload":{{"stage":"{stage}"{loader}}}}}\n'
    )


def copy_span(process: int, at: int, step: int | None, took: int, direction: str) -> str:
    """A copy between host and device has ended, as the host sees it."""
    return (
        f'{_COPY}{at},"pid":{process},"step_id":{_whole(step)},"duration_ns":{took},'
        f'"payload":{{"copy_kind":{quoted(direction)}}}}}\n'
    )


def sync_wait(process: int, at: int, step: int | None, took: int, _name: str) -> str:
    """The program has waited for a device."""
    return f'{_SYNC}{at},"pid":{process},"step_id":{_whole(step)},"duration_ns":{took},"payload":{{}}}}\n'


def shape_snapshot(
    process: int,
    at: int,
    step: int | None,
    of: SnapshotOf,
    tensors: Layout,
    layout: int | None,
    training: bool | None,
    model: str | None,
) -> str:
    """What a batch looks like, or those parameters that have changed."""
    payload = {
        "of": of,
        "layout": layout,
        "shapes": {tensor.name: list(tensor.shape) for tensor in tensors},
        "strides": {tensor.name: list(tensor.strides) for tensor in tensors if tensor.strides is not None},
        "dtypes": {tensor.name: str(tensor.dtype).removeprefix("torch.") for tensor in tensors},
        "batch_size": _batch_size(tensors) if of is SnapshotOf.BATCH else None,
        "is_training": training,
        "model_name": model,
    }
    return _rare(EventType.SHAPES, process, at, step, payload)


def profiler_window(process: int, at: int, step: int | None, state: str, trace: str | None) -> str:
    """A profile of some steps was written, or failed to be."""
    return _rare(EventType.PROFILER, process, at, step, {"window_state": state, "trace": trace})


def system_info(process: int, at: int, step: int | None, told: Mapping[str, str | int | None]) -> str:
    """Where the program runs."""
    return _rare(EventType.SYSTEM, process, at, step, told)


def warning(process: int, at: int, step: int | None, message: str, dropped: int | None) -> str:
    """Something makes the record less than whole."""
    return _rare(EventType.WARNING, process, at, step, {"message": message[:_LONGEST_TEXT], "dropped": dropped})


def loader_members(told: Mapping[str, int | bool | None]) -> str:
    """What a loader says of itself, as the members that `loader_wait` puts into every payload."""
    return "".join(f",{quoted(name)}:{json.dumps(value)}" for name, value in told.items())


@lru_cache(maxsize=1024)
def quoted(text: str) -> str:
    """As a JSON string of a bounded length."""
    return json.dumps(text[:_LONGEST_TEXT])


def _rare(event: EventType, process: int, at: int, step: int | None, payload: Mapping[str, Any]) -> str:
    line = {
        "schema_version": EVENT_SCHEMA,
        "event_type": event,
        "timestamp_ns": at,
        "pid": process,
        "step_id": None if _whole(step) == "null" else step,
        "duration_ns": None,
        "payload": payload,
    }
    return json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n"


def _batch_size(tensors: Layout) -> int | None:
    """The first dimension of all that have one, where they agree."""
    sizes = {tensor.shape[0] for tensor in tensors if tensor.shape}
    return sizes.pop() if len(sizes) == 1 else None


def _whole(number: int | None) -> int | str:
    # Beyond, readers of JSON disagree.
    return number if number is not None and -(2**63) <= number < 2**63 else "null"


def _number(number: float | None) -> str:
    if number is None:
        return "null"
    if math.isfinite(number):
        return repr(number)
    return '"NaN"' if number != number else '"Infinity"' if number > 0 else '"-Infinity"'
