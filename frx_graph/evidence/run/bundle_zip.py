"""Check a zip archive that may be hostile before a byte is extracted.

- The directory is small before it is read into memory.
- Each name stays within a folder, belongs to a file, and occurs once.
- Nothing is encrypted, and the compression is the usual one.
- No member shares its bytes with another, a trick that turns 10 MB into petabytes.
- The expansion of each member is limited.

While a file is extracted, its bytes are counted.
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
"""Limit on members. A bundle has ten files, and one trace for each profiled process and window."""
LONGEST_ENTRY: Final = 1024
"""Limit on a member's average bytes in the directory: its name and 46 more; the longest here have 300."""
MOST_BYTES: Final = 2 << 30
"""Limit on the extracted size of all members. Traces of long runs have some 100 MB. The older format ends here too, so
archives that need the newer one (zip64) are too large."""
MOST_EXPANSION: Final = 500
"""Limit on the expansion of a byte. Traces and events expand 10 to 40 times, a constantly repeated line up to 1000. The
method's maximum is 1032, as in bombs."""
SMALLEST_EXPANDED: Final = 1 << 16
"""Bytes from which expansion counts: smaller files are harmless."""

_END = struct.Struct("<4s4H2LH")
"""End of central directory (APPNOTE.TXT 4.3.16): signature, this disk, its disk, entries here, entries, size, offset,
length of the comment."""
_LOCAL = struct.Struct("<4s5H3L2H")
"""Local header (4.3.7); its last fields are the lengths of the name and of the extra field after it."""
_ZIP64_LOCATOR: Final = 20
_ENCRYPTED: Final = 0x1 | 0x40 | 0x2000
"""Bits of a member's flags for encryption: bytes, strong, and headers."""
_DRIVE = re.compile(r"[A-Za-z]:")
_CHUNK: Final = 1 << 18
_UNREADABLE = (
    zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, ValueError, RuntimeError, OverflowError
)  # fmt: skip
"""Errors that `zipfile` raises for damaged archives."""


@dataclass(frozen=True, slots=True)
class ZipLimits:
    """Limits on an archive: the number of `members`, and the total of their extracted `bytes`."""

    members: int
    bytes: int


OF_ONE_RUN: Final = ZipLimits(MOST_MEMBERS, MOST_BYTES)
OF_MANY_RUNS: Final = ZipLimits(0xFFFE, 64 * MOST_BYTES)
"""The most members that the older format can count. The content of a single run is limited separately."""


class BundleZip:
    """The checked archive at `path`. A context manager. Raises `EvidenceError` for a refused one.

    `names` are the relative paths of the files in it, with `/`.
    """

    def __init__(self, path: Path, limits: ZipLimits = OF_ONE_RUN) -> None:
        self._path = path
        self._limits = limits
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(_open_archive(path))
            directory_start, entries = self._find_directory(file)
            try:
                # `zipfile` reads the directory, whose size is known by now, without relying on the number of entries.
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
        """Return the expanded bytes of a member."""
        return self._archive.getinfo(name).file_size

    def extract_member(self, name: str, target: Path) -> None:
        """Write the member to `target`, which must not exist. Raises `EvidenceError` if it is damaged or cannot be
        written."""
        try:
            with target.open("xb") as file:
                for chunk in self.iterate_chunks(name):
                    file.write(chunk)
        except OSError as error:
            raise self._make_damage_error(error, name) from None

    def iterate_chunks(self, name: str) -> Iterator[bytes]:
        """Yield the member part by part. Raises `EvidenceError` if it is damaged, even if only at its end."""
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
        """Return the start of the directory and its number of entries, found as `zipfile` does: from the end."""
        size = file.seek(0, os.SEEK_END)
        start = max(0, size - _END.size - 0xFFFF - _ZIP64_LOCATOR)
        file.seek(start)
        end = file.read()
        at = len(end) - _END.size
        if at < 0 or not (end[at:].startswith(b"PK\5\6") and end.endswith(b"\0\0")):
            at = end.rfind(b"PK\5\6")
        if at < 0 or len(end) - at < _END.size:
            raise self._make_refusal("is not a zip archive, or its end is missing")
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
        """Check each member by itself."""
        name = member.orig_filename
        parts = name.removesuffix("/").split("/")
        if "\\" in name or not name.isprintable():
            raise self._make_refusal(f"a member is named {name!r}, with a backslash or a control character")
        if name.startswith("/") or _DRIVE.match(name) or any(part in ("", ".", "..") for part in parts):
            raise self._make_refusal(f"a member, {name!r}, would leave the folder that it is extracted to")
        if any(len(part.encode(errors="surrogatepass")) > 255 for part in parts):
            raise self._make_refusal("a member has a name that no file can have")
        # The upper half is the mode if the archive was made on Unix; otherwise it is 0.
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise self._make_refusal(f"{name!r} is a link or another special file")
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
        """Check that no two members share bytes with each other or with the directory."""
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
            raise EvidenceError(f"{path}: is not a regular file, expected the folder of a run or a zip of it")
        return path.open("rb")
    except FileNotFoundError:
        raise EvidenceError(f"{path}: no such file or folder") from None
    except (OSError, ValueError) as error:
        raise EvidenceError(f"{path}: cannot be read: {error}") from None
