"""JSON documents of the installation's checks and the smoke test: `frx_doctor_v1` and `frx_smoke_test_v1`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import Field

from frx_graph.reports.render.document import Part
from frx_graph.support.check import Check, Status, find_worst


class CheckPart(Part):
    """One check of the installation."""

    name: str
    value: str = Field(description="what was found")
    status: Status
    hint: str = Field(description="what to do if the status is not ok; empty: nothing")


class DoctorDocument(Part):
    """All checks."""

    schema_: Literal["frx_doctor_v1"] = Field(default="frx_doctor_v1", alias="schema")
    status: Status = Field(description="the most serious status of the checks")
    checks: tuple[CheckPart, ...]


def build_doctor_document(checks: Sequence[Check]) -> DoctorDocument:
    """Return the document of checks, in the order in which they were made."""
    return DoctorDocument(status=find_worst(checks), checks=tuple(map(CheckPart.from_record, checks)))


class SmokeCheckPart(Part):
    """One check of the smoke test."""

    name: str
    passed: bool
    problem: str | None = Field(description="the wrong result; null: it passed")


class SmokeResult(Part):
    """All of them."""

    schema_: Literal["frx_smoke_test_v1"] = Field(default="frx_smoke_test_v1", alias="schema")
    passed: bool
    checks: tuple[SmokeCheckPart, ...]


class SmokeDocument(Part):
    """The wrapper that all documents of results share."""

    mode: Literal["smoke_test"] = "smoke_test"
    result: SmokeResult


def build_smoke_document(checks: Iterable[tuple[str, str | None]]) -> SmokeDocument:
    """Return the document of checks, given as names with problems; None is a check that passed."""
    parts = tuple(SmokeCheckPart(name=name, passed=problem is None, problem=problem) for name, problem in checks)
    return SmokeDocument(result=SmokeResult(passed=all(part.passed for part in parts), checks=parts))
