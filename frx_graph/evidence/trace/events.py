"""Typed events of a profiler trace. Times are integer nanoseconds on the trace's own clock."""

from __future__ import annotations

import enum
import functools
import math
import re
from dataclasses import dataclass

from frx_graph.evidence.dtype import DType
from frx_graph.evidence.record import record

_DIRECTIONS = (
    ("HtoD", re.compile(r"HtoD|HostTo(?:Device|Gpu)")),
    ("DtoH", re.compile(r"DtoH|(?:Device|Gpu)ToHost")),
    ("HtoH", re.compile(r"HtoH|HostToHost")),
    ("PtoP", re.compile(r"PtoP|PeerToPeer")),
    ("DtoD", re.compile(r"DtoD|DeviceToDevice")),
)
_MEMORIES = re.compile(r"\((?P<source>\w+) -> (?P<target>\w+)\)")
_KINDS = frozenset({"Pageable", "Pinned", "Managed"})


@dataclass(frozen=True, slots=True)
class Transfer:
    """A copy. `direction` is HtoD, DtoH, DtoD, PtoP, HtoH, or None if the name does not show it. `host_memory` is
    pageable, pinned or managed, or None if the trace lacks it, as in ROCm's."""

    direction: str | None
    host_memory: str | None


@functools.lru_cache(maxsize=1024)
def parse_transfer(name: str) -> Transfer:
    """Parse `Memcpy HtoD (Pageable -> Device)` or `CopyHostToDevice`."""
    direction = next((direction for direction, pattern in _DIRECTIONS if pattern.search(name)), None)
    memories = _MEMORIES.search(name)
    host = None
    if memories is not None:
        host = next((side.lower() for side in (memories["source"], memories["target"]) if side in _KINDS), None)
    return Transfer(direction, host)


class ActivityKind(enum.StrEnum):
    """Kinds of device activity."""

    KERNEL = "kernel"
    MEMCPY = "memcpy"
    MEMSET = "memset"


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor argument of an operator. `strides` are in elements, None if the trace has none; `dtype` is None for an
    unknown type."""

    shape: tuple[int, ...]
    dtype: DType | None
    strides: tuple[int, ...] | None = None

    @property
    def bytes(self) -> int | None:
        """Return the bytes of the elements; None if the dtype is unknown."""
        return None if self.dtype is None else math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class HostThread:
    """A thread of a process, by the trace's numbers."""

    process: str
    thread: str


@record
class Span:
    """An event with a duration."""

    name: str
    start_ns: int
    duration_ns: int

    @property
    def end_ns(self) -> int:
        """Return the time at which it ended."""
        return self.start_ns + self.duration_ns


@record
class HostSpan(Span):
    """An event with a duration on a thread of the host."""

    thread: HostThread


@record
class Operator(HostSpan):
    """One call of an operator or autograd node, or a range that the program named (`annotation`).

    `operands` has an entry for each argument, None for one that is not a tensor; it is None if shapes were not
    recorded. `concrete` holds the scalar arguments as text. `call_stack` has the Python frames, if the trace does,
    innermost first, separated by semicolons. `sequence` is autograd's number; `forward_thread` is above 0 in a
    backward.
    """

    annotation: bool = False
    external_id: int | None = None
    sequence: int | None = None
    forward_thread: int | None = None
    operands: tuple[Operand | None, ...] | None = None
    concrete: tuple[str, ...] = ()
    call_stack: str = ""


@record
class RuntimeCall(HostSpan):
    """A call of the CUDA or HIP runtime or driver. `correlation` links it to its device activity; `bytes` is the
    requested copy size, if the trace has it (ROCm's do)."""

    correlation: int | None = None
    bytes: int | None = None


@record
class DeviceActivity(Span):
    """A kernel, copy or fill on a device. `bytes` is the size of a copy or fill, counted once, as the trace has it."""

    kind: ActivityKind
    device: int | None = None
    stream: str = ""
    correlation: int | None = None
    external_id: int | None = None
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    bytes: int | None = None

    @property
    def is_host_transfer(self) -> bool:
        """Return True for a copy to, from or on the host."""
        return self.kind is ActivityKind.MEMCPY and parse_transfer(self.name).direction in ("HtoD", "DtoH", "HtoH")

    @property
    def leaves_device(self) -> bool:
        """Return True for a copy between two memories."""
        peer = self.kind is ActivityKind.MEMCPY and parse_transfer(self.name).direction == "PtoP"
        return peer or self.is_host_transfer


@record
class PythonFrame(HostSpan):
    """A Python function, built-in or module call on the stack.

    `name` has the form `file.py(12): function`, with the line of the definition. `called_from` has the form
    `file.py:34`, the line of the call; it is empty if the profiler did not write it (torch 2.15 does, 2.13 does not).
    """

    called_from: str = ""
