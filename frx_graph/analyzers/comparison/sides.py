"""Which of two sides is better, and a number of both."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Winner(enum.StrEnum):
    """The better side. TIE: they are equal, as far as that can be told; UNKNOWN: it cannot be told."""

    A = "a"
    B = "b"
    TIE = "tie"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Change:
    """A number of both sides, in `unit`; None: not known of that side. Neither more nor less is better by itself."""

    metric: str
    title: str
    unit: str
    a: float | None
    b: float | None

    @property
    def delta(self) -> float | None:
        """What `b` has more."""
        return None if self.a is None or self.b is None else self.b - self.a


def less_is_better(a: float | None, b: float | None, band: float) -> Winner:
    """The side with less of it; a tie where they are within `band` of the larger, 0..1."""
    if a is None or b is None:
        return Winner.UNKNOWN
    if abs(a - b) <= band * max(abs(a), abs(b)):
        return Winner.TIE
    return Winner.A if a < b else Winner.B
