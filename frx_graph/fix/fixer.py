"""A fixer, and what it may read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from frx_graph.capture.call_site import MODEL_PATH, CallSite
from frx_graph.errors import ScriptError
from frx_graph.fix.source_file import CannotFixError, SourceFile, read_source
from frx_graph.passes.analysis import Analysis
from frx_graph.passes.copies.copy_necessity import Verdict
from frx_graph.records import Copy, Finding, SourceEdit


class OtherFixerError(Exception):
    """Another fixer of the same rule is for this finding."""


@dataclass(slots=True)
class SourceFiles:
    """The files that were read so far, each once."""

    _read: dict[str, SourceFile | CannotFixError] = field(default_factory=dict)

    def get(self, file: str) -> SourceFile:
        """Return the parsed file. Raises `CannotFixError` if it cannot be read."""
        if file not in self._read:
            try:
                self._read[file] = read_source(Path(file))
            except ScriptError as error:
                self._read[file] = CannotFixError(str(error))
        found = self._read[file]
        if isinstance(found, CannotFixError):
            raise found
        return found


@dataclass(frozen=True)
class FixSubject:
    """A finding, its graph's analysis, and the user's files. `judge_graph` judges the copies that the program asks for.
    `forwards` has the `forward` of each module of the model by the module's path, but for classes of torch. `builder`
    is the user's function that builds the model; None if it is not known."""

    finding: Finding
    analysis: Analysis
    files: SourceFiles
    judge_graph: Callable[[], Mapping[Copy, Verdict]]
    forwards: Mapping[str, CallSite] = field(default_factory=dict)
    builder: CallSite | None = None

    @property
    def root(self) -> CallSite | None:
        """The `forward` of the advised model itself; None if torch defines it."""
        return self.forwards.get(MODEL_PATH)

    def judge_copies(self) -> tuple[Verdict, ...]:
        """Return the verdict on each copy of the finding."""
        verdicts = self.judge_graph()
        return tuple(verdicts[copy] for copy in self.finding.copies)

    @property
    def source(self) -> SourceFile:
        """The file that the finding names. Raises `CannotFixError`."""
        if not self.finding.site.line:
            raise CannotFixError("its line is not known")
        return self.files.get(self.finding.site.file)


@dataclass(frozen=True, slots=True)
class Fixer:
    """Changes the source for findings of one rule.

    `propose` returns the edits, or raises `CannotFixError` if the source is not what they need, or `OtherFixerError`.
    `unsafe` edits change more than speed: strides of outputs, the precision of arithmetic, or what is compiled.
    """

    rule: str
    name: str
    propose: Callable[[FixSubject], Sequence[SourceEdit]]
    unsafe: bool = False
