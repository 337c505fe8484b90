"""Collected runs: the JSON document `frx_collect_v1`, and the report for people."""

from __future__ import annotations

import signal
from typing import Literal

from pydantic import Field

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
    """Render the bundle's path and files."""
    out = [
        f"frx collect completed{_describe_ending(document)}",
        f"Run bundle: {clean_line(document.bundle, _LONGEST)}",
        *([f"Zip bundle: {clean_line(document.zip, _LONGEST)}"] if document.zip is not None else []),
        f"Captured ({format_count(len(document.files), 'file')}):",
        *(f"  {clean_line(file.path)}{' [imported]' if file.imported_from else ''}" for file in document.files),
        *(f"Warning: {clean_line(warning, _LONGEST)}" for warning in document.warnings),
    ]
    return "\n".join(out) + "\n"


def _describe_ending(document: CollectDocument) -> str:
    """Describe a failed workload's end; empty if it did not fail."""
    if document.signal is not None:
        known = document.signal in set(signal.Signals)
        name = signal.Signals(document.signal).name if known else f"signal {document.signal}"
        return f": the workload was ended by {name}"
    return f": the workload ended with exit code {document.exit_code}" if document.exit_code else ""
