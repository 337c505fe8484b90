"""Compare two runs, traces or advice files for `frx compare` and `frx analyze --before --after`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from frx_graph.analyzers.run_change.recording import RecordKind
from frx_graph.cli.options.evidence_options import is_bundle
from frx_graph.cli.printing.output import print_result, show_stages
from frx_graph.errors import EvidenceError, OptionError
from frx_graph.evidence.file_kind import FileKind, detect_file_kind

_EXPECTED = "a run's folder or zip, a trace, or advice (frx_advice_v1)"
_NOUNS = {RecordKind.RUN: "a run", RecordKind.TRACE: "a trace", RecordKind.ADVICE: "advice"}


def detect_record_kind(path: Path) -> RecordKind | None:
    """Return the kind of record at `path`; None for files about kernels, and for what cannot be read."""
    from frx_graph.reports.advice.advice_file import is_advice

    if is_bundle(path):
        return RecordKind.RUN
    if is_advice(path):
        return RecordKind.ADVICE
    try:
        return RecordKind.TRACE if detect_file_kind(path) is FileKind.TRACE else None
    except EvidenceError:
        return None


def compare_records(
    before: Path,
    after: Path,
    *,
    as_document: bool,
    top: int,
    labels: tuple[str | None, str | None] = (None, None),
    output: Path | None = None,
) -> int | None:
    """Write what changed, and return the exit code: 0 if the second is not shown to be worse, also if step times are
    undecided; 1 if it is worse; 2 if nothing can be compared. Returns None if both are about kernels. Raises
    `OptionError` for two kinds."""
    first, second = detect_record_kind(before), detect_record_kind(after)
    if first is None and second is None:
        return None
    if first is None or second is None or first is not second:
        for path in (before, after):
            if not is_bundle(path):
                # A file may also be missing or empty.
                detect_file_kind(path, _EXPECTED)
        kinds = ((before, first), (after, second))
        names = (f"{path} is {'about kernels' if kind is None else _NOUNS[kind]}" for path, kind in kinds)
        raise OptionError(", and ".join(names), "compare two of a kind")
    from frx_graph.analyze.recordings import read_recording
    from frx_graph.analyzers.run_change.change import compare_recordings
    from frx_graph.reports.runs.run_change_document import build_run_change_document
    from frx_graph.reports.runs.run_change_report import render_run_change

    with show_stages() as progress:
        progress(f"reading {before}")
        old = read_recording(before, first)
        progress(f"reading {after}")
        new = read_recording(after, second)
    old, new = (replace(side, name=label or side.name) for side, label in zip((old, new), labels, strict=True))
    change = compare_recordings(old, new)
    document = build_run_change_document(change)
    render = partial(render_run_change, document.result, top=top)
    print_result(document, render, as_document=as_document, output=output)
    return int(change.worse) if change.comparable else 2
