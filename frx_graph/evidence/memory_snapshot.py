"""Read a snapshot of CUDA's caching allocator, as `torch.cuda.memory._dump_snapshot` pickles it.

A pickle may run any code, and make Python's own reader hang or fill the memory. So this module decodes pickles itself.
It knows dicts, lists, tuples, texts and numbers, and refuses the rest. The fields are described in
`torch.cuda.memory._snapshot`; unknown ones are ignored.
"""

from __future__ import annotations

import gzip
import pickle
import pickletools
import re
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, TypeVar

from frx_graph.capture.call_site import CallSite, is_foreign
from frx_graph.errors import EvidenceError
from frx_graph.evidence.opening import GZIP_MAGIC, open_evidence
from frx_graph.support.garbage_collection import pause_gc

EXPECTED: Final = "a snapshot by torch.cuda.memory._dump_snapshot"
PICKLE_MAGIC: Final = (pickle.PROTO, b"(dp0\n", b"}q\0")
"""First bytes of pickles: of protocol 2 or newer, which torch writes, and of a dict in protocols 0 and 1."""
USED: Final = "active_allocated"
AWAITING: Final = frozenset(["active_pending_free", "active_awaiting_free"])
"""The first is what torch writes, the second what its documentation says."""
FREE: Final = "inactive"
_STATES: Final = AWAITING | {USED, FREE}
_LARGEST: Final = 1 << 27
"""Limit on the bytes of a pickle. Those that torch writes take about eight times as much memory."""
_MOST: Final = 5_000_000
"""Limit on segments, blocks and events together."""
_MOST_CONTAINERS: Final = 10_000_000
"""Limit on dicts, lists and tuples, which need one byte of a pickle and 60 bytes of memory each."""
_DEEPEST: Final = 100
"""Limit on marks that are open at once. Snapshots have fewer than ten."""
_LONGEST_ACTION: Final = 100
_LONGEST_PATH: Final = 4096
"""Characters of a file's name beyond which it is unknown: a pickle may use one long text a million times."""
_TORCH: Final = ("/site-packages/torch/", "/dist-packages/torch/")
_CHUNK: Final = 1 << 20
_STOP: Final = pickle.STOP[0]
_BINGET: Final = pickle.BINGET[0]
_LONG_BINGET: Final = pickle.LONG_BINGET[0]
_BININT1: Final = pickle.BININT1[0]
_LONG1: Final = pickle.LONG1[0]
_MEMOIZE: Final = pickle.MEMOIZE[0]
_MARK: Final = pickle.MARK[0]
_EMPTY_DICT: Final = pickle.EMPTY_DICT[0]
_EMPTY_LIST: Final = pickle.EMPTY_LIST[0]
_GET: Final = struct.Struct("<xI")
_GETS: Final = re.compile(rb"(?:j[\s\S]{4})+")
_FIXED: Final = {
    pickle.BININT2[0]: struct.Struct("<H"),
    pickle.BININT[0]: struct.Struct("<i"),
    pickle.BINFLOAT[0]: struct.Struct(">d"),
}
_TEXTS: Final = {pickle.SHORT_BINUNICODE[0]: 1, pickle.BINUNICODE[0]: 4, pickle.BINUNICODE8[0]: 8}
"""The bytes of a text's length."""
_PUTS: Final = {pickle.BINPUT[0]: 1, pickle.LONG_BINPUT[0]: 4}
_SKIPPED: Final = {pickle.PROTO[0]: 1, pickle.FRAME[0]: 8}
_CONSTANTS: Final = {pickle.NONE[0]: None, pickle.NEWTRUE[0]: True, pickle.NEWFALSE[0]: False}
_TUPLES: Final = {
    pickle.EMPTY_TUPLE[0]: 0,
    pickle.TUPLE1[0]: 1,
    pickle.TUPLE2[0]: 2,
    pickle.TUPLE3[0]: 3,
    pickle.TUPLE[0]: None,
}
_TO_LIST: Final = {pickle.APPEND[0]: 1, pickle.APPENDS[0]: None}
_TO_DICT: Final = {pickle.SETITEM[0]: 2, pickle.SETITEMS[0]: None}
_TAKEN: Final[dict[int, int | None]] = {**_TUPLES, **_TO_LIST, **_TO_DICT}
"""How many values these take from the stack; None: all above the last mark."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class MemoryBlock:
    """A part of a segment. Its state is `USED` by a tensor, one of `AWAITING`, or `FREE`."""

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
    unreadable: int = 0
    """Segments, blocks and events left out: they lack a field, or have a state that is not known."""


def read_memory_snapshot(path: Path) -> MemorySnapshot:
    """Read the snapshot at `path`, gzipped or not. Raises `EvidenceError` if it cannot be read, is too large, or is
    another pickle."""
    with open_evidence(path, EXPECTED) as file:
        data = _read_bytes(path, file)
    if not data.startswith(pickle.PROTO):
        raise EvidenceError(f"{path}: is not a pickle of protocol 2 or newer, expected {EXPECTED}")
    with pause_gc():
        try:
            found = decode_pickle(data)
        except (ValueError, struct.error) as error:
            raise EvidenceError(f"{path}: cannot be read: {error}, expected {EXPECTED}") from None
        except IndexError:
            raise EvidenceError(f"{path}: is damaged, or ends too early, expected {EXPECTED}") from None
        if not (isinstance(found, dict) and isinstance(found.get("segments"), list)):
            raise EvidenceError(f"{path}: has no segments, expected {EXPECTED}")
        reader = _SnapshotReader(path)
        segments = reader.read_all(found["segments"], reader.read_segment)
        traces = found.get("device_traces")
        history = {
            device: reader.read_all(events, reader.read_event)
            for device, events in enumerate(traces if isinstance(traces, list) else ())
            if isinstance(events, list) and events
        }
    return MemorySnapshot(path, segments, history, reader.unreadable)


def is_gzipped_snapshot(start: bytes) -> bool:
    """Return True for the first bytes of a gzip file that holds a pickle."""
    try:
        return zlib.decompressobj(wbits=31).decompress(start, 16).startswith(PICKLE_MAGIC)
    except zlib.error:
        return False


def _read_bytes(path: Path, file: IO[bytes]) -> bytes:
    start = file.read(len(GZIP_MAGIC))
    file.seek(0)
    source: IO[bytes] = gzip.GzipFile(fileobj=file, mode="rb") if start == GZIP_MAGIC else file  # type: ignore[assignment]
    chunks: list[bytes] = []
    try:
        while chunk := source.read(_CHUNK):
            chunks.append(chunk)
            if len(chunks) * _CHUNK > _LARGEST:
                raise EvidenceError(f"{path}: is larger than {_LARGEST >> 20} MiB", "record less: max_entries=100000")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise EvidenceError(f"{path}: the gzip data is truncated or damaged: {error}", "write it again") from None
    return b"".join(chunks)


def decode_pickle(data: bytes) -> Any:
    """Return the value that a pickle of plain values holds.

    A pickle is a program for a stack. The branches are in the order of their frequency. Raises `ValueError`,
    `IndexError` or `struct.error` for damage, and for whatever no snapshot holds.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: list[Any] = []
    at = containers = 0
    push = stack.append
    while (code := data[at]) != _STOP:
        at += 1
        if code == _BINGET:
            push(memo[data[at]])
            at += 1
        elif code == _LONG_BINGET:
            # Lists of frames are long runs of this one opcode.
            run = _GETS.match(data, at - 1)
            if run is None:
                raise IndexError
            stack += [memo[index] for (index,) in _GET.iter_unpack(run[0])]
            at = run.end()
        elif code == _BININT1:
            push(data[at])
            at += 1
        elif code == _MEMOIZE:
            memo.append(stack[-1])
        elif code == _LONG1:
            start = at + 1
            at = start + data[at]
            push(int.from_bytes(data[start:at], "little", signed=True))
        elif code in _FIXED:
            push(_FIXED[code].unpack_from(data, at)[0])
            at += _FIXED[code].size
        elif code == _EMPTY_DICT:
            push({})
            containers += 1
        elif code == _EMPTY_LIST:
            push([])
            containers += 1
        elif code == _MARK:
            marks.append(len(stack))
            if len(marks) > _DEEPEST:
                raise ValueError("it is nested too deeply")
        elif code in _TAKEN:
            taken = _TAKEN[code]
            start = marks.pop() if taken is None else len(stack) - taken
            if start < 0:
                raise IndexError
            values = stack[start:]
            del stack[start:]
            if code in _TUPLES:
                push(tuple(values))
                containers += 1
            else:
                _add(stack[-1], values, to_dict=code in _TO_DICT)
        elif code in _TEXTS:
            start = at + _TEXTS[code]
            at = start + int.from_bytes(data[at:start], "little")
            push(str(data[start:at], "utf-8", "surrogatepass"))
        elif code in _CONSTANTS:
            push(_CONSTANTS[code])
        elif code in _PUTS:
            end = at + _PUTS[code]
            # All writers count up. A gap would be memory that the pickle does not fill.
            if int.from_bytes(data[at:end], "little") != len(memo):
                raise ValueError("its memo has gaps")
            memo.append(stack[-1])
            at = end
        elif code in _SKIPPED:
            at += _SKIPPED[code]
        else:
            names = {opcode.code: opcode.name for opcode in pickletools.opcodes}
            name = names.get(chr(code), f"byte {code:#04x}")
            raise ValueError(f"it holds {name}, not only dicts, lists, texts and numbers")
        if containers > _MOST_CONTAINERS:
            raise ValueError(f"it holds more than {_MOST_CONTAINERS:,} dicts, lists and tuples")
    return stack[-1]


def _add(target: Any, values: list[Any], *, to_dict: bool) -> None:
    if not to_dict and type(target) is list:
        target += values
    # The hash of another key, such as a tuple, may take forever.
    elif to_dict and type(target) is dict and set(map(type, values[::2])) <= {str, int}:
        target.update(zip(values[::2], values[1::2], strict=True))
    else:
        raise ValueError("it has a key other than a text or number, or adds to something else than a list or dict")


class _SnapshotReader:
    """Reads the fields of a snapshot, and counts what it leaves out."""

    def __init__(self, path: Path) -> None:
        self.unreadable = 0
        self._path = path
        self._left = _MOST
        self._sites: dict[int, CallSite | None] = {}
        """By the identity of a frame, or of a list of frames, which events share."""

    def read_all(self, found: list[Any], read: Callable[[Mapping[str, Any]], _T | None]) -> tuple[_T, ...]:
        """Read the entries of a list. Raises `EvidenceError` if the snapshot has too many."""
        self._left -= len(found)
        if self._left < 0:
            raise EvidenceError(f"{self._path}: has more than {_MOST:,} entries", "record less: max_entries=100000")
        entries = (read(one) if isinstance(one, dict) else None for one in found)
        readable = tuple(one for one in entries if one is not None)
        self.unreadable += len(found) - len(readable)
        return readable

    def read_segment(self, fields: Mapping[str, Any]) -> MemorySegment | None:
        """Return a segment, or None if it cannot be read."""
        device, size, blocks = _get_number(fields, "device"), _get_number(fields, "total_size"), fields.get("blocks")
        if device is None or size is None or not isinstance(blocks, list):
            return None
        return MemorySegment(device, size, fields.get("is_expandable") is True, self.read_all(blocks, self._read_block))

    def read_event(self, fields: Mapping[str, Any]) -> MemoryEvent | None:
        """Return an event, or None if it cannot be read."""
        action, size = fields.get("action"), _get_number(fields, "size")
        if not isinstance(action, str) or size is None:
            return None
        at_us, free = _get_number(fields, "time_us"), _get_number(fields, "device_free")
        return MemoryEvent(action[:_LONGEST_ACTION], size, at_us, self._find_site(fields.get("frames")), free)

    def _read_block(self, fields: Mapping[str, Any]) -> MemoryBlock | None:
        state, size = fields.get("state"), _get_number(fields, "size")
        if not isinstance(state, str) or state not in _STATES or size is None:
            return None
        return MemoryBlock(size, state, self._find_site(fields.get("frames")))

    def _find_site(self, frames: object) -> CallSite | None:
        """Return the innermost frame of the user's code; torch lists the innermost first."""
        if not isinstance(frames, list):
            return None
        if id(frames) not in self._sites:
            sites = (self._read_frame(frame) for frame in frames)
            self._sites[id(frames)] = next((site for site in sites if site is not None), None)
        return self._sites[id(frames)]

    def _read_frame(self, frame: object) -> CallSite | None:
        if not isinstance(frame, dict):
            return None
        if id(frame) not in self._sites:
            self._sites[id(frame)] = _read_site(frame)
        return self._sites[id(frame)]


def _read_site(frame: Mapping[str, Any]) -> CallSite | None:
    file, line, name = frame.get("filename"), _get_number(frame, "line"), frame.get("name")
    if not (isinstance(file, str) and len(file) <= _LONGEST_PATH and line and file.endswith(".py")):
        return None
    if is_foreign(file) or any(folder in file.replace("\\", "/") for folder in _TORCH):
        return None
    return CallSite(file[:1000], line, name[:200] if isinstance(name, str) else "<unknown>")


def _get_number(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62 else None
