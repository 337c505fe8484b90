"""The private folder of one analysis: its files, under names that no request can misuse."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

from frx_graph.service.analysis_job import JobFile

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,99}")
_SUFFIXES = (".cu", ".cuh", ".cuda", ".ptx", ".csv", ".ncu-rep", ".json", ".json.gz", ".zip")


@dataclass(slots=True)
class JobFolder:
    """What is in it so far."""

    path: Path
    files: list[JobFile] = field(default_factory=list)

    def add_text(self, name: str, text: str, side: Literal["a", "b"] | None = None) -> None:
        """A file of this text."""
        (self.path / self._name(name, side)).write_text(text, encoding="utf-8", newline="")

    def add_file(self, name: str, content: BinaryIO, side: Literal["a", "b"] | None = None) -> None:
        """A file of what can still be read from `content`."""
        with (self.path / self._name(name, side)).open("wb") as file:
            shutil.copyfileobj(content, file, 1 << 20)

    def _name(self, given: str, side: Literal["a", "b"] | None) -> str:
        """`given` where it is a plain name and not taken; else one of ours, with its suffix, by which kinds are told
        where the content does not tell."""
        taken = {file.name for file in self.files}
        name = given if _PLAIN.fullmatch(given) and given not in taken else None
        if name is None:
            suffix = next((each for each in _SUFFIXES[::-1] if given.lower().endswith(each)), "")
            name = f"file-{len(self.files) + 1}{suffix}"
        self.files.append(JobFile(name=name, side=side))
        return name


@contextmanager
def job_folder() -> Iterator[JobFolder]:
    """A new one; it and all in it is gone in the end."""
    with tempfile.TemporaryDirectory(prefix="frx-serve-", ignore_cleanup_errors=True) as folder:
        yield JobFolder(Path(folder))
