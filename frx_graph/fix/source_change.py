"""Put the edits of several findings together: changed files, and their diff."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from frx_graph.fix.source_file import CannotFixError, apply_edits, overlap
from frx_graph.records import Finding, Fixability, SourceEdit


@dataclass(frozen=True, slots=True)
class ProposedFix:
    """Edits, and the findings that they fix; several findings may have the same edits."""

    edits: tuple[SourceEdit, ...]
    findings: tuple[Finding, ...]
    unsafe: bool

    @property
    def files(self) -> tuple[str, ...]:
        """The files that it changes."""
        return tuple(dict.fromkeys(edit.file for edit in self.edits))


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file before and after."""

    path: Path
    before: bytes
    after: bytes


def collect_fixes(findings: Sequence[Finding]) -> tuple[ProposedFix, ...]:
    """Return the fixes that are offered, each once, in the order of the findings."""
    by_edits: dict[tuple[SourceEdit, ...], list[Finding]] = {}
    for finding in findings:
        if finding.offer is not None and finding.offer.edits:
            by_edits.setdefault(finding.offer.edits, []).append(finding)
    return tuple(
        ProposedFix(edits, tuple(found), any(_is_unsafe(one) for one in found)) for edits, found in by_edits.items()
    )


def _is_unsafe(finding: Finding) -> bool:
    return finding.offer is not None and finding.offer.fixability is Fixability.UNSAFE


def drop_overlapping(fixes: Sequence[ProposedFix]) -> tuple[ProposedFix, ...]:
    """Return the fixes whose edits leave those of earlier ones alone."""
    kept: list[ProposedFix] = []
    for fix in fixes:
        taken = (edit for other in kept for edit in other.edits)
        if not any(overlap(mine, theirs) for theirs in taken for mine in fix.edits):
            kept.append(fix)
    return tuple(kept)


def build_changes(fixes: Sequence[ProposedFix], sources: Mapping[str, bytes]) -> tuple[FileChange, ...]:
    """Return the files that the fixes change together. `sources` has the bytes for which the edits were made. Raises
    `CannotFixError` if the edits do not go together."""
    by_file: dict[str, list[SourceEdit]] = {}
    for fix in fixes:
        for edit in fix.edits:
            by_file.setdefault(edit.file, []).append(edit)
    return tuple(
        FileChange(Path(file), sources[file], apply_edits(sources[file], edits)) for file, edits in by_file.items()
    )


def read_sources(fixes: Sequence[ProposedFix]) -> dict[str, bytes]:
    """Return the bytes of the files that the fixes change. Raises `CannotFixError` if one cannot be read."""
    found: dict[str, bytes] = {}
    for file in dict.fromkeys(file for fix in fixes for file in fix.files):
        try:
            found[file] = Path(file).read_bytes()
        except OSError as error:
            raise CannotFixError(f"{file} cannot be read: {error.strerror}") from error
    return found


def format_diff(changes: Sequence[FileChange], names: Mapping[Path, str]) -> str:
    """Return a diff that `git apply` and `patch -p1` take; `names` are the paths that it shows."""
    return "".join(
        f"diff --git a/{name} b/{name}\n--- a/{name}\n+++ b/{name}\n{format_hunks(change.before, change.after)}"
        for change in changes
        for name in [names[change.path]]
    )


def format_hunks(before: bytes, after: bytes) -> str:
    """Return the hunks of a unified diff of two UTF-8 files, without a header."""
    old, new = (_split_lines(data.decode("utf-8")) for data in (before, after))
    lines = list(difflib.unified_diff(old, new))[2:]
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _split_lines(text: str) -> list[str]:
    """Return the lines with their ends. A diff ends lines at line feeds only, `str.splitlines` also at form feeds."""
    *lines, rest = text.split("\n")
    return [*(f"{line}\n" for line in lines), *([rest] if rest else [])]
