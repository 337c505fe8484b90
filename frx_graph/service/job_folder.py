"""The private folder of one analysis. Its files have names that no request can misuse."""

from __future__ import annotations

import itertools
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

from frx_graph.evidence.file_kind import FileKind
from frx_graph.service.analysis_job import JobFile

_PLAIN = re.compile(r"\w[\w .+()=,@-]{0,59}")
"""Characters of a name: 60 letters of any script fit in the 255 bytes of a file name."""
_SEPARATORS = re.compile(r"[/\\]+")
_CUDA_SUFFIXES = (".cu", ".cuh", ".cuda")
_SUFFIXES = (*_CUDA_SUFFIXES, ".ptx", ".csv", ".ncu-rep", ".json", ".json.gz", ".zip")


@dataclass(slots=True)
class JobFolder:
    """The path and files of the folder."""

    path: Path
    files: list[JobFile] = field(default_factory=list)

    def add_text(self, name: str, text: str, kind: FileKind, side: Literal["a", "b"] | None = None) -> None:
        """Add a file with this text, of this kind."""
        if kind is FileKind.CUDA and not name.lower().endswith(_CUDA_SUFFIXES):
            # A name with another kind's suffix would override `kind`.
            name += ".cu"
        (self.path / self._choose_name(name, side, kind)).write_text(text, encoding="utf-8", newline="")

    def add_file(self, name: str, content: BinaryIO, side: Literal["a", "b"] | None = None) -> None:
        """Add a file with the rest of `content`."""
        with (self.path / self._choose_name(name, side)).open("wb") as file:
            shutil.copyfileobj(content, file, 1 << 20)

    def _choose_name(self, given: str, side: Literal["a", "b"] | None, kind: FileKind | None = None) -> str:
        """Return `given` if it is plain and free, else a new name with the same suffix, which shows the kind."""
        taken = {file.name for file in self.files}
        name = _SEPARATORS.sub("_", given)
        if not _PLAIN.fullmatch(name) or name in taken:
            suffix = next((each for each in _SUFFIXES[::-1] if given.lower().endswith(each)), "")
            numbers = itertools.count(len(self.files) + 1)
            name = next(one for number in numbers if (one := f"file-{number}{suffix}") not in taken)
        self.files.append(JobFile(name=name, side=side, kind=kind))
        return name


@contextmanager
def make_job_folder() -> Iterator[JobFolder]:
    """Yield a new folder, removed with all its files afterwards."""
    with tempfile.TemporaryDirectory(prefix="frx-serve-", ignore_cleanup_errors=True) as folder:
        yield JobFolder(Path(folder))
