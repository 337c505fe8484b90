"""JSON documents, built from records, read and written."""

from __future__ import annotations

import functools
import math
from typing import Annotated, Any, Self

from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationInfo

from frx_graph.support.plain_text import escape_surrogates

_OF_RECORD = "record"
"""Validation context of a part that is built from a record, not read from a document."""


def read_from(path: str, description: str | None = None, **field: Any) -> Any:
    """Return a field that `Part.from_record` takes from the attribute `path` of the record, such as `card.title`."""
    return Field(validation_alias=AliasPath(*path.split(".")), description=description, **field)


def is_of_record(info: ValidationInfo) -> bool:
    """Return True if a part is built from a record, False if it is read from a document."""
    return bool(info.context == _OF_RECORD)


def _to_milliseconds(value: float | None, info: ValidationInfo) -> float | None:
    return value / 1e6 if is_of_record(info) and value is not None else value


def _to_microseconds(value: float | None, info: ValidationInfo) -> float | None:
    return value / 1e3 if is_of_record(info) and value is not None else value


def _to_percent(value: float | None, info: ValidationInfo) -> float | None:
    return 100.0 * value if is_of_record(info) and value is not None else value


Text = Annotated[str, BeforeValidator(escape_surrogates)]
"""Untrusted text. Lone surrogates are escaped."""
Milliseconds = Annotated[float, BeforeValidator(_to_milliseconds)]
"""Milliseconds in a document, nanoseconds in its records."""
Microseconds = Annotated[float, BeforeValidator(_to_microseconds)]
"""Microseconds in a document, nanoseconds in its records."""
Percent = Annotated[float, BeforeValidator(_to_percent)]
"""Percent in a document, a share, 0..1, in its records."""
TextOrNull = Annotated[str | None, BeforeValidator(lambda text: text or None)]
"""Null in a document, empty text in its records."""


class _Overlay:
    """A record with some attributes replaced."""

    def __init__(self, record: object, replaced: dict[str, Any]) -> None:
        self._record = record
        self._replaced = replaced

    def __getattr__(self, name: str) -> Any:
        return self._replaced[name] if name in self._replaced else getattr(self._record, name)


class Part(BaseModel):
    """Base of the documents and their parts. Validators are built on first use, since most commands need few."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, populate_by_name=True)

    @classmethod
    def from_record(cls, record: object, **own: Any) -> Self:
        """Return the part with the attributes of a record; nested parts come from nested records.

        `own` adds or replaces attributes of the record.
        """
        return cls.model_validate(_Overlay(record, own) if own else record, from_attributes=True, context=_OF_RECORD)


class WrittenPart(Part):
    """A part that is never read. Its schema requires all fields, those with a default too."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)


class FinitePart(Part):
    """A part whose numbers must be finite, both when it is made and when it is read."""

    model_config = ConfigDict(allow_inf_nan=False)


@functools.cache
def get_adapter(document: Any) -> TypeAdapter[Any]:
    """Return the reader and writer of a type of document."""
    return TypeAdapter(document)


def to_json(document: object) -> Any:
    """Return the document as plain JSON values.

    A number that is not finite becomes null. Lone surrogates are escaped, so that UTF-8 can hold all text.
    """
    kind: Any = type(document)
    return _make_portable(get_adapter(kind).dump_python(document, mode="json", by_alias=True))


def _make_portable(value: Any) -> Any:
    # Large documents have many numbers and names: exact types take half the time of `match`.
    kind = type(value)
    if kind is str:
        return value if value.isascii() else escape_surrogates(value)
    if kind is float:
        return value if math.isfinite(value) else None
    if kind is dict:
        return {_make_portable(key): _make_portable(item) for key, item in value.items()}
    return [_make_portable(item) for item in value] if kind is list else value
