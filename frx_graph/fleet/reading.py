"""Read runs on this machine into rows, and report runs that cannot be read.

The summary of a run is used if it matches the run's files and this version, as in `frx analyze`; in an archive it is
read without unpacking. Otherwise the files are analysed.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

from frx_graph.analyze.run_summary import (
    LONGEST_SUMMARY,
    TOO_LONG,
    find_raw_files,
    list_raw_files,
    load_summary,
    parse_summary,
)
from frx_graph.errors import EvidenceError, summarize_error
from frx_graph.evidence.run import bundle_layout
from frx_graph.evidence.run.bundle import OpenBundle, extract_bundle, open_bundle
from frx_graph.evidence.run.bundle_zip import MOST_BYTES, MOST_MEMBERS, OF_MANY_RUNS, BundleZip
from frx_graph.fleet.messages import Failure, Fetch, ReadingTask
from frx_graph.fleet.rows import RunRows, build_run_rows
from frx_graph.fleet.run_names import find_runs, group_files
from frx_graph.reports.runs.run_document import RunResult, SourcePart
from frx_graph.support.plain_text import clean_line

_NO_RUN = "is not a run: it has no events, trace, summary or samples"
_REASON = 300
_SUMMARY = str(bundle_layout.SUMMARY)


@dataclass(frozen=True, slots=True)
class Begun:
    """The run, or archive, that the next outcomes belong to."""

    name: str


Outcome = Begun | RunRows | Failure | Fetch


def read_runs(task: ReadingTask) -> Iterator[Outcome]:
    """Yield the outcomes of all runs of the task, each after its name. The contents of files raise nothing."""
    path = Path(task.path)
    if task.kind == "archive":
        yield from _read_archive(path, task.name, task.part, task.parts, inner=False)
    else:
        read = _read_folder if task.kind == "folder" else _read_summary
        yield from _try_reading(task.name, path, partial(read, path, task))


def _try_reading(name: str, path: Path, reading: Callable[[], Outcome]) -> Iterator[Outcome]:
    yield Begun(name)
    try:
        found = reading()
    except Exception as error:  # noqa: BLE001 - even a bug must fail only one run
        found = Failure(name, _format_reason(error, path))
    yield found


def _format_reason(error: Exception, path: Path) -> str:
    """Return the message without `path`: the run is already named, and `path` may be in a removed folder."""
    if isinstance(error, MemoryError):
        return "reading it takes more memory than a reader may have"
    said = str(error) if isinstance(error, EvidenceError) else summarize_error(error)
    return clean_line(said.removeprefix(f"{path}: ").replace(f"{path}/", ""), _REASON)


def _read_folder(path: Path, task: ReadingTask) -> Outcome:
    with open_bundle(path) as opened:
        bundle = opened if task.run_id is None else replace(opened, name=task.run_id)
        kept, why_not = load_summary(bundle)
        if kept is not None:
            return build_run_rows(kept, task.name, anew=False)
        if why_not and not any(find_raw_files(bundle)):
            return Failure(task.name, why_not)
        return _analyze_bundle(bundle, task.name)


def _analyze_bundle(bundle: OpenBundle, name: str) -> RunRows:
    from frx_graph.analyze.run import analyze_files  # most runs have a summary

    return build_run_rows(analyze_files(bundle).result, name, anew=True)


def _read_summary(path: Path, task: ReadingTask) -> Outcome:
    """Read the summary of a remote run. The run's files are not compared, since that would mean fetching them."""
    sizes = task.sizes or {}
    kept, _ = parse_summary(path.read_bytes(), list_raw_files(sizes), lambda source: sizes[source.path] == source.bytes)
    return Fetch(task.name) if kept is None else build_run_rows(kept, task.name, anew=False)


def _read_archive(path: Path, name: str, part: int, parts: int, *, inner: bool) -> Iterator[Outcome]:
    yield Begun(name)
    try:
        with ExitStack() as opened:
            try:
                archive = opened.enter_context(BundleZip(path, OF_MANY_RUNS))
                runs, archives = find_runs(archive.names)
                if not runs and not archives:
                    raise EvidenceError(_NO_RUN)
            except EvidenceError as error:
                # The problem affects the whole archive, so readers of the other parts find it too.
                if part == 0:
                    yield Failure(name, _format_reason(error, path))
                return
            files = group_files(runs, archive.names)
            for run in runs[part::parts]:
                place = f"{name}/{run}" if run else name
                yield from _try_reading(place, path, partial(_read_archived_run, archive, path, run, files[run], place))
            for each in archives[part::parts]:
                yield from _read_inner_archive(archive, path, each, f"{name}/{each}", inner=inner)
    except Exception as error:  # noqa: BLE001 - as above
        yield Failure(name, _format_reason(error, path))


def _read_inner_archive(archive: BundleZip, path: Path, member: str, name: str, *, inner: bool) -> Iterator[Outcome]:
    """Read the archive `member` in the archive at `path`; archives within it are refused."""
    yield Begun(name)
    if inner:
        yield Failure(name, "is an archive in an archive in an archive: unpack one of them")
        return
    with tempfile.TemporaryDirectory(prefix="frx-fleet-") as folder:
        inside = Path(folder) / PurePosixPath(member).name
        try:
            archive.extract_member(member, inside)
        except EvidenceError as error:
            yield Failure(name, _format_reason(error, path))
            return
        yield from _read_archive(inside, name, 0, 1, inner=True)


def _read_archived_run(archive: BundleZip, path: Path, run: str, files: Sequence[str], name: str) -> Outcome:
    """Read the run in the folder `run` of an archive, "" for its root; `files` are its file names in the archive."""
    above = f"{run}/" if run else ""
    sizes = {file.removeprefix(above): archive.get_size(file) for file in files}
    if len(sizes) > MOST_MEMBERS or sum(sizes.values()) > MOST_BYTES:
        return Failure(name, f"has more than {MOST_MEMBERS} files, or {MOST_BYTES >> 30} GiB")

    def is_unchanged(source: SourcePart) -> bool:
        if sizes[source.path] != source.bytes:
            return False
        digest = hashlib.sha256()
        for chunk in archive.iterate_chunks(above + source.path):
            digest.update(chunk)
        return digest.hexdigest() == source.sha256

    # As `load_summary` does, without unpacking anything.
    kept: RunResult | None = None
    length, why_not = sizes.get(_SUMMARY), ""
    if length is not None and length <= LONGEST_SUMMARY:
        text = b"".join(archive.iterate_chunks(above + _SUMMARY))
        kept, why_not = parse_summary(text, list_raw_files(sizes), is_unchanged)
    elif length is not None:
        why_not = TOO_LONG
    if kept is not None:
        return build_run_rows(kept, name, anew=False)
    if why_not and not list_raw_files(sizes):
        return Failure(name, why_not)
    with extract_bundle(archive, PurePosixPath(run), path, files) as bundle:
        return _analyze_bundle(bundle, name)
