"""What was collected of a run as JSON: the document `frx_collect_v1`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from frx_graph.reports.render.document import Part
from frx_graph.reports.runs.run_parts import RunResult


class CapturedPart(Part):
    """A file of the bundle."""

    path: str = Field(description="within the bundle")
    bytes: int
    imported_from: str | None = Field(description="where it was copied from; null: it was written there")


class CollectDocument(Part):
    """A run and its bundle."""

    schema_: Literal["frx_collect_v1"] = Field(default="frx_collect_v1", alias="schema")
    run_id: str
    job_name: str
    bundle: str = Field(description="the folder")
    zip: str | None = Field(description="null: none was made")
    exit_code: int | None = Field(description="of the workload; null: a signal has ended it")
    signal: int | None
    duration_seconds: float
    files: tuple[CapturedPart, ...]
    warnings: tuple[str, ...]
    result: RunResult | None = Field(description="what was found in it, as in derived/summary.json; null: nothing")
