"""The fields of a trace event that are read, as the file has them.

msgspec decodes many events at once, and skips all other fields. Numbers that must stay exact, and values that most
events share, stay JSON text. A field of an unexpected type is kept, since only some kinds of events need it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

_ABSENT = Raw(b"")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class JsonFloat:
    """A number with a fraction or exponent, as written: a double holds today's microseconds to a quarter only. Also
    what stands for a number and is none."""

    text: str


class RawArguments(msgspec.Struct, gc=False):
    """The arguments of an event. torch 1.8 to 1.11 wrote some names in another way."""

    external_id: Any = msgspec.field(default=None, name="External id")
    old_external_id: Any = msgspec.field(default=None, name="external id")
    sequence: Any = msgspec.field(default=None, name="Sequence number")
    forward_thread: Any = msgspec.field(default=None, name="Fwd thread id")
    shapes: Raw = msgspec.field(default=_ABSENT, name="Input Dims")
    old_shapes: Raw = msgspec.field(default=_ABSENT, name="Input dims")
    types: Raw = msgspec.field(default=_ABSENT, name="Input type")
    strides: Raw = msgspec.field(default=_ABSENT, name="Input Strides")
    concrete: Raw = msgspec.field(default=_ABSENT, name="Concrete Inputs")
    call_stack: Any = msgspec.field(default=None, name="Call stack")
    called_from: Any = msgspec.field(default=None, name="CallFrom")
    correlation: Any = None
    size: Any = None
    device: Any = None
    stream: Raw = _ABSENT
    grid: Raw = _ABSENT
    block: Raw = _ABSENT
    bytes: Any = None
    device_type: Any = msgspec.field(default=None, name="Device Type")
    device_id: Any = msgspec.field(default=None, name="Device Id")
    allocated: Any = msgspec.field(default=None, name="Total Allocated")


class RawEvent(msgspec.Struct, gc=False):
    """One event. Absent text is empty. If `args` are not an object, they are what the file has."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    ts: Raw = _ABSENT
    dur: Raw = _ABSENT
    pid: Raw = _ABSENT
    tid: Raw = _ABSENT
    args: RawArguments | Any | None = None


class _DecodedEvent(RawEvent, gc=False):
    """One event as msgspec decodes it: its arguments are an object."""

    args: RawArguments | None = None


NO_ARGUMENTS = RawArguments()


def _list_fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, str, bool], ...]:
    return tuple((one.name, one.encode_name, one.type is Raw) for one in msgspec.structs.fields(kind))


_EVENT_FIELDS, _ARGUMENT_FIELDS = _list_fields(RawEvent), _list_fields(RawArguments)
"""The name of each field here and in the file, and whether it stays JSON text."""
_DECODER = msgspec.json.Decoder(list[_DecodedEvent])
_VALUE_DECODER = msgspec.json.Decoder()


def decode_events(text: str) -> Sequence[RawEvent] | None:
    """Decode a JSON list of events; None if there is anything unusual in it."""
    try:
        return _DECODER.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None


def decode_value(text: bytes) -> Any:
    """Return the value of a field that is JSON text; None if it is absent, or cannot be read."""
    try:
        return _VALUE_DECODER.decode(text) if text else None
    except (msgspec.MsgspecError, RecursionError):
        return None


def convert_event(fields: Mapping[str, Any]) -> RawEvent:
    """Return the event with these fields, from a decoder that keeps numbers as `JsonFloat`."""
    args = fields.get("args")
    read = _select_fields(_EVENT_FIELDS, fields)
    return RawEvent(**read | {"args": _convert_arguments(args) if isinstance(args, dict) else args})


def _convert_arguments(args: Mapping[str, Any]) -> RawArguments:
    return RawArguments(**_select_fields(_ARGUMENT_FIELDS, args))


def _select_fields(read: Sequence[tuple[str, str, bool]], fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _write_json(fields[written]) if as_text else _convert_number(fields[written])
        for name, written, as_text in read
        if written in fields
    }


def _convert_number(value: object) -> object:
    """Return the value as the decoder of many events gives it."""
    if not isinstance(value, JsonFloat):
        return value
    return float(value.text) if _NUMBER.fullmatch(value.text) else math.nan


def _write_json(value: object) -> Raw:
    if isinstance(value, JsonFloat):
        return Raw(value.text.encode("utf-8", "replace"))
    try:
        # Half surrogate pairs, which escapes allow, become question marks.
        return Raw(json.dumps(value, ensure_ascii=False, default=_convert_number).encode("utf-8", "replace"))
    except RecursionError:
        return Raw(b"null")
