"""Several trials as JSON: the document `frx_trial_matrix_v1`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from frx_graph.reports.render.document import Part
from frx_graph.reports.trials.trial_document import TrialDocument


class MatrixEntry(Part):
    """One trial of a matrix."""

    target: str
    shape: dict[str, int] = Field(description="sizes that the target was called with; none: as it is")
    dtype: str | None = Field(description="that model and inputs were cast to; null: as the target makes them")
    candidate: str | None = Field(description="that was tried alone; null: all that measured times speak for, together")
    trial: TrialDocument | None = Field(description="null: it came to nothing, and nothing of it counts")
    error: str | None = Field(description="why it came to nothing; null: it did not")


class TrialMatrixDocument(Part):
    """All trials that were asked for at once, in the order in which they were."""

    schema_: Literal["frx_trial_matrix_v1"] = Field(default="frx_trial_matrix_v1", alias="schema")
    trials: tuple[MatrixEntry, ...]


def matrix_document(entries: tuple[MatrixEntry, ...]) -> TrialMatrixDocument:
    """The document of these trials."""
    return TrialMatrixDocument(trials=entries)
