"""Read a snapshot of CUDA's caching allocator, as `torch.cuda.memory._dump_snapshot` pickles it.

A pickle may run any code. This one may only hold dicts, lists, tuples, texts and numbers: whatever names a class or
function is refused before it is looked up. Its fields are described in `torch.cuda.memory._snapshot`; unknown ones are
ignored.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from frx_graph.capture.call_site import CallSite, is_foreign
from frx_graph.errors import EvidenceError
from frx_graph.evidence.opening import open_evidence

EXPECTED: Final = "a snapshot by torch.cuda.memory._dump_snapshot"
PICKLE_MAGIC: Final = b"\x80"
_LARGEST: Final = 1 << 30
"""Limit on the bytes of a file, which takes about ten times as much memory."""
_MOST: Final = 5_000_000
"""Limit on blocks, and on events of a device."""


@dataclass(frozen=True, slots=True)
class MemoryBlock:
    """A part of a segment: used by a tensor, awaiting its free, or free."""

    size: int
    state: str
    site: CallSite | None


@dataclass(frozen=True, slots=True)
class MemorySegment:
    """Memory that the allocator took from CUDA. Sizes are in bytes."""

    device: int
    size: int
    expandable: bool
    blocks: tuple[MemoryBlock, ...]


@dataclass(frozen=True, slots=True)
class MemoryEvent:
    """Something that the allocator did, in order. `free` is what CUDA had left when memory ran out."""

    action: str
    size: int
    at_us: int | None
    site: CallSite | None
    free: int | None


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """The state of the allocator, and its history by device, which is empty if it was not recorded."""

    source: Path
    segments: tuple[MemorySegment, ...]
    history: Mapping[int, tuple[MemoryEvent, ...]]


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}"[:200])

    def persistent_load(self, _pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to something outside")


def read_memory_snapshot(path: Path) -> MemorySnapshot:
    """Read the snapshot at `path`. Raises `EvidenceError` if it cannot be read, is too large, or is another pickle."""
    if path.is_file() and path.stat().st_size > _LARGEST:
        raise EvidenceError(f"{path}: is larger than {_LARGEST >> 20} MiB", "record less: max_entries=100000")
    with open_evidence(path, EXPECTED) as file:
        try:
            found = _PlainUnpickler(file).load()
        # Damaged pickles raise almost anything.
        except Exception as error:
            raise EvidenceError(f"{path}: cannot be read: {error}, expected {EXPECTED}") from error
    if not (isinstance(found, dict) and isinstance(found.get("segments"), list)):
        raise EvidenceError(f"{path}: has no segments, expected {EXPECTED}")
    traces = found.get("device_traces")
    history = {
        device: tuple(_read_events(events))
        for device, events in enumerate(traces if isinstance(traces, list) else ())
        if isinstance(events, list) and events
    }
    return MemorySnapshot(path, tuple(_read_segments(found["segments"])), history)


def _read_segments(found: list[Any]) -> Iterator[MemorySegment]:
    for one in found[:_MOST]:
        if isinstance(one, dict):
            blocks = one.get("blocks")
            yield MemorySegment(
                device=_get_number(one, "device") or 0,
                size=_get_number(one, "total_size") or 0,
                expandable=one.get("is_expandable") is True,
                blocks=tuple(
                    MemoryBlock(_get_number(block, "size") or 0, str(block.get("state")), _find_site(block))
                    for block in (blocks if isinstance(blocks, list) else [])[:_MOST]
                    if isinstance(block, dict)
                ),
            )


def _read_events(found: list[Any]) -> Iterator[MemoryEvent]:
    for one in found[:_MOST]:
        if isinstance(one, dict):
            yield MemoryEvent(
                action=str(one.get("action")),
                size=_get_number(one, "size") or 0,
                at_us=_get_number(one, "time_us"),
                site=_find_site(one),
                free=_get_number(one, "device_free"),
            )


def _find_site(fields: Mapping[str, Any]) -> CallSite | None:
    """Return the innermost frame of the user's code; torch lists the innermost first."""
    frames = fields.get("frames")
    for frame in frames if isinstance(frames, list) else ():
        if not isinstance(frame, dict):
            continue
        file, line, name = frame.get("filename"), _get_number(frame, "line"), frame.get("name")
        if isinstance(file, str) and line and file.endswith(".py") and not is_foreign(file) and "/torch/" not in file:
            return CallSite(file[:1000], line, name[:200] if isinstance(name, str) else "<unknown>")
    return None


def _get_number(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62 else None
