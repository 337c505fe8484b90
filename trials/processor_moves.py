"""Find the quads in which a virtual machine's processors were far from each other.

Such quads are void: how much a candidate gains depends on where the processors are. The least distance is known from
earlier trials on the machine, or from this one. If the processors come nearer than ever before, earlier quads may turn
out to be void.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from frx_graph.measure.machine.processor_distance import FAR, keep_least_distance, read_least_distance
from frx_graph.trials.environment_record import TrialEnvironment
from frx_graph.trials.samples import Block, Cause, Disturbance, MeasuredQuad, make_block

_LEAST = 1.0
"""All threads together take at least as long as one alone with its share: less is an error of measurement."""
_SAME = 1.05
"""Times of the stored least distance up to which a trial confirms it, and keeps its own instead."""


@dataclass(slots=True)
class ProcessorMoves:
    """Knows the least distance. With `ignore_load` far processors do not make a quad void."""

    ignore_load: bool
    _stored: float | None = None
    _own: float | None = None

    def note(self, quad: MeasuredQuad, environment: TrialEnvironment) -> None:
        """Learn from the distances of a quad."""
        seen = sorted(block.distance for block in quad.blocks if block.distance is not None)
        if len(seen) < len(quad.blocks):
            return
        setup = environment.setup
        machine = environment.host, setup.processor, setup.operators.threads
        if self._own is None:
            self._stored = read_least_distance(*machine)
        # Not the least one, which may be an error.
        nearest = max(_LEAST, seen[1])
        if self._own is None or nearest < self._own:
            self._own = nearest
            if self._stored is None or nearest <= _SAME * self._stored:
                keep_least_distance(nearest, *machine)

    def is_far(self, distance: float | None) -> bool:
        """Return True if that is far, as far as is known."""
        known = [least for least in (self._own, self._stored) if least is not None]
        return bool(known) and distance is not None and distance >= FAR * min(known)

    def has_far(self, quads: Sequence[MeasuredQuad]) -> bool:
        """Return True if a quad that counts is void by what is known now."""
        return any(self.mark(quad).void for quad in quads if not quad.void)

    def mark(self, quad: MeasuredQuad) -> MeasuredQuad:
        """Return the quad, with the blocks marked in which the processors were far."""
        first, second, third, fourth = map(self._mark_block, quad.blocks)
        return replace(quad, blocks=(first, second, third, fourth))

    def _mark_block(self, block: Block) -> Block:
        if block.disturbance is not None or block.ignored is not None or not self.is_far(block.distance):
            return block
        found = Disturbance(Cause.MOVED, f"threads met in {block.distance:.2g} times one thread's share")
        return make_block(block.arm, block.seconds, found, block.distance, ignore_load=self.ignore_load)
