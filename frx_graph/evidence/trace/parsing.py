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
from frx_graph.evidence.trace.chrome_trace import JsonFloat
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
_SHORT_QUERY_US = 10
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
_Fields = dict[str, Any]
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
        self._make_thread = functools.lru_cache(maxsize=1024)(HostThread)
        # Steps repeat themselves, so values that many events share are kept once.
        self._operands: dict[str, tuple[Operand | None, ...] | None] = {}
        self._tuples: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._durations: dict[int, int] = {}

    def add(self, index: int, fields: dict[str, Any]) -> None:
        """Read one event; events of other phases and categories are skipped, except allocations."""
        category = fields.get("cat")
        if fields.get("ph") != "X" or not isinstance(category, str):
            if fields.get("name") == _MEMORY:
                self._note_memory(fields.get("args"))
            return
        kind = _classify_category(category)
        if kind is Operator:
            self._append_event(self.operators, self._build_operator, index, fields)
        elif kind is DeviceActivity:
            self._append_event(self.activities, self._build_activity, index, fields)
        elif kind is RuntimeCall and not _is_short_query(fields):
            self._append_event(self.calls, self._build_call, index, fields)
        elif kind is PythonFrame:
            self._append_event(self.frames, self._build_frame, index, fields)

    def _note_memory(self, args: object) -> None:
        """Record a device's allocated bytes after an allocation; the host is of type 0."""
        if not isinstance(args, dict) or args.get("Device Type") == 0:
            return
        device, held = _check_integer(args.get("Device Id")), _check_integer(args.get("Total Allocated"))
        if device is not None and held is not None and device >= 0:
            self.peak_allocated[device] = max(held, self.peak_allocated.get(device, 0))

    def _append_event(
        self, events: list[_Event], make: Callable[[_Fields, _Fields, _Timed], _Event], index: int, fields: _Fields
    ) -> None:
        name = fields.get("name")
        if not isinstance(name, str):
            raise self._make_error(index, "name", "a string", name)
        start = _parse_nanoseconds(fields.get("ts"))
        if start is None:
            raise self._make_error(index, "ts", "microseconds", fields.get("ts"))
        arguments = fields.get("args")
        if arguments is not None and not isinstance(arguments, dict):
            raise self._make_error(index, "args", "an object", arguments)
        duration = _parse_nanoseconds(fields.get("dur"))
        if duration is None or duration < 0:
            self.unfinished += 1
            return
        if duration < _SHORT_NS:
            duration = self._durations.setdefault(duration, duration)
        events.append(make(fields, arguments or {}, (clean_text(name), start, duration)))

    def _build_operator(self, fields: _Fields, args: _Fields, timed: _Timed) -> Operator:
        stack = args.get("Call stack")
        concrete = args.get("Concrete Inputs")
        return Operator(
            *timed,
            thread=self._get_thread(fields),
            annotation=fields["cat"] == "user_annotation",
            external_id=_check_integer(args.get("External id")),
            sequence=_check_integer(args.get("Sequence number")),
            forward_thread=_check_integer(args.get("Fwd thread id")),
            operands=self._get_operands(args),
            concrete=self._intern_tuple(tuple(map(str, concrete))) if isinstance(concrete, list) else (),
            call_stack=clean_text(stack) if isinstance(stack, str) else "",
        )

    def _build_call(self, fields: _Fields, args: _Fields, timed: _Timed) -> RuntimeCall:
        size = args.get("size") if "emcpy" in timed[0] else None
        # ROCm writes numbers as text.
        copied = int(size) if isinstance(size, str) and len(size) < 20 and size.isdecimal() and size.isascii() else None
        return RuntimeCall(*timed, self._get_thread(fields), _check_integer(args.get("correlation")), copied)

    def _build_frame(self, fields: _Fields, args: _Fields, timed: _Timed) -> PythonFrame:
        caller = args.get("CallFrom")
        return PythonFrame(*timed, self._get_thread(fields), clean_text(caller) if isinstance(caller, str) else "")

    def _build_activity(self, fields: _Fields, args: _Fields, timed: _Timed) -> DeviceActivity:
        external = args.get("External id", args.get("external id"))
        size = _check_integer(args.get("bytes"))
        return DeviceActivity(
            *timed,
            kind=_DEVICE_KINDS[fields["cat"].lower()],
            device=_check_integer(args.get("device")),
            stream=sys.intern(str(args.get("stream", fields.get("tid")))),
            correlation=_check_integer(args.get("correlation")),
            external_id=_check_integer(external),
            grid=self._intern_tuple(_parse_sizes(args.get("grid")) or ()),
            block=self._intern_tuple(_parse_sizes(args.get("block")) or ()),
            bytes=size if size is not None and size >= 0 else None,
        )

    def _get_operands(self, args: dict[str, Any]) -> tuple[Operand | None, ...] | None:
        shapes = args.get("Input Dims", args.get("Input dims"))
        types, strides = args.get("Input type"), args.get("Input Strides")
        if not isinstance(shapes, list) or not isinstance(types, list):
            return None
        key = repr((shapes, types, strides))
        if key not in self._operands:
            if len(self._operands) >= _MOST_SHARED:
                self._operands.clear()
            steps = strides[: len(shapes)] if isinstance(strides, list) else ()
            # Old traces leave out the types of trailing arguments that are not tensors.
            rows = zip_longest(shapes, types[: len(shapes)], steps)
            self._operands[key] = tuple(_parse_operand(*row) for row in rows)
        return self._operands[key]

    def _intern_tuple(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(self._tuples) >= _MOST_SHARED:
            self._tuples.clear()
        return self._tuples.setdefault(values, values)

    def _get_thread(self, fields: _Fields) -> HostThread:
        # Old traces write thread ids as text in some events and as numbers in others.
        return self._make_thread(str(fields.get("pid")), str(fields.get("tid")))

    def _make_error(self, index: int, field: str, expected: str, value: object) -> EvidenceError:
        found = value.text if isinstance(value, JsonFloat) else "nothing" if value is None else ascii(value)
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


def _is_short_query(fields: dict[str, Any]) -> bool:
    """Return True for a call without device work or notable time, as most calls of a trace are."""
    name, duration = fields.get("name"), fields.get("dur")
    if isinstance(duration, JsonFloat):
        short = duration.text[1:2] == "." and duration.text[:1].isdecimal() and duration.text[2:].isdecimal()
    else:
        short = isinstance(duration, int) and 0 <= duration < _SHORT_QUERY_US
    return short and isinstance(name, str) and _is_query(name)


@functools.lru_cache(maxsize=4096)
def _is_query(name: str) -> bool:
    return _QUERY.fullmatch(name) is not None


def clean_text(text: str) -> str:
    """Return text that can be encoded: half surrogate pairs, which JSON escapes allow, become question marks."""
    if text.isascii():
        return sys.intern(text)
    return sys.intern(text.encode("utf-8", "replace").decode("utf-8"))


def _parse_nanoseconds(value: object) -> int | None:
    """Convert microseconds to nanoseconds exactly; digits below a nanosecond are cut. Else returns None."""
    if isinstance(value, JsonFloat):
        # As torch writes them today: with three digits after the point.
        if value.text[-4:-3] == "." and len(value.text) < 24:
            digits = value.text[:-4] + value.text[-3:]
            if digits.isdecimal():
                return int(digits)
        whole, _, fraction = value.text.partition(".")
        if len(whole) < 20 and whole.isdecimal() and fraction.isdecimal():
            return int(whole) * 1000 + int((fraction + "00")[:3])
        try:
            exact = Decimal(value.text)
            # Before any arithmetic: as an integer, 1e999999999 would fill a gigabyte.
            return int(exact * 1000) if -_LARGEST_US < exact < _LARGEST_US else None
        except InvalidOperation:
            return None
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST_US:
        return value * 1000
    return None


def _check_integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST else None


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
