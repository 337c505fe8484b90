"""What is to be said of a file of Nsight Compute's when its launches have been read."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from frx_graph.evidence.number_format import NumberFormat

_REPORTED = 20
"""Of what could not be read so many are named."""


class Form(StrEnum):
    """How launches are written: a row of a table is a metric, or a launch; or it is a binary report."""

    LONG = "long"
    WIDE = "wide"
    REPORT = "report"


@dataclass(slots=True)
class NcuExport:
    """One file. Where something stands is its line, from 1; in a report, which has none, the launch, from 1."""

    source: str
    form: Form = Form.LONG
    number_format: NumberFormat = NumberFormat.POINT
    launches: int = 0
    foreign_lines: int = 0
    """Lines of ncu, or of the program that was profiled."""
    unknown_units: dict[str, int] = field(default_factory=dict)
    """Metrics that are used here, measured in a unit that is not known: with the place where each is seen first."""
    unreadable: dict[str, int] = field(default_factory=dict)
    """The same of values that are no numbers."""

    def note_unit(self, what: str, place: int) -> None:
        """A metric with a unit that is not known."""
        _note(self.unknown_units, what, place)

    def note_value(self, what: str, place: int) -> None:
        """A value that is no number."""
        _note(self.unreadable, what, place)


def _note(noted: dict[str, int], what: str, place: int) -> None:
    if len(noted) < _REPORTED:
        noted.setdefault(what, place)
