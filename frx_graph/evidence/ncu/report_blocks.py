"""Check that a binary report is complete, and count the launches that it must have.

NVIDIA describes the layout (`extras/FileFormat` of Nsight Compute, `ProfilerReport.proto`): four bytes of magic, a
header preceded by its length, then blocks. Each block is a header preceded by its length, which gives its number of
results and the bytes of payload that follow. NVIDIA's own reader silently accepts a truncated file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from frx_graph.errors import EvidenceError

MAGIC = b"NVR\0"
_RESULTS, _PAYLOAD_SIZE = 2, 5
"""Numbers of fields in a block's header."""
_LONGEST_HEADER = 256 << 20
"""Limit in bytes; a header holds the strings of all results in its block."""
_WIRE_VARINT, _WIRE_BYTES, _FIXED_SIZES = 0, 2, {1: 8, 5: 4}


def count_results(path: Path) -> int:
    """Count the launches that the blocks of the report at `path` declare. Raises `EvidenceError` for a damaged one,
    with the byte offset."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if file.read(len(MAGIC)) != MAGIC:
                raise EvidenceError(f"{path}: is not an Nsight Compute report")
            _read_header(file, path, size)
            results = 0
            while (place := file.tell()) < size:
                fields = dict(_parse_integers(_read_header(file, path, size), path, place))
                end = file.tell() + fields.get(_PAYLOAD_SIZE, 0)
                if end > size:
                    raise _make_damage_error(
                        path, place, f"a block that ends at byte {end:,}, and the file at {size:,}"
                    )
                results += fields.get(_RESULTS, 0)
                file.seek(end)
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from None
    return results


def _make_damage_error(path: Path, place: int, what: str) -> EvidenceError:
    return EvidenceError(f"{path}: byte {place:,}: {what}", "it is damaged or not complete: copy it again")


def _read_header(file: BinaryIO, path: Path, size: int) -> bytes:
    place = file.tell()
    length = int.from_bytes(file.read(4), "little")
    if not 0 < length <= min(_LONGEST_HEADER, size - file.tell()):
        raise _make_damage_error(path, place, f"a header of {length:,} bytes, in a file of {size:,}")
    return file.read(length)


def _parse_integers(header: bytes, path: Path, place: int) -> Iterator[tuple[int, int]]:
    """Yield number and value of each integer field; others are skipped."""
    position = 0
    try:
        while position < len(header):
            key, position = _parse_varint(header, position)
            wire = key & 7
            if wire in _FIXED_SIZES:
                position += _FIXED_SIZES[wire]
                continue
            value, position = _parse_varint(header, position)
            if wire == _WIRE_VARINT:
                yield key >> 3, value
            elif wire == _WIRE_BYTES:
                position += value
            else:
                raise IndexError
        if position > len(header):
            raise IndexError
    except IndexError:
        raise _make_damage_error(path, place, "no header of a block") from None


def _parse_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise IndexError
