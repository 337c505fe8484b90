"""The lines of `raw/trace.jsonl`, one function for each type of event.

An event waits in the queue as a tuple: the function that writes its line, when it was (`at_ns`, nanoseconds since the
epoch), the step's number, and what else the function says that it takes. Making such a tuple costs the program a
twentieth of a microsecond; the line is made by the thread that writes it, in less than one. All text is ASCII, as JSON
escapes it. `process` is the number of the process, as text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from frx_graph.evidence.run.events import EVENT_SCHEMA, EventType, SnapshotOf
from frx_graph.runs.sdk.batch_layout import Layout
from frx_graph.runs.sdk.scalar_reading import Reading, number_of

Event: TypeAlias = tuple[Any, ...]
Line: TypeAlias = Callable[[str, Event], str]

_LONGEST_TEXT = 400
"""Characters of a name or a message; a program's own may be anything."""


def line_of(event: Event, process: str) -> str:
    """The event as a line, with its end."""
    line: Line = event[0]
    return line(process, event)


@lru_cache(maxsize=1024)
def quoted(text: str) -> str:
    """As a JSON string of a bounded length."""
    return json.dumps(text[:_LONGEST_TEXT])


def _head(event: EventType) -> str:
    return f'{{"schema_version":"{EVENT_SCHEMA}","event_type":"{event}","timestamp_ns":'


_START = _head(EventType.STEP_START)
_END = _head(EventType.STEP_END)
_PHASE = _head(EventType.PHASE)
_LOADER = _head(EventType.LOADER)
_COPY = _head(EventType.COPY)
_SYNC = _head(EventType.SYNC)


def step_start(process: str, event: Event) -> str:
    """A step has begun. Takes its kind, quoted, and how many steps it is in."""
    _, at, step, kind, depth = event
    return (
        f'{_START}{at},"pid":{process},"step_id":{"null" if step is None else step},"duration_ns":null,'
        f'"payload":{{"step_kind":{kind}{_within(depth)}}}}}\n'
    )


def step_end(process: str, event: Event) -> str:
    """A step has ended. Takes nanoseconds, its kind, quoted, whether it failed, its loss, a `Reading`, its metrics, a
    dictionary of them, and its batch's layout, each of which may be None, and how many steps it is in. What has not
    arrived is null."""
    _, at, step, took, kind, failed, loss, metrics, layout, depth = event
    told = ",".join([f"{quoted(name)}:{_number(value)}" for name, value in metrics.items()]) if metrics else ""
    return (
        f'{_END}{at},"pid":{process},"step_id":{"null" if step is None else step},"duration_ns":{took},"payload":{{'
        f'"step_kind":{kind},"status":"{"error" if failed else "ok"}","loss":{_number(loss)},"metrics":{{{told}}},'
        f'"batch_layout":{"null" if layout is None else layout}{_within(depth)}}}}}\n'
    )


def _within(depth: int) -> str:
    return f',"depth":{depth}' if depth else ""


def phase_span(process: str, event: Event) -> str:
    """A part of a step has ended. Takes nanoseconds and its name, quoted."""
    _, at, step, took, phase = event
    return (
        f'{_PHASE}{at},"pid":{process},"step_id":{"null" if step is None else step},"duration_ns":{took},'
        f'"payload":{{"phase_name":{phase}}}}}\n'
    )


def loader_wait(process: str, event: Event) -> str:
    """A loader has given a batch, or has begun, or ended. Takes nanoseconds and the payload, as `loader_payload` has
    it."""
    _, at, step, took, payload = event
    return (
        f'{_LOADER}{at},"pid":{process},"step_id":{"null" if step is None else step},"duration_ns":{took},'
        f'"payload":{payload}}}\n'
    )


def copy_span(process: str, event: Event) -> str:
    """A copy between host and device has ended, as the host sees it. Takes nanoseconds and its direction, quoted."""
    _, at, step, took, direction = event
    return (
        f'{_COPY}{at},"pid":{process},"step_id":{"null" if step is None else step},"duration_ns":{took},'
        f'"payload":{{"copy_kind":{direction}}}}}\n'
    )


def sync_wait(process: str, event: Event) -> str:
    """The program has waited for a device. Takes nanoseconds, and something that is not said."""
    _, at, step, took, _ = event
    return (
        f'{_SYNC}{at},"pid":{process},"step_id":{"null" if step is None else step},"duration_ns":{took},'
        f'"payload":{{}}}}\n'
    )


def shape_snapshot(process: str, event: Event) -> str:
    """What a batch looks like, or those parameters that have changed. Takes `SnapshotOf`, a `Layout`, its number,
    whether the model is in training mode, and its name; the last three may be None."""
    _, _, _, of, tensors, layout, training, model = event
    short = _LONGEST_TEXT
    payload = {
        "of": of,
        "layout": layout,
        "shapes": {name[:short]: list(shape) for name, shape, _, _ in tensors},
        "strides": {name[:short]: list(strides) for name, _, strides, _ in tensors if strides is not None},
        "dtypes": {name[:short]: str(dtype).removeprefix("torch.") for name, _, _, dtype in tensors},
        "batch_size": _batch_size(tensors) if of is SnapshotOf.BATCH else None,
        "is_training": training,
        "model_name": model,
    }
    return _rare(EventType.SHAPES, process, event, payload)


def profiler_window(process: str, event: Event) -> str:
    """A profile of some steps was written. Takes the payload."""
    return _rare(EventType.PROFILER, process, event, event[3])


def system_info(process: str, event: Event) -> str:
    """Where the program runs. Takes the payload."""
    return _rare(EventType.SYSTEM, process, event, event[3])


def warning(process: str, event: Event) -> str:
    """Something makes the record less than whole. Takes a message, how many events are missing, and the time of the
    last of them; each may be None."""
    _, _, _, message, dropped, until = event
    payload = {"message": message[:_LONGEST_TEXT], "dropped": dropped, "until_ns": until}
    return _rare(EventType.WARNING, process, event, payload)


def loader_payload(stage: str, told: Mapping[str, int | bool | None]) -> str:
    """What a loader does, and says of itself."""
    return json.dumps({"stage": stage, **told}, separators=(",", ":"))


def _rare(kind: EventType, process: str, event: Event, payload: Mapping[str, Any]) -> str:
    rest = json.dumps(payload, separators=(",", ":"), allow_nan=False)
    step = "null" if event[2] is None else event[2]
    return f'{_head(kind)}{event[1]},"pid":{process},"step_id":{step},"duration_ns":null,"payload":{rest}}}\n'


def _batch_size(tensors: Layout) -> int | None:
    """The first dimension of all that have one, where they agree."""
    sizes = {shape[0] for _, shape, _, _ in tensors if shape}
    return sizes.pop() if len(sizes) == 1 else None


def _number(reading: Reading | None) -> str:
    number = reading if type(reading) is float else number_of(reading)
    if number is None:
        return "null"
    if math.isfinite(number):
        return repr(number)
    return '"NaN"' if number != number else '"Infinity"' if number > 0 else '"-Infinity"'
