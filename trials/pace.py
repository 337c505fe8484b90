"""Estimate how long the rest of a trial takes, from what its pairs and quads have taken so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from frx_graph.trials.protocol import Protocol
from frx_graph.trials.samples import MeasuredQuad


class Pace:
    """Times the start of process pairs, and quads. Call the methods in the order of what happens."""

    def __init__(self, protocol: Protocol, clock: Callable[[], float]) -> None:
        self._protocol = protocol
        self._clock = clock
        self._last = clock()
        self._start_seconds = 0.0
        self._quad_seconds = 0.0

    def note_started(self) -> None:
        """Note that a pair of processes is ready."""
        self._start_seconds = self._lap()

    def note_quad(self) -> None:
        """Note that a quad has been measured."""
        self._quad_seconds = self._lap()

    def estimate_seconds(self, quads: Sequence[MeasuredQuad]) -> float:
        """Return how long the pairs and quads that are left take, if they take as long as the last, and nothing
        settles the trial before."""
        done = sum(not quad.void for quad in quads)
        pairs = self._protocol.process_pairs - 1 - quads[-1].quad.pair if quads else self._protocol.process_pairs
        return pairs * self._start_seconds + (self._protocol.quads - done) * self._quad_seconds

    def _lap(self) -> float:
        before, self._last = self._last, self._clock()
        return self._last - before
