"""Write the lines of `raw/trace.jsonl`, one function for each type of event.

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
from frx_graph.runs.sdk.scalar_reading import Reading, get_number

Event: TypeAlias = tuple[Any, ...]
Line: TypeAlias = Callable[[str, Event], str]

_LONGEST_TEXT = 400
"""Characters of a name or a message; a program's own may be anything."""


@lru_cache(maxsize=1024)
def quote_text(text: str) -> str:
    """Return a JSON string of a bounded length."""
    return json.dumps(text[:_LONGEST_TEXT])


def _make_head(kind: EventType) -> str:
    return f'{{"schema_version":"{EVENT_SCHEMA}","event_type":"{kind}","timestamp_ns":'


# Constants: looking up an enum's member runs Python code, and takes as long as the line.
_STEP_START, _STEP_END = _make_head(EventType.STEP_START), _make_head(EventType.STEP_END)
_PHASE, _LOADER, _COPY = _make_head(EventType.PHASE), _make_head(EventType.LOADER), _make_head(EventType.COPY)
_SYNC, _SHAPES, _PROFILER = _make_head(EventType.SYNC), _make_head(EventType.SHAPES), _make_head(EventType.PROFILER)
_SYSTEM, _WARNING = _make_head(EventType.SYSTEM), _make_head(EventType.WARNING)


def format_step_start(process: str, event: Event) -> str:
    """A step has begun. Takes its kind, quoted, and how many steps it is in."""
    _, _, _, kind, depth = event
    return _format_line(_STEP_START, process, event, f'{{"step_kind":{kind}{_format_depth(depth)}}}')


def format_step_end(process: str, event: Event) -> str:
    """A step has ended. Takes nanoseconds, its kind, quoted, a failure flag, its loss, a `Reading`, its metrics, a
    dictionary of them, and its batch's layout, each of which may be None, and how many steps it is in. What has not
    arrived is null."""
    _, _, _, took, kind, failed, loss, metrics, layout, depth = event
    told = (
        ",".join([f"{quote_text(name)}:{_format_number(value)}" for name, value in metrics.items()]) if metrics else ""
    )
    payload = (
        f'{{"step_kind":{kind},"status":"{"error" if failed else "ok"}","loss":{_format_number(loss)},'
        f'"metrics":{{{told}}},'
        f'"batch_layout":{"null" if layout is None else layout}{_format_depth(depth)}}}'
    )
    return _format_line(_STEP_END, process, event, payload, took)


def _format_depth(depth: int) -> str:
    return f',"depth":{depth}' if depth else ""


def format_phase(process: str, event: Event) -> str:
    """A part of a step has ended. Takes nanoseconds and its name, quoted."""
    # As `_format_line`, without the call: most lines are of this type.
    _, at, step, took, name = event
    return (
        f'{_PHASE}{at},"pid":{process},"step_id":{"null" if step is None else step},"duration_ns":{took},'
        f'"payload":{{"phase_name":{name}}}}}\n'
    )


def format_loader_wait(process: str, event: Event) -> str:
    """A loader has given a batch, or has begun, or ended. Takes nanoseconds and the payload of
    `dump_loader_payload`."""
    return _format_line(_LOADER, process, event, event[4], event[3])


def format_copy(process: str, event: Event) -> str:
    """A copy between host and device has ended, as the host sees it. Takes nanoseconds and its direction, quoted."""
    return _format_line(_COPY, process, event, f'{{"copy_kind":{event[4]}}}', event[3])


def format_sync(process: str, event: Event) -> str:
    """The program has waited for a device. Takes nanoseconds, and something that is not written."""
    return _format_line(_SYNC, process, event, "{}", event[3])


def format_shapes(process: str, event: Event) -> str:
    """A batch's layout, or the parameters that have changed. Takes `SnapshotOf`, a `Layout`, its number, the model's
    training mode and its name, and how many tensors the batch has, of which the layout may be a part; the last four may
    be None."""
    _, _, _, of, tensors, layout, training, model, count = event
    short = _LONGEST_TEXT
    sizes = {shape[0] for _, shape, _, _ in tensors if shape}
    payload = {
        "of": of,
        "layout": layout,
        "shapes": {name[:short]: list(shape) for name, shape, _, _ in tensors},
        "strides": {name[:short]: list(strides) for name, _, strides, _ in tensors if strides is not None},
        "dtypes": {name[:short]: str(dtype).removeprefix("torch.") for name, _, _, dtype in tensors},
        "tensor_count": count,
        "batch_size": sizes.pop() if of is SnapshotOf.BATCH and len(sizes) == 1 else None,
        "is_training": training,
        "model_name": model,
    }
    return _format_rare_event(_SHAPES, process, event, payload)


def format_profiler_window(process: str, event: Event) -> str:
    """A profile of some steps was written. Takes the payload."""
    return _format_rare_event(_PROFILER, process, event, event[3])


def format_system_info(process: str, event: Event) -> str:
    """The program's system. Takes the payload."""
    return _format_rare_event(_SYSTEM, process, event, event[3])


def format_warning(process: str, event: Event) -> str:
    """The record is incomplete. Takes a message, the number of missing events, and the time of the last of them; each
    may be None."""
    _, _, _, message, dropped, until = event
    payload = {"message": message[:_LONGEST_TEXT], "dropped": dropped, "until_ns": until}
    return _format_rare_event(_WARNING, process, event, payload)


def dump_loader_payload(stage: str, told: Mapping[str, int | bool | None]) -> str:
    """Return the payload of a loader's event."""
    return json.dumps({"stage": stage, **told}, separators=(",", ":"))


def _format_rare_event(head: str, process: str, event: Event, payload: Mapping[str, Any]) -> str:
    return _format_line(head, process, event, json.dumps(payload, separators=(",", ":"), allow_nan=False))


def _format_line(head: str, process: str, event: Event, payload: str, took: int | str = "null") -> str:
    step = "null" if event[2] is None else event[2]
    return f'{head}{event[1]},"pid":{process},"step_id":{step},"duration_ns":{took},"payload":{payload}}}\n'


def _format_number(reading: Reading | None) -> str:
    number = reading if type(reading) is float else get_number(reading)
    if number is None:
        return "null"
    if math.isfinite(number):
        return repr(number)
    return '"NaN"' if number != number else '"Infinity"' if number > 0 else '"-Infinity"'
