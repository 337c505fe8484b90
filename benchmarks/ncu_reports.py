"""Binary reports as Nsight Compute writes them, made by hand: one block with the launches, and the strings they name.

Field numbers are those of `extras/FileFormat/ProfilerReport.proto`, which comes with Nsight Compute.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MAGIC = b"NVR\0"
_VERSION = 7
A40 = {
    "device__attribute_display_name": "NVIDIA A40",
    "device__attribute_architecture": 368,
    "device__attribute_implementation": 370,
    "device__attribute_chip": 370,
    "device__attribute_compute_capability_major": 8,
    "device__attribute_compute_capability_minor": 6,
    "launch__device_id": 0,
    **{f"launch__grid_dim_{axis}": size for axis, size in zip("xyz", (512, 512, 1), strict=True)},
    **{f"launch__block_dim_{axis}": size for axis, size in zip("xyz", (16, 16, 1), strict=True)},
}
"""Of each launch; units follow from the chip."""


@dataclass(frozen=True)
class ReportRule:
    """What one of Nsight Compute's rules said; `kind` is 1 for what is to be known, 2 for a warning, 3 for an error, 4
    for what can be done better."""

    name: str
    section: str
    text: str
    kind: int = 4


@dataclass(frozen=True)
class ReportLaunch:
    """A launch; values that are text are written as such."""

    kernel: str = "void copy(float *, int)"
    values: Mapping[str, float | int | str] = field(default_factory=dict)
    rules: Sequence[ReportRule] = ()
    pushed: Sequence[str] = ()
    """NVTX ranges that its thread has pushed, the outermost first."""
    started: Sequence[str] = ()
    """NVTX ranges that were started."""


def report(*launches: ReportLaunch) -> bytes:
    """The whole file."""
    names = list(dict.fromkeys(name for launch in launches for name in launch.values))
    payload = b"".join(_sized(_result(launch, names)) for launch in launches)
    strings = b"".join(_bytes(1, name.encode()) for name in names)
    header = _number(1, 0) + _number(2, len(launches)) + _bytes(4, strings) + _number(5, len(payload))
    return MAGIC + _sized(_number(1, _VERSION)) + _sized(header) + payload


def _result(launch: ReportLaunch, names: Sequence[str]) -> bytes:
    name = launch.kernel.encode()
    parts = [_number(1, 1), _number(2, 1), _number(3, 1), _number(4, 1)]
    parts += [_bytes(5, name), _bytes(6, name), _bytes(7, name), _number(8, 0)]
    parts += [_bytes(9, b"".join(_number(axis, 0) for axis in (1, 2, 3)))]
    parts += [_bytes(number, b"".join(_number(axis, 1) for axis in (1, 2, 3))) for number in (10, 11)]
    parts += [_bytes(15, _number(1, 1)), _number(16, 0)]
    for metric, value in launch.values.items():
        held = _value(value)
        parts.append(_bytes(13, _number(1, names.index(metric)) + _bytes(2, held) + _number(4, 0)))
    parts += [_bytes(19, _rule(rule)) for rule in launch.rules]
    if launch.pushed or launch.started:
        parts.append(_bytes(21, _nvtx(launch)))
    return b"".join(parts)


def _nvtx(launch: ReportLaunch) -> bytes:
    """As `Nvtx.proto` has it: one domain, one thread."""
    stack = b"".join(_bytes(3, _bytes(1, name.encode())) for name in launch.pushed)
    spans = enumerate(launch.started, start=1)
    ranges = b"".join(_bytes(3, _number(1, number) + _bytes(2, name.encode())) for number, name in spans)
    domain = _bytes(1, _number(1, 0) + _bytes(2, b"<default domain>"))
    thread = _bytes(2, _number(1, 1) + _bytes(2, _number(1, 0) + stack))
    return domain + thread + _bytes(3, _number(1, 0) + ranges)


def _value(value: float | int | str) -> bytes:
    if isinstance(value, str):
        return _bytes(1, value.encode())
    return _number(5, value) if isinstance(value, int) else _double(3, value)


def _rule(rule: ReportRule) -> bytes:
    message = _bytes(1, rule.text.encode()) + _number(2, rule.kind) + _number(3, rule.kind)
    body = _bytes(3, _bytes(1, _bytes(1, message)))
    return _bytes(1, rule.name.encode()) + _bytes(2, rule.name.encode()) + body + _bytes(4, rule.section.encode())


def _sized(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes((value,))


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _double(number: int, value: float) -> bytes:
    return _varint(number << 3 | 1) + struct.pack("<d", value)


def _bytes(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value
