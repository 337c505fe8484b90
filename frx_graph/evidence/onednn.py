"""Read oneDNN's verbose log: executed primitives, their memory formats, and reorders that only change a layout.

The log (https://uxlfoundation.github.io/oneDNN/dev_guide_verbose.html) has one comma-separated line per primitive on
the C library's standard output, mixed with other output. A header line (`template:`) names the columns. It is printed
once per process, so a log that starts later is read with the columns of the version in its lines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from frx_graph.evidence.measurement import Measurement, Provenance

_PREFIX = re.compile("(?:onednn|dnnl)_verbose,")
_HEADER = (
    "operation,engine,primitive,implementation,prop_kind,memory_descriptors,attributes,auxiliary,problem_desc,exec_time"
)
"""The header of oneDNN 2.x, 3.12.0 and 3.13.3; only the columns before the operation have changed."""
_ITEMSIZE = MappingProxyType(
    {"f64": 8, "s64": 8, "f32": 4, "tf32": 4, "s32": 4, "f16": 2, "bf16": 2, "s8": 1, "u8": 1, "boolean": 1}
    | {"f8_e4m3": 1, "f8_e5m2": 1}
)
_MOST_BYTES = 1 << 62
_TERM = re.compile(r"([a-z]+)([0-9]{1,18})")
_SIZES = re.compile(r"[0-9]{1,18}(x[0-9]{1,18})*")


@dataclass(frozen=True, slots=True)
class MemoryDescriptor:
    """One argument of a primitive.

    `tag` is oneDNN's format tag (`abcd`, `acdb`, `aBcd16b`), empty for a missing argument. `strides` is set only for
    formats that no tag describes. `dims` is None if the log does not give them.
    """

    argument: str
    dtype: str
    tag: str
    strides: str = ""
    dims: tuple[int, ...] | None = None

    @property
    def format(self) -> str:
        """Return tag and strides: equal for two descriptors exactly if their elements have the same order."""
        return f"{self.tag}:{self.strides}" if self.strides else self.tag

    @property
    def itemsize(self) -> int | None:
        """Return the bytes per element; None for an unknown type."""
        return _ITEMSIZE.get(self.dtype)

    @property
    def bytes(self) -> int | None:
        """Return the bytes of the elements; None if shape or type are unknown, or no memory could hold them."""
        if self.dims is None or self.itemsize is None:
            return None
        size = math.prod(self.dims) * self.itemsize
        return size if size < _MOST_BYTES else None


@dataclass(frozen=True, slots=True)
class Primitive:
    """One executed primitive, at `line` of the log, from 1; `seconds` is None if the log does not give it."""

    kind: str
    implementation: str
    prop_kind: str
    arguments: tuple[MemoryDescriptor, ...]
    line: int = 0
    seconds: float | None = None

    def get_argument(self, name: str) -> MemoryDescriptor | None:
        """Return the descriptor of `src`, `wei`, `bia` or `dst`."""
        return next((d for d in self.arguments if d.argument == name), None)

    @property
    def inputs(self) -> tuple[MemoryDescriptor, ...]:
        """Return the arguments that the primitive reads. In a backward, the incoming gradient is first, since torch
        converts it first."""
        read = [d for d in self.arguments if d.tag and d.argument not in self._written]
        return tuple(sorted(read, key=lambda d: d.argument != "dst"))

    @property
    def outputs(self) -> tuple[MemoryDescriptor, ...]:
        """Return the arguments that the primitive writes."""
        return tuple(d for d in self.arguments if d.tag and d.argument in self._written)

    def list_measurements(self, source: str) -> Iterator[Measurement]:
        """Yield each number of the line as a separate fact; `source` is the log."""
        subject = f"{self.kind} {self.implementation}"
        if self.seconds is not None:
            yield Measurement("duration", self.seconds, "s", subject, Provenance(source, self.line, "exec_time"))
        for descriptor in self.arguments:
            size = descriptor.bytes
            if size is not None:
                at = Provenance(source, self.line, f"{descriptor.argument} {descriptor.format}")
                yield Measurement(f"{descriptor.argument}_bytes", float(size), "byte", subject, at)

    @property
    def _written(self) -> tuple[str, ...]:
        # In a backward primitive `dst` is the incoming gradient; the log has no diff_ prefix for convolutions.
        if self.prop_kind == "backward_data":
            return ("src", "diff_src")
        if self.prop_kind == "backward_weights":
            return ("wei", "bia", "diff_wei", "diff_bia")
        return ("dst", "dst_layer", "dst_iter", "dst_iter_c", "ws")


def parse_log(text: str | Iterable[str]) -> tuple[Primitive, ...]:
    """Return all executed primitives of a log in order; other lines, creation lines and torn lines are skipped."""
    lines = text.splitlines() if isinstance(text, str) else text
    return tuple(_iterate_primitives(lines))


def is_log_line(line: str) -> bool:
    """Return True if oneDNN wrote this line, or the end of it."""
    return _PREFIX.search(line) is not None


def list_implementations(primitives: Iterable[Primitive]) -> tuple[str, ...]:
    """Return the implementations that did the work, apart from reorders, each once and in order of first use."""
    return tuple(dict.fromkeys(p.implementation for p in primitives if p.kind != "reorder"))


def _iterate_primitives(lines: Iterable[str]) -> Iterator[Primitive]:
    columns: Sequence[str] = _HEADER.split(",")
    for number, line in enumerate(lines, start=1):
        # The prefix may be anywhere in the line.
        _, *after = _PREFIX.split(line.rstrip("\r\n"))
        if not after:
            continue
        fields = after[-1].split(",")
        header = _parse_template(fields)
        if header is not None:
            columns = header
            continue
        row = _parse_row(fields, columns)
        if row is not None and row.get("operation") == "exec":
            yield _build_primitive(row, number)


def _parse_row(fields: Sequence[str], columns: Sequence[str]) -> Mapping[str, str] | None:
    """Return the line's fields by column; None for the graph API's lines, information and torn lines.

    `v1`, a time stamp and the component come before the operation, each in some versions only. The header lists the
    time stamp, but never the component.
    """
    values = [value for place, value in enumerate(fields) if not (place < 3 and value in ("v1", "primitive"))]
    names = [name for name in columns if name != "timestamp"]
    if len(values) == len(names) + 1 and _is_number(values[0]):
        del values[0]
    return dict(zip(names, values, strict=True)) if len(values) == len(names) else None


def _parse_template(fields: Sequence[str]) -> list[str] | None:
    """Return the columns that a header line declares for primitives; None for other lines and the graph API's."""
    if "info" not in fields or "graph" in fields[:2]:
        return None
    for position, field in enumerate(fields):
        for marker in ("template:", "prim_template:"):
            if field.startswith(marker):
                return [field.removeprefix(marker), *fields[position + 1 :]]
    return None


def _build_primitive(row: Mapping[str, str], line: int) -> Primitive:
    kind = row.get("primitive", "")
    dims, milliseconds = _parse_dims(kind, row.get("problem_desc", "")), row.get("exec_time", "")
    return Primitive(
        kind=kind,
        implementation=row.get("implementation", ""),
        prop_kind=row.get("prop_kind", ""),
        arguments=tuple(
            one for text in row.get("memory_descriptors", "").split() if (one := _parse_descriptor(text, dims))
        ),
        line=line,
        seconds=float(milliseconds) / 1e3 if _is_number(milliseconds) and float(milliseconds) >= 0 else None,
    )


def _parse_descriptor(text: str, dims: Mapping[str, tuple[int, ...]]) -> MemoryDescriptor | None:
    """Parse `src:f32:a:blocked:abcd::f0` (since 3.1), `src_f32:a:blocked:abcd::f0` or `src_f32::blocked:abcd:f0`."""
    fields = text.split(":")
    head, _, joined_dtype = fields[0].rpartition("_")
    if joined_dtype in _ITEMSIZE or joined_dtype == "undef":
        fields = [head, joined_dtype, *fields[1:]]
    if len(fields) < 5:
        return None
    argument, dtype, _, _, tag, *rest = fields
    strides = rest[0] if len(rest) > 1 else ""
    return MemoryDescriptor(argument, dtype, tag, strides, dims.get(argument))


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _parse_dims(kind: str, problem: str) -> Mapping[str, tuple[int, ...]]:
    """Return the dimensions of a primitive's arguments, if its problem description gives them."""
    if kind == "reorder":
        shape = _parse_sizes(problem)
        return {} if shape is None else {"src": shape, "dst": shape}
    if kind == "matmul":
        parts = [_parse_sizes(part) for part in problem.split(":")]
        return {name: size for name, size in zip(("src", "wei", "dst"), parts, strict=False) if size is not None}
    if kind in ("convolution", "deconvolution"):
        return _parse_convolution_dims(problem)
    return {}


def _parse_sizes(text: str) -> tuple[int, ...] | None:
    return tuple(int(part) for part in text.split("x")) if _SIZES.fullmatch(text) else None


def _parse_convolution_dims(problem: str) -> Mapping[str, tuple[int, ...]]:
    """Parse `g4mb2_ic32oc64_ih14oh14kh3sh1dh0ph1_iw14ow14kw3sw1dw0pw1`. oneDNN runs 1-D problems as 2-D ones of height
    1 when torch requests it, and writes a grouped weight with the groups as a leading dimension."""
    terms = {name: int(value) for name, value in _TERM.findall(problem)}
    if not {"mb", "ic", "oc"} <= terms.keys():
        return {}
    spatial = [axis for axis in "dhw" if f"i{axis}" in terms and f"o{axis}" in terms]
    groups = terms.get("g", 1)
    if not groups:
        return {}
    kernel = tuple(terms.get(f"k{axis}", 1) for axis in spatial)
    weight = (terms["oc"] // groups, terms["ic"] // groups, *kernel)
    return {
        "src": (terms["mb"], terms["ic"], *(terms[f"i{axis}"] for axis in spatial)),
        "wei": (groups, *weight) if "g" in terms else weight,
        "dst": (terms["mb"], terms["oc"], *(terms[f"o{axis}"] for axis in spatial)),
    }
