"""Collected runs: the JSON document `frx_collect_v1`, and the report for people."""

from __future__ import annotations

import signal
from typing import Literal

from pydantic import Field

from frx_graph.evidence.run.bundle_layout import GPU_METRICS
from frx_graph.reports.render.document import Part, Text, read_from
from frx_graph.reports.render.quantities import format_count
from frx_graph.reports.runs.run_document import RunResult
from frx_graph.support.plain_text import clean_line


class CapturedPart(Part):
    """A file of the bundle."""

    path: str = Field(description="within the bundle")
    bytes: int
    imported_from: str | None = Field(description="source of the copy; null: written in place")


class CollectDocument(Part):
    """A run and its bundle."""

    schema_: Literal["frx_collect_v1"] = Field(default="frx_collect_v1", alias="schema")
    run_id: str = read_from("metadata.run_id")
    job_name: str = read_from("metadata.job_name")
    bundle: Text = Field(description="the folder")
    zip: Text | None = Field(description="null: no zip")
    exit_code: int | None = read_from("end.exit_code", "of the workload; null: a signal ended it")
    signal: int | None = read_from("end.signal")
    duration_seconds: float = read_from("end.seconds")
    files: tuple[CapturedPart, ...]
    warnings: tuple[str, ...] = read_from("metadata.warnings")
    result: RunResult | None = Field(description="the findings, as in derived/summary.json; null: no analysis")


_LONGEST = 2000


def render_collected(document: CollectDocument) -> str:
    """Render the bundle's path and files; only the path if the program failed before its first step."""
    ending = _describe_ending(document)
    early = has_failed_early(document)
    files = (f"  {clean_line(file.path)}{_describe_file(file, document.result)}" for file in document.files)
    out = [
        "frx collect completed" if ending is None else f"frx collect: {ending}",
        *(["No step was recorded, so there is no diagnosis: see its output in optional_logs.txt"] if early else []),
        f"Run bundle: {clean_line(document.bundle, _LONGEST)}",
        *([f"Zip bundle: {clean_line(document.zip, _LONGEST)}"] if document.zip is not None else []),
        *([] if early else [f"Captured ({format_count(len(document.files), 'file')}):", *files]),
        *(f"Warning: {clean_line(warning, _LONGEST)}" for warning in document.warnings),
    ]
    return "\n".join(out) + "\n"


def _describe_file(file: CapturedPart, result: RunResult | None) -> str:
    if file.path == str(GPU_METRICS) and result is not None and not result.run.run_summary.uses_device:
        return " [no GPU]"
    return " [imported]" if file.imported_from else ""


def has_failed_early(document: CollectDocument) -> bool:
    """Return True if the program failed without a recorded step, so that a diagnosis would be about nothing."""
    steps = 0 if document.result is None else document.result.step_count
    return not steps and _describe_ending(document) is not None


def _describe_ending(document: CollectDocument) -> str | None:
    """Describe a failed program's end; None if it did not fail."""
    if document.signal is not None:
        known = document.signal in set(signal.Signals)
        name = signal.Signals(document.signal).name if known else f"signal {document.signal}"
        return f"the program was ended by {name}"
    return f"the program failed: exit code {document.exit_code}" if document.exit_code else None
