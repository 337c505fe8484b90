"""The one place for a measurement of whole steps: two at once would each measure the turns that the other takes."""

from __future__ import annotations

import threading
import weakref
from typing import Protocol


class Measuring(Protocol):
    """What measures now and then."""

    @property
    def measuring(self) -> bool:
        """Whether it does now."""


class MeasuringPlace:
    """Is free when whoever took it measures no more, or is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken_by: weakref.ref[Measuring] | None = None

    def taken_for(self, one: Measuring) -> bool:
        """Take it, to measure at once; False where it is not free."""
        with self._lock:
            other = None if self._taken_by is None else self._taken_by()
            if other is not None and other.measuring:
                return False
            self._taken_by = weakref.ref(one)
            return True
