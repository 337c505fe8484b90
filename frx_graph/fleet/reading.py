"""Reads runs on this machine into rows. Runs that cannot be read are outcomes, too.

The summary of a run is used if it matches the run's files and this version, as in `frx analyze`; one in an archive is
read without unpacking. Otherwise the files are analysed, and only then torch is imported.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from frx_graph.analyze.run_summary import LONGEST_SUMMARY, TOO_LONG, kept_result, kept_summary, raw_files, raw_in
from frx_graph.errors import EvidenceError, first_line
from frx_graph.evidence.run import bundle_layout
from frx_graph.evidence.run.bundle import OpenBundle, extracted, open_bundle
from frx_graph.evidence.run.bundle_zip import MOST_BYTES, MOST_MEMBERS, OF_MANY_RUNS, BundleZip
from frx_graph.fleet.messages import Failure, Fetch, ReadingTask
from frx_graph.fleet.rows import RunRows, run_rows
from frx_graph.fleet.run_names import files_of, runs_among
from frx_graph.reports.runs.run_parts import RunResult, SourcePart
from frx_graph.support.plain_text import one_line

_NO_RUN = "holds no run: no events, no trace, no summary, no samples"
_REASON = 300


@dataclass(frozen=True, slots=True)
class Begun:
    """The run, or archive, that the next outcomes belong to."""

    name: str


Outcome = Begun | RunRows | Failure | Fetch


def read(task: ReadingTask) -> Iterator[Outcome]:
    """The outcomes of all runs of the task, each behind its name. Raises nothing for what is in files."""
    path = Path(task.path)
    match task.kind:
        case "folder":
            yield from _outcome(task.name, path, lambda: _folder(path, task.name, task.run_id))
        case "summary":
            yield from _outcome(task.name, path, lambda: _summary(path, task.name, task.sizes or {}))
        case "archive":
            yield from _archive(path, task.name, task.part, task.parts, inner=False)


def _outcome(name: str, path: Path, reading: Callable[[], Outcome]) -> Iterator[Outcome]:
    yield Begun(name)
    try:
        found = reading()
    except Exception as error:  # noqa: BLE001 - a bug, too, must fail one run and not all
        found = Failure(name, _reason(error, path))
    yield found


def _reason(error: Exception, path: Path) -> str:
    """Without `path`, which is named already, and may be one of a folder that is gone when this is read."""
    if isinstance(error, MemoryError):
        return "reading it takes more memory than a reader may have"
    said = str(error) if isinstance(error, EvidenceError) else first_line(error)
    return one_line(said.removeprefix(f"{path}: ").replace(f"{path}/", ""), _REASON)


def _folder(path: Path, name: str, run_id: str | None) -> Outcome:
    with open_bundle(path) as opened:
        bundle = opened if run_id is None else replace(opened, name=run_id)
        kept, why_not = kept_summary(bundle)
        if kept is not None:
            return run_rows(kept, name, anew=False)
        if why_not and not any(raw_in(bundle)):
            return Failure(name, why_not)
        return _analysed(bundle, name)


def _analysed(bundle: OpenBundle, name: str) -> RunRows:
    from frx_graph.analyze.run import analyse_files  # torch, which most runs do without

    return run_rows(analyse_files(bundle).result, name, anew=True)


def _summary(path: Path, name: str, sizes: dict[str, int]) -> Outcome:
    """Read the summary of a run elsewhere. The run's files are not compared, since that would mean to fetch them."""
    kept, _ = kept_result(path.read_bytes(), raw_files(sizes), lambda source: sizes[source.path] == source.bytes)
    return Fetch(name) if kept is None else run_rows(kept, name, anew=False)


def _archive(path: Path, name: str, part: int, parts: int, *, inner: bool) -> Iterator[Outcome]:
    yield Begun(name)
    try:
        with ExitStack() as opened:
            try:
                archive = opened.enter_context(BundleZip(path, OF_MANY_RUNS))
                runs, archives = runs_among(archive.names)
                if not runs and not archives:
                    raise EvidenceError(_NO_RUN)
            except EvidenceError as error:
                # It is that of the whole archive, and those who read the other parts find the same.
                if part == 0:
                    yield Failure(name, _reason(error, path))
                return
            files = files_of(runs, archive.names)
            for run in runs[part::parts]:
                member = _Member(archive, path, run, files[run], f"{name}/{run}" if run else name)
                yield from _outcome(member.name, path, member.read)
            for each in archives[part::parts]:
                yield from _inner_archive(archive, path, each, f"{name}/{each}", inner=inner)
    except Exception as error:  # noqa: BLE001 - as above
        yield Failure(name, _reason(error, path))


def _inner_archive(archive: BundleZip, path: Path, member: str, name: str, *, inner: bool) -> Iterator[Outcome]:
    """Read the archive `member` of the one at `path`; archives within it are refused."""
    if inner:
        yield Begun(name)
        yield Failure(name, "is an archive in an archive in an archive: unpack one of them")
        return
    with tempfile.TemporaryDirectory(prefix="frx-fleet-") as folder:
        inside = Path(folder) / PurePosixPath(member).name
        yield Begun(name)
        try:
            archive.extract(member, inside)
        except EvidenceError as error:
            yield Failure(name, _reason(error, path))
            return
        yield from _archive(inside, name, 0, 1, inner=True)


@dataclass(frozen=True, slots=True)
class _Member:
    """A run in the folder `run` of an archive, "" for its root; `files` are the run's files, as the archive names
    them."""

    archive: BundleZip
    path: Path
    run: str
    files: Sequence[str]
    name: str

    def read(self) -> Outcome:
        sizes = {self._inside(file): self.archive.size(file) for file in self.files}
        if len(sizes) > MOST_MEMBERS or sum(sizes.values()) > MOST_BYTES:
            return Failure(self.name, f"has more than {MOST_MEMBERS} files, or {MOST_BYTES >> 30} GiB")
        kept, why_not = self._kept(sizes)
        if kept is not None:
            return run_rows(kept, self.name, anew=False)
        if why_not and not raw_files(sizes):
            return Failure(self.name, why_not)
        with extracted(self.archive, PurePosixPath(self.run), self.path, self.files) as bundle:
            return _analysed(bundle, self.name)

    def _kept(self, sizes: dict[str, int]) -> tuple[RunResult | None, str]:
        """As `kept_summary`, without unpacking anything."""
        summary = str(bundle_layout.SUMMARY)
        if summary not in sizes:
            return None, ""
        if sizes[summary] > LONGEST_SUMMARY:
            return None, TOO_LONG
        text = b"".join(self.archive.chunks(self._within(summary)))

        def still(source: SourcePart) -> bool:
            return sizes[source.path] == source.bytes and self._digest(source.path) == source.sha256

        return kept_result(text, raw_files(sizes), still)

    def _digest(self, file: str) -> str:
        digest = hashlib.sha256()
        for chunk in self.archive.chunks(self._within(file)):
            digest.update(chunk)
        return digest.hexdigest()

    def _within(self, file: str) -> str:
        return f"{self.run}/{file}" if self.run else file

    def _inside(self, file: str) -> str:
        return file.removeprefix(f"{self.run}/") if self.run else file
