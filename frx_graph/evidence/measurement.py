"""One external fact, with its unit and its source."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from frx_graph.support.json_fields import NullFor


@dataclass(frozen=True, slots=True)
class Provenance:
    """The source of a fact."""

    source: str
    """A file, or the program that reported it."""
    line: Annotated[int, Ge(1)] | None
    """Null if the source has no lines."""
    name: str
    """The source's own name for it."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One external number: `value` of `metric` in `unit`."""

    metric: str
    value: Annotated[float, NullFor(math.nan)]
    """Null in JSON unless it is finite."""
    unit: str
    subject: str
    """The measured object: a launch of a kernel, a kernel, an operator."""
    provenance: Provenance
