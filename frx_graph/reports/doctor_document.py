"""Checks of an installation and of the smoke test as JSON: `frx_doctor_v1` and `frx_smoke_test_v1`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import Field

from frx_graph.reports.render.document import Part
from frx_graph.support.check import Check, Status, find_worst


class CheckPart(Part):
    """One thing that was looked at."""

    name: str
    value: str = Field(description="what was found")
    status: Status
    hint: str = Field(description="what to do where the status is not ok; empty where there is nothing to do")


class DoctorDocument(Part):
    """All checks."""

    schema_: Literal["frx_doctor_v1"] = Field(default="frx_doctor_v1", alias="schema")
    status: Status = Field(description="the most serious one of the checks")
    checks: tuple[CheckPart, ...]


def build_doctor_document(checks: Sequence[Check]) -> DoctorDocument:
    """Return the document of checks, in the order in which they were made."""
    return DoctorDocument(status=find_worst(checks), checks=tuple(map(CheckPart.from_record, checks)))


class SmokeCheckPart(Part):
    """One thing that had to come out."""

    name: str
    passed: bool
    problem: str | None = Field(description="what came out instead; null: it passed")


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
    """Return the document of checks, given as names with problems; None if there was none."""
    parts = tuple(SmokeCheckPart(name=name, passed=problem is None, problem=problem) for name, problem in checks)
    return SmokeDocument(result=SmokeResult(passed=all(part.passed for part in parts), checks=parts))
