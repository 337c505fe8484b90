"""What came out of the smoke test, as JSON: the document `frx_smoke_test_v1`, under the mode "smoke_test"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from frx_graph.reports.render.published_schema import published_schema

SCHEMA_NAME: Literal["frx_smoke_test_v1"] = "frx_smoke_test_v1"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SmokeCheckPart(_Part):
    """One thing that had to come out."""

    name: str
    passed: bool
    problem: str | None = Field(description="what came out instead; null: it passed")


class SmokeResult(_Part):
    """All of them."""

    schema_: Literal["frx_smoke_test_v1"] = Field(default=SCHEMA_NAME, alias="schema")
    passed: bool
    checks: tuple[SmokeCheckPart, ...]


class SmokeDocument(_Part):
    """The wrapper that all documents of results share."""

    mode: Literal["smoke_test"] = "smoke_test"
    result: SmokeResult


def smoke_document(checks: Iterable[tuple[str, str | None]]) -> SmokeDocument:
    """`checks` are names with problems, None where there was none."""
    parts = tuple(SmokeCheckPart(name=name, passed=problem is None, problem=problem) for name, problem in checks)
    return SmokeDocument(
        result=SmokeResult(schema=SCHEMA_NAME, passed=all(part.passed for part in parts), checks=parts)
    )


def smoke_schema() -> str:
    """The text of `frx_smoke_test_v1.schema.json`."""
    return published_schema(SCHEMA_NAME, SmokeDocument)


def as_json(document: SmokeDocument) -> dict[str, Any]:
    """What is written."""
    found: dict[str, Any] = TypeAdapter(SmokeDocument).dump_python(document, mode="json", by_alias=True)
    return found
