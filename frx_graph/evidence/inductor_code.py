"""Find the loops that only copy in code that Inductor has written, and the buffers that they write.

`TORCH_LOGS=output_code` prints such code, with the logger's prefix before each line; `output_code.py` of
`TORCH_COMPILE_DEBUG=1` holds it. Nothing is executed: allocations, reuse and calls are found by line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from frx_graph.evidence.dtype import DType
from frx_graph.evidence.kernel_name import is_pure_copy
from frx_graph.evidence.measurement import Measurement, Provenance

_PREFIX = "[__output_code] "
_SIZES = r"\((?:\d{1,18}, ?)*(?:\d{1,18})?\)"
_ALLOCATION = re.compile(
    rf"\s*(?P<name>\w+) = empty_strided_(?P<device>[a-z]+)(?:_pinned)?\((?P<shape>{_SIZES}), (?P<strides>{_SIZES}), "
    r"torch\.(?P<dtype>\w+)\)"
)
_VIEW = re.compile(
    rf"\s*(?P<name>\w+) = reinterpret_tensor\((?P<of>\w+), (?P<shape>{_SIZES}), (?P<strides>{_SIZES}), \d+\)"
)
_CALL = re.compile(r"\s*(?P<kernel>(?:cpp|triton)_\w+?)(?:\.run)?\((?P<arguments>.*)\)\s*")
_NAME = re.compile(r"[A-Za-z_]\w*")
_NUMBER = re.compile(r"\d+")
_MOST_BYTES = 1 << 62
_BEGINS = "    def call(self, args):"
_BEGINS_EARLIER = "def call(args):"


@dataclass(frozen=True, slots=True)
class GeneratedBuffer:
    """Memory of a compiled graph and its layout. `dtype` is None for an unknown type."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType | None
    device: str

    @property
    def bytes(self) -> int | None:
        """Return the bytes of the elements; None if the dtype is unknown, or no memory could hold them."""
        size = None if self.dtype is None else math.prod(self.shape) * self.dtype.itemsize
        return size if size is not None and size < _MOST_BYTES else None


@dataclass(frozen=True, slots=True)
class GeneratedCopy:
    """A call, at `line` of the file, from 1, of a loop that only copies into `target`."""

    kernel: str
    target: GeneratedBuffer
    line: int

    def list_measurements(self, source: str) -> Iterator[Measurement]:
        """Yield the bytes that the call writes; `source` is the file."""
        size = self.target.bytes
        if size is not None:
            at = Provenance(source, self.line, self.target.name)
            yield Measurement("bytes_written", float(size), "byte", self.kernel, at)


@dataclass(frozen=True, slots=True)
class GeneratedCode:
    """The content of a file: its copies, and the numbers of graphs and calls of loops."""

    copies: tuple[GeneratedCopy, ...]
    graphs: int
    calls: int


def read_inductor_code(lines: Iterable[str]) -> GeneratedCode:
    """Return the copies of all graphs, in order. Symbolic sizes are unknown, and copies with them are left out."""
    buffers: dict[str, GeneratedBuffer] = {}
    unwritten: set[str] = set()
    copies: list[GeneratedCopy] = []
    graphs = calls = 0
    for number, raw in enumerate(lines, start=1):
        line = raw.rpartition(_PREFIX)[2].rstrip("\r\n")
        if line.startswith((_BEGINS, _BEGINS_EARLIER)):
            graphs += 1
            buffers.clear()
            unwritten.clear()
        elif (buffer := _parse_buffer(line, buffers)) is not None:
            buffers[buffer.name] = buffer
            unwritten.add(buffer.name)
        elif (call := _CALL.fullmatch(line)) is not None and graphs:
            calls += 1
            # A loop writes buffers that were allocated and not yet passed to another call.
            names = _NAME.findall(call["arguments"])
            written = [name for name in dict.fromkeys(names) if name in unwritten]
            unwritten.difference_update(written)
            if is_pure_copy(call["kernel"]):
                copies.extend(GeneratedCopy(call["kernel"], buffers[name], number) for name in written)
        elif unwritten:
            unwritten.difference_update(_NAME.findall(line))
    return GeneratedCode(tuple(copies), graphs, calls)


def _parse_buffer(line: str, known: dict[str, GeneratedBuffer]) -> GeneratedBuffer | None:
    allocation = _ALLOCATION.match(line)
    found = allocation or _VIEW.match(line)
    if found is None:
        return None
    shape, strides = _parse_numbers(found["shape"]), _parse_numbers(found["strides"])
    if len(shape) != len(strides):
        return None
    if allocation is not None:
        return GeneratedBuffer(found["name"], shape, strides, DType.from_name(found["dtype"]), found["device"])
    of = known.get(found["of"])
    return None if of is None else GeneratedBuffer(found["name"], shape, strides, of.dtype, of.device)


def _parse_numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, _NUMBER.findall(text)))
