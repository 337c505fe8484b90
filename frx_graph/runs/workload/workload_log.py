"""The file that a workload's output is kept in, which has a largest size."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

MOST_KEPT: Final = 256 << 20
"""Bytes of output that are kept from its start on. A program that floods its output for a day would fill the disk."""
MOST_TAIL: Final = 1 << 20
"""Bytes that are kept of its end, where it says why it has failed."""


class WorkloadLog:
    """Writes to the file at `path`, which is made. Raises `OSError` where it cannot be; later that what is written is
    not kept, as on a full disk, is in `problem`."""

    def __init__(self, path: Path, most: int = MOST_KEPT, most_tail: int = MOST_TAIL) -> None:
        self._file = path.open("wb", buffering=0)
        self._room = most
        self._most_tail = most_tail
        self._tail = bytearray()
        self._left_out = 0
        self.problem: str | None = None

    def write(self, chunk: bytes) -> None:
        """At once, so that nothing is lost whatever happens to this process."""
        kept = chunk[: self._room]
        self._room -= len(kept)
        self._put(kept)
        rest = chunk[len(kept) :]
        self._tail += rest
        if len(self._tail) > 2 * self._most_tail:
            self._drop()

    def close(self) -> None:
        """Write the end of what was too much, behind a line that says how much is left out."""
        self._drop()
        if self._left_out:
            self._put(b"\n[frx: %d bytes of output are left out here]\n" % self._left_out)
        self._put(bytes(self._tail))
        self._file.close()
        if self._left_out:
            self.problem = self.problem or f"{self._left_out} bytes of the workload's output are left out of its log"

    def _drop(self) -> None:
        surplus = max(0, len(self._tail) - self._most_tail)
        del self._tail[:surplus]
        self._left_out += surplus

    def _put(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        try:
            while view and self.problem is None:
                view = view[os.write(self._file.fileno(), view) :]
        except OSError as error:
            self.problem = f"the workload's output is not kept from some point on: {error.strerror or error}"
        except ValueError:
            # It is closed, and nobody has waited for all of the output.
            self.problem = "the end of the workload's output is not kept"
