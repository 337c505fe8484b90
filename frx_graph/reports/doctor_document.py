"""What was looked at in an installation, as JSON: the document `frx_doctor_v1`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from frx_graph.reports.check_part import CheckPart
from frx_graph.reports.render.document import Part
from frx_graph.support.check import Check, Status, worst


class DoctorDocument(Part):
    """All checks."""

    schema_: Literal["frx_doctor_v1"] = Field(default="frx_doctor_v1", alias="schema")
    status: Status = Field(description="the most serious one of the checks")
    checks: tuple[CheckPart, ...]


def doctor_document(checks: Sequence[Check]) -> DoctorDocument:
    """In the order in which they were made."""
    return DoctorDocument(status=worst(checks), checks=tuple(map(CheckPart.of, checks)))
