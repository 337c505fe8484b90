"""What was collected of a run as JSON: the document `frx_collect_v1`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from frx_graph.reports.render.published_schema import published_schema
from frx_graph.reports.runs.run_parts import RunResult

SCHEMA_NAME: Literal["frx_collect_v1"] = "frx_collect_v1"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CapturedPart(_Part):
    """A file of the bundle."""

    path: str = Field(description="within the bundle")
    bytes: int
    imported_from: str | None = Field(description="where it was copied from; null: it was written there")


class CollectDocument(_Part):
    """A run and its bundle."""

    schema_: Literal["frx_collect_v1"] = Field(default=SCHEMA_NAME, alias="schema")
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


def collect_schema() -> str:
    """The text of `frx_collect_v1.schema.json`."""
    return published_schema(SCHEMA_NAME, CollectDocument)


def as_json(document: CollectDocument) -> dict[str, Any]:
    """What is written."""
    found: dict[str, Any] = TypeAdapter(CollectDocument).dump_python(document, mode="json", by_alias=True)
    return found
