"""Estimate how long the rest of a trial takes, from what its pairs and quads have taken so far."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from frx_graph.trials.protocol import Protocol
from frx_graph.trials.samples import MeasuredQuad


class Pace:
    """Times the start of process pairs, and quads. Call the methods in the order of what happens."""

    def __init__(self, protocol: Protocol, clock: Callable[[], float]) -> None:
        self._protocol = protocol
        self._clock = clock
        self._last = clock()
        self._starts: list[float] = []
        self._quads: list[float] = []
        self._waits: list[float] = []

    def note_started(self) -> None:
        """Note that a pair of processes is ready."""
        self._starts.append(self._lap())

    def note_quad(self) -> None:
        """Note that a quad has been measured."""
        self._quads.append(self._lap())

    def note_failed(self) -> None:
        """Note that an arm has failed, and is started again: that time says nothing about the rest."""
        self._lap()

    def note_waited(self) -> None:
        """Note the end of a pause, in which nothing was measured."""
        self._waits.append(self._lap())

    def estimate_seconds(self, quads: Sequence[MeasuredQuad]) -> float | None:
        """Return how long the pairs and quads that are left take, if nothing settles the trial. Each is expected to
        take the median of those before, and the same share of quads to be disturbed, with a pause after each. None
        before a quad that counts, and before the first one here."""
        done = sum(not quad.void for quad in quads)
        if not done or not self._quads:
            return None
        pairs = self._protocol.process_pairs - 1 - quads[-1].quad.pair
        each = statistics.median(self._quads)
        disturbed = (len(quads) - done) / done * (each + (statistics.median(self._waits) if self._waits else 0.0))
        return pairs * statistics.median(self._starts) + (self._protocol.quads - done) * (each + disturbed)

    def _lap(self) -> float:
        before, self._last = self._last, self._clock()
        return self._last - before
