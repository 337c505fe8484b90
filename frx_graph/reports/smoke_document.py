"""What came out of the smoke test, as JSON: the document `frx_smoke_test_v1`, under the mode "smoke_test"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from frx_graph.reports.render.document import Part


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


def smoke_document(checks: Iterable[tuple[str, str | None]]) -> SmokeDocument:
    """`checks` are names with problems, None where there was none."""
    parts = tuple(SmokeCheckPart(name=name, passed=problem is None, problem=problem) for name, problem in checks)
    return SmokeDocument(result=SmokeResult(passed=all(part.passed for part in parts), checks=parts))
