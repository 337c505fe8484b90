"""How files begin that people hand in for evidence, and that no reader here reads: errors say what they are."""

from __future__ import annotations

from types import MappingProxyType

FOREIGN_FORMATS = MappingProxyType(
    {
        b"PK\x03\x04": "a zip archive",
        b"\x28\xb5\x2f\xfd": "a zstd file",
        b"BZh": "a bzip2 file",
        b"\xfd7zXZ": "an xz file",
        b"SQLite format 3": "an SQLite database, which Nsight Systems exports",
    }
)
