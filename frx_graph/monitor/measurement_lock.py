"""The one place for a measurement of whole steps: two at once would each measure the turns that the other takes."""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

_REFUSALS = 4
"""In a row, without a step of whoever has the place: it may never be called again, as a program that evaluates."""


class Measuring(Protocol):
    """What measures now and then."""

    @property
    def measuring(self) -> bool:
        """Whether it does now."""


class MeasuringPlace:
    """Is free when whoever took it measures no more, is gone, or makes no steps while others ask for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken_by: weakref.ref[Measuring] | None = None
        self._refusals = 0

    def taken_for(self, one: Measuring) -> bool:
        """Take it, to measure at once; False where it is not free."""
        with self._lock:
            other = None if self._taken_by is None else self._taken_by()
            if other is not None and other.measuring and self._refusals < _REFUSALS:
                self._refusals += 1
                return False
            self._taken_by = weakref.ref(one)
            self._refusals = 0
            return True

    def kept_by(self, one: Measuring) -> bool:
        """`one`, which took it, makes a step; False where another has taken it since."""
        with self._lock:
            kept = self._taken_by is not None and self._taken_by() is one
            if kept:
                self._refusals = 0
            return kept
