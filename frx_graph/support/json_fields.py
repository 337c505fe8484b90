"""Annotate fields of records: bounds, and values written as null. Imports pydantic only when it is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Interval

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

Count = Annotated[int, Interval(ge=0, le=2**63 - 1)]


@dataclass(frozen=True, slots=True)
class NullFor:
    """Annotate a field whose value `unknown` is written as null, and read from null."""

    unknown: object

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Wrap the schema of the field, as pydantic asks of annotations."""
        from pydantic_core import core_schema

        known = handler(source)
        written = core_schema.plain_serializer_function_ser_schema(
            lambda value: None if value == self.unknown else value, return_schema=core_schema.nullable_schema(known)
        )
        return core_schema.no_info_wrap_validator_function(
            lambda value, read: self.unknown if value is None else read(value), known, serialization=written
        )
