"""Several trials as JSON: the document `frx_trial_matrix_v1`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from frx_graph.reports.render.published_schema import published_schema
from frx_graph.reports.trials.trial_document import TrialDocument

SCHEMA_NAME: Literal["frx_trial_matrix_v1"] = "frx_trial_matrix_v1"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MatrixEntry(_Part):
    """One trial of a matrix."""

    target: str
    shape: dict[str, int] = Field(description="sizes that the target was called with; none: as it is")
    dtype: str | None = Field(description="that model and inputs were cast to; null: as the target makes them")
    candidate: str | None = Field(description="that was tried alone; null: all that measured times speak for, together")
    trial: TrialDocument | None = Field(description="null: it came to nothing, and nothing of it counts")
    error: str | None = Field(description="why it came to nothing; null: it did not")


class TrialMatrixDocument(_Part):
    """All trials that were asked for at once, in the order in which they were."""

    schema_: Literal["frx_trial_matrix_v1"] = Field(default=SCHEMA_NAME, alias="schema")
    trials: tuple[MatrixEntry, ...]


def matrix_document(entries: tuple[MatrixEntry, ...]) -> TrialMatrixDocument:
    """The document of these trials."""
    return TrialMatrixDocument(schema=SCHEMA_NAME, trials=entries)


def matrix_schema() -> str:
    """The text of `frx_trial_matrix_v1.schema.json`."""
    return published_schema(SCHEMA_NAME, TrialMatrixDocument)


def as_json(document: TrialMatrixDocument) -> dict[str, Any]:
    """What is written."""
    found: dict[str, Any] = TypeAdapter(TrialMatrixDocument).dump_python(document, mode="json", by_alias=True)
    return found
