"""One fact from outside, with its unit, and where it was read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a fact stands: `source` is a file, or the program that said it; `line` counts from 1, None where the source
    has none; `name` is what the source calls it."""

    source: str
    line: int | None
    name: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """`value` of `metric` in `unit`. `subject` is what was measured: a launch of a kernel, a kernel, an operator."""

    metric: str
    value: float
    unit: str
    subject: str
    provenance: Provenance
