"""Read a torch.profiler trace: calls on the host and activities of devices, from a Chrome-format file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from frx_graph.errors import EvidenceError
from frx_graph.evidence.trace.chrome_trace import Damage, ReadLimits, read_chrome_trace
from frx_graph.evidence.trace.events import DeviceActivity, Operator, PythonFrame, RuntimeCall, Span
from frx_graph.evidence.trace.impossible_times import ImpossibleEvent, find_impossible, find_unset
from frx_graph.evidence.trace.parsing import EventParser, clean_text
from frx_graph.support.garbage_collection import pause_gc

_Value = TypeVar("_Value", str, int)
_Event = TypeVar("_Event", bound=Span)


@dataclass(frozen=True)
class TorchTrace:
    """All events of one trace that the analysis needs, in the file's order. `calls` leaves out those that only query
    the runtime, or mark an event, in less than 10 us.

    `device_names` is by device number. `rank` is the rank of the process in a distributed program of `world_size`; both
    are None if the trace lacks them. `unfinished` counts events without a usable duration, which were left out, and
    `impossible` lists those that were left out because their times cannot be right. `damage` are faults of the file
    that were passed over.
    `peak_allocated` is the peak of tensors' bytes on each device, if torch 1.10 or later profiled memory;
    `device_bytes` is the size of each device's memory.
    """

    path: Path
    operators: tuple[Operator, ...]
    calls: tuple[RuntimeCall, ...]
    activities: tuple[DeviceActivity, ...]
    frames: tuple[PythonFrame, ...]
    device_names: Mapping[int, str]
    unfinished: int = 0
    impossible: tuple[ImpossibleEvent, ...] = ()
    damage: Damage = field(default_factory=Damage)
    rank: int | None = None
    world_size: int | None = None
    device_bytes: Mapping[int, int] = field(default_factory=dict)
    peak_allocated: Mapping[int, int] = field(default_factory=dict)


def read_torch_trace(path: Path, limits: ReadLimits | None = None) -> TorchTrace:
    """Read a trace that torch.profiler wrote, `.json` or `.json.gz` by content. Raises `EvidenceError`."""
    parser = EventParser(path)
    with pause_gc():
        metadata, damage = read_chrome_trace(path, parser.add, limits)
    if not any(not operator.annotation for operator in parser.operators) and not parser.activities:
        raise EvidenceError(
            f"{path}: a Chrome trace without any operator or kernel", "expected a trace that torch.profiler wrote"
        )
    return build_trace(
        path,
        operators=parser.operators,
        calls=parser.calls,
        activities=parser.activities,
        frames=parser.frames,
        device_names={number: clean_text(name) for number, name in _iterate_devices(metadata, "name", str)},
        device_bytes={number: size for number, size in _iterate_devices(metadata, "totalGlobalMem", int) if size > 0},
        peak_allocated=parser.peak_allocated,
        unfinished=parser.unfinished,
        damage=damage,
        rank=_read_distributed(metadata, "rank"),
        world_size=_read_distributed(metadata, "world_size"),
    )


def build_trace(
    path: Path,
    *,
    operators: Sequence[Operator],
    calls: Sequence[RuntimeCall],
    activities: Sequence[DeviceActivity],
    frames: Sequence[PythonFrame],
    device_names: Mapping[int, str],
    **known: Any,
) -> TorchTrace:
    """Return the trace of these events, without those whose times cannot be right; `known` are other fields."""
    unset = find_unset(chain(operators, calls, frames, activities))
    kept_operators, kept_calls = _leave_out(operators, unset), _leave_out(calls, unset)
    kept_frames, kept_activities = _leave_out(frames, unset), _leave_out(activities, unset)
    impossible = find_impossible(kept_activities, (kept_operators, kept_calls, kept_frames))
    return TorchTrace(
        path=path,
        operators=kept_operators,
        calls=kept_calls,
        activities=_leave_out(kept_activities, impossible),
        frames=kept_frames,
        device_names=device_names,
        impossible=(*unset, *impossible),
        **known,
    )


def _leave_out(events: Sequence[_Event], impossible: Sequence[ImpossibleEvent]) -> tuple[_Event, ...]:
    wrong = {id(one.event) for one in impossible}
    return tuple(event for event in events if id(event) not in wrong) if wrong else tuple(events)


def _read_distributed(metadata: Mapping[str, Any], field: str) -> int | None:
    information = metadata.get("distributedInfo")
    value = information.get(field) if isinstance(information, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else None


def _iterate_devices(metadata: Mapping[str, Any], name: str, kind: type[_Value]) -> Iterator[tuple[int, _Value]]:
    """Yield the number and a property of each device."""
    properties = metadata.get("deviceProperties")
    for entry in properties if isinstance(properties, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("id"), int) and isinstance(entry.get(name), kind):
            yield entry["id"], entry[name]
