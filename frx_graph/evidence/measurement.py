"""One fact from outside, with its unit, and where it was read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from frx_graph.support.json_fields import NullFor


@dataclass(frozen=True, slots=True)
class Provenance:
    """The place that a fact was read from."""

    source: str
    """A file, or the program that said it."""
    line: Annotated[int, Ge(1)] | None
    """Null if the source has no lines."""
    name: str
    """The source's own name for it."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One number from outside: `value` of `metric` in `unit`."""

    metric: str
    value: Annotated[float, NullFor(math.nan)]
    """Null in JSON unless it is finite."""
    unit: str
    subject: str
    """The thing measured: a launch of a kernel, a kernel, an operator."""
    provenance: Provenance
