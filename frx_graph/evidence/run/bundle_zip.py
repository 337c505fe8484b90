"""A zip archive that may be hostile: everything that it says of itself is checked before a byte is extracted.

What is checked, and why: its directory is small before it is read into memory; each name stays within a folder, is of a
file, and is there once; nothing is encrypted, and all is compressed as everybody does; no member shares its bytes with
another (how 10 MB become petabytes), and none expands without measure. While a file is extracted its bytes are counted.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from frx_graph.errors import EvidenceError

MOST_MEMBERS: Final = 1024
"""A bundle has ten files, and traces: one for each process and window that was profiled."""
LONGEST_ENTRY: Final = 1024
"""Bytes of a member in the directory, on the average: its name and 46 more, of which the longest here have 300."""
MOST_BYTES: Final = 2 << 30
"""Of all members together, extracted. Traces of long runs have some 100 MB; it is also where the older format ends,
so that what needs the newer one (zip64) is too large."""
MOST_EXPANSION: Final = 500
"""How many bytes one becomes. Traces and events become 10 to 40, the same line over and over up to 1000, which is what
the method can do (1032) and what bombs do."""
SMALLEST_EXPANDED: Final = 1 << 16
"""Bytes from which on expansion counts: smaller files are harmless."""

_END = struct.Struct("<4s4H2LH")
"""End of central directory (APPNOTE.TXT 4.3.16): signature, this disk, its disk, entries here, entries, size, offset,
length of the comment."""
_LOCAL = struct.Struct("<4s5H3L2H")
"""Local header (4.3.7), of which the last are the lengths of the name and of what follows it."""
_ZIP64_LOCATOR: Final = 20
_ENCRYPTED: Final = 0x1 | 0x40 | 0x2000
"""Bits of a member's flags: its bytes, strongly, and its headers."""
_DRIVE = re.compile(r"[A-Za-z]:")
_CHUNK: Final = 1 << 18
_UNREADABLE = (
    zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, ValueError, RuntimeError, OverflowError
)  # fmt: skip
"""What `zipfile` raises of archives that are damaged."""


@dataclass(frozen=True, slots=True)
class ZipLimits:
    """Limits on an archive: the number of `members`, and their `bytes` together, extracted."""

    members: int
    bytes: int


OF_ONE_RUN: Final = ZipLimits(MOST_MEMBERS, MOST_BYTES)
OF_MANY_RUNS: Final = ZipLimits(0xFFFE, 64 * MOST_BYTES)
"""As many members as the older format can count. What one run of them may hold is checked by itself."""


class BundleZip:
    """The archive at `path`, checked. A context manager. Raises `EvidenceError` for one that is refused.

    `names` are the relative paths of its files, with `/`.
    """

    def __init__(self, path: Path, limits: ZipLimits = OF_ONE_RUN) -> None:
        self._path = path
        self._limits = limits
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(_open_archive(path))
            directory_start, entries = self._find_directory(file)
            try:
                # It reads the directory, whose size is known by now, and believes no number of entries.
                archive = opened.enter_context(zipfile.ZipFile(file))
            except _UNREADABLE as error:
                raise self._make_damage_error(error) from None
            members = archive.infolist()
            if len(members) != entries:
                raise self._make_refusal(f"its directory has {len(members)} members, and says {entries}")
            for member in members:
                self._check_member(member)
            self._check_all(members)
            self._check_places(file, members, directory_start)
            self._archive = archive
            self._opened = opened.pop_all()
        self.names = tuple(member.filename for member in members if not member.is_dir())

    def __enter__(self) -> BundleZip:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def get_size(self, name: str) -> int:
        """Bytes of a member, expanded."""
        return self._archive.getinfo(name).file_size

    def extract_member(self, name: str, target: Path) -> None:
        """Write the member to `target`, which must not exist. Raises `EvidenceError` for one that is damaged, or cannot
        be written."""
        try:
            with target.open("xb") as file:
                for chunk in self.iterate_chunks(name):
                    file.write(chunk)
        except OSError as error:
            raise self._make_damage_error(error, name) from None

    def iterate_chunks(self, name: str) -> Iterator[bytes]:
        """The member, part by part. Raises `EvidenceError` for one that is damaged, if only at its end."""
        expected = self.get_size(name)
        read = 0
        try:
            with self._archive.open(name) as member:
                while chunk := member.read(_CHUNK):
                    read += len(chunk)
                    if read > expected:
                        break
                    yield chunk
        except _UNREADABLE as error:
            raise self._make_damage_error(error, name) from None
        if read != expected:
            raise self._make_refusal(f"{name} has not the {expected} bytes that its directory says")

    def _find_directory(self, file: IO[bytes]) -> tuple[int, int]:
        """Return the start of the directory and its declared number of entries.

        It is found as `zipfile` finds it: from the end, which a comment may follow.
        """
        size = file.seek(0, os.SEEK_END)
        start = max(0, size - _END.size - 0xFFFF - _ZIP64_LOCATOR)
        file.seek(start)
        end = file.read()
        at = len(end) - _END.size
        if at < 0 or not (end[at:].startswith(b"PK\5\6") and end.endswith(b"\0\0")):
            at = end.rfind(b"PK\5\6")
        if at < 0 or len(end) - at < _END.size:
            raise self._make_refusal("is no zip archive, or the end of one is missing")
        _, disk, other_disk, here, entries, length, offset, comment = _END.unpack_from(end, at)
        if end[max(0, at - _ZIP64_LOCATOR) :].startswith(b"PK\6\7") or 0xFFFFFFFF in (length, offset):
            raise self._make_refusal("is a zip64 archive, as of more than 2 GiB")
        if disk or other_disk or here != entries:
            raise self._make_refusal("is one of several parts of an archive")
        most = self._limits.members
        if entries > most or length > most * LONGEST_ENTRY:
            raise self._make_refusal(f"has {entries} members in {length} bytes, and a bundle has no more than {most}")
        if offset + length != start + at or start + at + _END.size + comment != size:
            raise self._make_refusal("is damaged: its directory is not where it says")
        return offset, entries

    def _check_member(self, member: zipfile.ZipInfo) -> None:
        """Each by itself."""
        name = member.orig_filename
        parts = name.removesuffix("/").split("/")
        if "\\" in name or not name.isprintable():
            raise self._make_refusal(f"a member is named {name!r}, with a backslash or a control character")
        if name.startswith("/") or _DRIVE.match(name) or any(part in ("", ".", "..") for part in parts):
            raise self._make_refusal(f"a member, {name!r}, would leave the folder that it is extracted to")
        if any(len(part.encode(errors="surrogatepass")) > 255 for part in parts):
            raise self._make_refusal("a member has a name that no file can have")
        # The upper half is the mode where the archive was made on Unix; elsewhere, or without one, 0.
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise self._make_refusal(f"{name!r} is a link, or something else that is no file")
        if member.flag_bits & _ENCRYPTED:
            raise self._make_refusal(f"{name!r} is encrypted", "make the archive without a password")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise self._make_refusal(f"{name!r} is compressed by method {member.compress_type}", "deflate is read")
        expanded, kept = member.file_size, member.compress_size
        if expanded >= SMALLEST_EXPANDED and expanded > MOST_EXPANSION * kept:
            raise self._make_refusal(f"{name!r} expands {kept} bytes to {expanded}, more than {MOST_EXPANSION} times")

    def _check_all(self, members: list[zipfile.ZipInfo]) -> None:
        names = {member.orig_filename.removesuffix("/") for member in members}
        if len(names) != len(members):
            raise self._make_refusal("holds two members of one name")
        files = {member.orig_filename for member in members if not member.is_dir()}
        if any(str(parent) in files for name in names for parent in Path(name).parents):
            raise self._make_refusal("holds a file that is a folder, too")
        total = sum(member.file_size for member in members)
        if total > self._limits.bytes:
            raise self._make_refusal(f"expands to {total} bytes, more than {self._limits.bytes >> 30} GiB")

    def _check_places(self, file: IO[bytes], members: list[zipfile.ZipInfo], directory_start: int) -> None:
        """No two members have bytes in common, nor has one any with the directory."""
        free = 0
        for member in sorted(members, key=lambda member: member.header_offset):
            start = member.header_offset
            file.seek(start)
            header = file.read(_LOCAL.size)
            if start < free:
                raise self._make_refusal("its members overlap")
            if len(header) < _LOCAL.size or not header.startswith(b"PK\3\4"):
                raise self._make_refusal(f"is damaged: {member.orig_filename!r} is not where its directory says")
            *_, name, extra = _LOCAL.unpack(header)
            free = start + _LOCAL.size + name + extra + member.compress_size
        if free > directory_start:
            raise self._make_refusal("its members overlap with its directory")

    def _make_refusal(self, why: str, hint: str = "") -> EvidenceError:
        return EvidenceError(f"{self._path}: {why}", hint)

    def _make_damage_error(self, error: BaseException, name: str = "") -> EvidenceError:
        where = f" in {name!r}" if name else ""
        text = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return self._make_refusal(f"is a damaged zip archive{where}: {text or type(error).__name__}")


def _open_archive(path: Path) -> IO[Any]:
    try:
        # Opening a fifo waits for a writer that may never come.
        if path.exists() and not path.is_file():
            raise EvidenceError(f"{path}: is no regular file, expected the folder of a run or a zip of it")
        return path.open("rb")
    except FileNotFoundError:
        raise EvidenceError(f"{path}: no such file or folder") from None
    except (OSError, ValueError) as error:
        raise EvidenceError(f"{path}: cannot be read: {error}") from None
