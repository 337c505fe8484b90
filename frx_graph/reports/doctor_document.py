"""What was looked at in an installation, as JSON: the document `frx_doctor_v1`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from frx_graph.reports.check_part import CheckPart
from frx_graph.reports.render.published_schema import published_schema
from frx_graph.support.check import Check, Status, worst

SCHEMA_NAME: Literal["frx_doctor_v1"] = "frx_doctor_v1"


class DoctorDocument(BaseModel):
    """All checks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_: Literal["frx_doctor_v1"] = Field(default=SCHEMA_NAME, alias="schema")
    status: Status = Field(description="the most serious one of the checks")
    checks: tuple[CheckPart, ...]


def doctor_document(checks: Sequence[Check]) -> DoctorDocument:
    """In the order in which they were made."""
    return DoctorDocument(schema=SCHEMA_NAME, status=worst(checks), checks=tuple(map(CheckPart.of, checks)))


def doctor_schema() -> str:
    """The text of `frx_doctor_v1.schema.json`."""
    return published_schema(SCHEMA_NAME, DoctorDocument)


def as_json(document: DoctorDocument) -> dict[str, Any]:
    """What is written."""
    found: dict[str, Any] = TypeAdapter(DoctorDocument).dump_python(document, mode="json", by_alias=True)
    return found
