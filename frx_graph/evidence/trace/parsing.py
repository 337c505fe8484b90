"""Convert the raw fields of a trace event to a typed event, checking them.

Two generations of field names are read: torch 1.8 to 1.11 (`Operator`, `Kernel`, `external id`, whole microseconds) and
later ones (`cpu_op`, `kernel`, `External id`, fractions of microseconds). Fields that the format requires must be
valid; an optional field of the wrong type counts as absent.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

from frx_graph.errors import EvidenceError
from frx_graph.evidence.dtype import DType
from frx_graph.evidence.trace.events import (
    ActivityKind,
    DeviceActivity,
    HostThread,
    Operand,
    Operator,
    PythonFrame,
    RuntimeCall,
    Span,
)
from frx_graph.evidence.trace.raw_event import NO_ARGUMENTS, RawArguments, RawEvent, decode_value

_LARGEST = 1 << 63
_LARGEST_US = _LARGEST // 1000
_LARGEST_SIZE = 1 << 48
_HIGHEST_RANK = 64
_SHORT_NS = 1 << 16
"""Limit on cached durations: most are shorter."""
_QUERY = re.compile(
    r"(?:cuda|hip)(?:Occupancy|Func(?:Get|Set)Attribute|\w*Get|\w*IsCapturing|Event(?:Query|Record)|StreamQuery"
    r"|StreamWaitEvent)\w*"
)
_MEMORY = "[memory]"
"""Category of each allocation and release, if memory was profiled."""
_MOST_SHARED = 1 << 14
"""Limit on cached argument lists and tuples: more than a step of a large model has."""
_DEVICE_KINDS = {
    "kernel": ActivityKind.KERNEL,
    **dict.fromkeys(("memcpy", "gpu_memcpy"), ActivityKind.MEMCPY),
    **dict.fromkeys(("memset", "gpu_memset"), ActivityKind.MEMSET),
}
_OPERATORS = frozenset({"cpu_op", "operator", "user_annotation"})
_SCALARS = frozenset({"", "Scalar", "ScalarList", "GenericList", "TensorList", "Int", "Bool", "Double", "Device"})
"""Types of arguments that are not one tensor."""
_DTYPES = {
    "float": DType.FLOAT32,
    "double": DType.FLOAT64,
    "c10::Half": DType.FLOAT16,
    "c10::BFloat16": DType.BFLOAT16,
    "c10::Float8_e4m3fn": DType.FLOAT8_E4M3FN,
    "c10::Float8_e5m2": DType.FLOAT8_E5M2,
    "c10::complex<float>": DType.COMPLEX64,
    "c10::complex<double>": DType.COMPLEX128,
    "long int": DType.INT64,
    "long": DType.INT64,
    "int": DType.INT32,
    "short int": DType.INT16,
    "short": DType.INT16,
    "signed char": DType.INT8,
    "unsigned char": DType.UINT8,
    "bool": DType.BOOL,
}
"""Names from `caffe2::TypeMeta::name()`, which the profiler writes for the type of a tensor argument."""

_Event = TypeVar("_Event")
_Timed = tuple[str, int, int]
"""Name, start and duration in nanoseconds."""


class EventParser:
    """Sorts raw events into typed ones. `unfinished` counts events without a usable duration, which are left out;
    `peak_allocated` is in bytes by device."""

    def __init__(self, path: Path) -> None:
        self.operators: list[Operator] = []
        self.calls: list[RuntimeCall] = []
        self.activities: list[DeviceActivity] = []
        self.frames: list[PythonFrame] = []
        self.unfinished = 0
        self.peak_allocated: dict[int, int] = {}
        self._path = path
        # Steps repeat themselves, so values that many events share are kept once.
        self._get_operands = functools.lru_cache(_MOST_SHARED)(_parse_operands)
        self._get_concrete = functools.lru_cache(_MOST_SHARED)(_parse_texts)
        self._get_sizes = functools.lru_cache(_MOST_SHARED)(_parse_size_text)
        self._get_thread = functools.lru_cache(1024)(_parse_thread)
        self._get_stream = functools.lru_cache(1024)(_parse_identity)
        self._durations: dict[int, int] = {}

    def add(self, index: int, event: RawEvent) -> None:
        """Read one event; events of other phases and categories are skipped, except allocations."""
        category = event.cat
        if event.ph != "X" or not isinstance(category, str):
            if event.name == _MEMORY:
                self._note_memory(event.args)
            return
        kind = _classify_category(category)
        if kind is Operator:
            self._append_event(self.operators, self._build_operator, index, event)
        elif kind is DeviceActivity:
            self._append_event(self.activities, self._build_activity, index, event)
        elif kind is RuntimeCall and not _is_short_query(event):
            self._append_event(self.calls, self._build_call, index, event)
        elif kind is PythonFrame:
            self._append_event(self.frames, self._build_frame, index, event)

    def _note_memory(self, args: RawArguments | Any | None) -> None:
        """Record a device's allocated bytes after an allocation; the host is of type 0."""
        if not isinstance(args, RawArguments) or args.device_type == 0:
            return
        device, held = _check_integer(args.device_id), _check_integer(args.allocated)
        if device is not None and held is not None and device >= 0:
            self.peak_allocated[device] = max(held, self.peak_allocated.get(device, 0))

    def _append_event(
        self,
        events: list[_Event],
        make: Callable[[RawEvent, RawArguments, _Timed], _Event],
        index: int,
        event: RawEvent,
    ) -> None:
        name, args = event.name, event.args
        if not isinstance(name, str):
            raise self._make_error(index, "name", "a string", "nothing" if name is None else ascii(name))
        start = _parse_nanoseconds(bytes(event.ts))
        if start is None:
            found = bytes(event.ts).decode()
            raise self._make_error(index, "ts", "microseconds", "nothing" if found in ("", "null") else found)
        if args is None:
            args = NO_ARGUMENTS
        elif not isinstance(args, RawArguments):
            raise self._make_error(index, "args", "an object", ascii(args))
        duration = _parse_nanoseconds(bytes(event.dur))
        if duration is None or duration < 0:
            self.unfinished += 1
            return
        if duration < _SHORT_NS:
            duration = self._durations.setdefault(duration, duration)
        events.append(make(event, args, (clean_text(name), start, duration)))

    def _build_operator(self, event: RawEvent, args: RawArguments, timed: _Timed) -> Operator:
        shapes, stack = bytes(args.shapes) or bytes(args.old_shapes), args.call_stack
        concrete = bytes(args.concrete)
        return Operator(
            *timed,
            thread=self._get_thread(bytes(event.pid), bytes(event.tid)),
            annotation=event.cat == "user_annotation",
            external_id=_check_integer(args.external_id),
            sequence=_check_integer(args.sequence),
            forward_thread=_check_integer(args.forward_thread),
            operands=self._get_operands(shapes, bytes(args.types), bytes(args.strides)) if shapes else None,
            concrete=self._get_concrete(concrete) if concrete else (),
            call_stack=clean_text(stack) if isinstance(stack, str) else "",
        )

    def _build_call(self, event: RawEvent, args: RawArguments, timed: _Timed) -> RuntimeCall:
        size = args.size if "emcpy" in timed[0] else None
        # ROCm writes numbers as text.
        copied = int(size) if isinstance(size, str) and len(size) < 20 and size.isdecimal() and size.isascii() else None
        thread = self._get_thread(bytes(event.pid), bytes(event.tid))
        return RuntimeCall(*timed, thread, _check_integer(args.correlation), copied)

    def _build_frame(self, event: RawEvent, args: RawArguments, timed: _Timed) -> PythonFrame:
        caller = clean_text(args.called_from) if isinstance(args.called_from, str) else ""
        return PythonFrame(*timed, self._get_thread(bytes(event.pid), bytes(event.tid)), caller)

    def _build_activity(self, event: RawEvent, args: RawArguments, timed: _Timed) -> DeviceActivity:
        size = _check_integer(args.bytes)
        return DeviceActivity(
            *timed,
            kind=_DEVICE_KINDS[event.cat.lower()],
            device=_check_integer(args.device),
            stream=self._get_stream(bytes(args.stream) or bytes(event.tid)),
            correlation=_check_integer(args.correlation),
            external_id=_check_integer(args.old_external_id if args.external_id is None else args.external_id),
            grid=self._get_sizes(bytes(args.grid)),
            block=self._get_sizes(bytes(args.block)),
            bytes=size if size is not None and size >= 0 else None,
        )

    def _make_error(self, index: int, field: str, expected: str, found: str) -> EvidenceError:
        return EvidenceError(
            f"{self._path}: event {index}: '{field}' is {found[:40]}, expected {expected}", "export it again"
        )


@functools.lru_cache(maxsize=256)
def _classify_category(category: str) -> type[Span] | None:
    category = category.lower()
    if category in _OPERATORS:
        return Operator
    if category in _DEVICE_KINDS:
        return DeviceActivity
    if category.endswith(("runtime", "driver")):
        return RuntimeCall
    return PythonFrame if category == "python_function" else None


def _is_short_query(event: RawEvent) -> bool:
    """Return True for a call without device work or notable time, as most calls of a trace are."""
    # Under 10 us there is one digit before the point.
    duration, name = bytes(event.dur), event.name
    short = duration[:1].isdigit() and (len(duration) == 1 or (duration[1:2] == b"." and duration[2:].isdigit()))
    return short and isinstance(name, str) and _is_query(name)


@functools.lru_cache(maxsize=4096)
def _is_query(name: str) -> bool:
    return _QUERY.fullmatch(name) is not None


def clean_text(text: str) -> str:
    """Return text that can be encoded: half surrogate pairs, which JSON escapes allow, become question marks."""
    if text.isascii():
        return sys.intern(text)
    return sys.intern(text.encode("utf-8", "replace").decode("utf-8"))


def _parse_nanoseconds(text: bytes) -> int | None:
    """Convert microseconds to nanoseconds exactly; digits below a nanosecond are cut. Returns None for other text,
    and for numbers that are too large."""
    # As torch writes them today: with three digits after the point.
    if text[-4:-3] == b"." and len(text) < 24:
        digits = text[:-4] + text[-3:]
        if digits.isdigit():
            return int(digits)
    whole, _, fraction = text.partition(b".")
    if len(whole) < 20 and whole.isdigit() and (fraction.isdigit() or not fraction):
        ns = int(whole) * 1000 + int((fraction + b"00")[:3] or b"0")
        return ns if ns < _LARGEST else None
    try:
        exact = Decimal(text.decode())
        # Before any arithmetic: as an integer, 1e999999999 would fill a gigabyte.
        return int(exact * 1000) if -_LARGEST_US < exact < _LARGEST_US else None
    except InvalidOperation:
        return None


def _check_integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST else None


def _parse_identity(text: bytes) -> str:
    """Return the number or name of a process, thread or stream. Old traces write thread ids as text in some events and
    as numbers in others."""
    return sys.intern(str(decode_value(text)))


def _parse_thread(process: bytes, thread: bytes) -> HostThread:
    return HostThread(_parse_identity(process), _parse_identity(thread))


def _parse_texts(text: bytes) -> tuple[str, ...]:
    values = decode_value(text)
    return tuple(map(str, values)) if isinstance(values, list) else ()


def _parse_size_text(text: bytes) -> tuple[int, ...]:
    return _parse_sizes(decode_value(text)) or ()


def _parse_operands(shapes: bytes, types: bytes, strides: bytes) -> tuple[Operand | None, ...] | None:
    sizes, kinds, steps = decode_value(shapes), decode_value(types), decode_value(strides)
    if not isinstance(sizes, list) or not isinstance(kinds, list):
        return None
    # Old traces leave out the types of trailing arguments that are not tensors.
    rows = zip_longest(sizes, kinds[: len(sizes)], steps[: len(sizes)] if isinstance(steps, list) else ())
    return tuple(_parse_operand(*row) for row in rows)


def _parse_sizes(value: object) -> tuple[int, ...] | None:
    """Return a shape, strides or grid; None for anything else."""
    if not isinstance(value, list) or len(value) > _HIGHEST_RANK:
        return None
    for size in value:
        if type(size) is not int or not 0 <= size < _LARGEST_SIZE:
            return None
    return tuple(value)


def _parse_operand(shape: object, type_name: object, strides: object) -> Operand | None:
    if not isinstance(type_name, str) or type_name in _SCALARS:
        return None
    dtype = _DTYPES.get(type_name)
    sizes = _parse_sizes(shape)
    if sizes is None or (dtype is None and not sizes):
        return None
    steps = _parse_sizes(strides)
    return Operand(sizes, dtype, steps if steps is not None and len(steps) == len(sizes) else None)
