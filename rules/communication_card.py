"""Names of kernels that communicate between devices: one YAML file a library, `communication/<library>.yaml`."""

from __future__ import annotations

import functools
import re
from typing import Annotated

from pydantic import Field, StringConstraints, field_validator

from frx_graph.rules.card_file import Prose, StrictModel, load_cards


class CommunicationCard(StrictModel):
    """One library. One of the regular expressions in `functions` is found in the qualified name of each kernel. `names`
    are kernels as traces name them."""

    id: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
    title: Prose
    functions: Annotated[tuple[Prose, ...], Field(min_length=1)]
    source: Prose
    names: Annotated[tuple[Prose, ...], Field(min_length=1)]

    @field_validator("functions")
    @classmethod
    def _check_patterns(cls, functions: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in functions:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} cannot be compiled: {error}") from error
        return functions


@functools.cache
def load_communication() -> tuple[CommunicationCard, ...]:
    """Return every card, ordered by id."""
    return load_cards("communication", CommunicationCard, "id")


@functools.cache
def _compile_patterns() -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern) for card in load_communication() for pattern in card.functions)


def is_communication(function: str) -> bool:
    """Return True if a qualified function, without arguments, is a kernel that communicates between devices."""
    return any(pattern.search(function) for pattern in _compile_patterns())
