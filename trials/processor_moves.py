"""Find the quads in which a virtual machine's processors were far from each other.

Such quads are void: how much a candidate gains depends on where the processors are. The least distance is known from
earlier trials on the machine, or from this one. If the processors come nearer than ever before, all quads so far were
measured far apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from frx_graph.measure.machine.processor_distance import FAR, keep_least_distance, read_least_distance
from frx_graph.trials.environment_record import TrialSetup
from frx_graph.trials.samples import Block, Cause, Disturbance, MeasuredQuad, make_block

_LEAST = 1.0
"""All threads together take at least as long as one alone with its share: less is an error of measurement."""


@dataclass(slots=True)
class ProcessorMoves:
    """Knows the least distance. With `ignore_load` far processors do not make a quad void."""

    ignore_load: bool
    _least: float | None = None
    _kept: bool = False

    def come_nearer(self, quad: MeasuredQuad, setup: TrialSetup) -> bool:
        """Note the distances of a quad. Return True if the processors were far in all quads before it."""
        seen = [block.distance for block in quad.blocks if block.distance is not None]
        if not seen:
            return False
        machine = setup.processor, setup.operators.threads
        before = self._least or read_least_distance(*machine)
        nearest = max(_LEAST, min(seen))
        self._least = nearest if before is None else min(before, nearest)
        if nearest < FAR * self._least and not (self._kept and self._least == before):
            keep_least_distance(self._least, *machine)
            self._kept = True
        return before is not None and before >= FAR * nearest

    def is_far(self, distance: float | None) -> bool:
        """Return True if that is far, as far as is known."""
        return self._least is not None and distance is not None and distance >= FAR * self._least

    def mark(self, quad: MeasuredQuad) -> MeasuredQuad:
        """Return the quad, with the blocks marked in which the processors were far."""
        first, second, third, fourth = map(self._mark_block, quad.blocks)
        return replace(quad, blocks=(first, second, third, fourth))

    def _mark_block(self, block: Block) -> Block:
        if block.disturbance is not None or block.distance is None or not self.is_far(block.distance):
            return block
        times = block.distance / (self._least or _LEAST)
        found = Disturbance(Cause.MOVED, f"the processors' threads took {times:.2g} times as long to meet")
        return make_block(block.arm, block.seconds, found, block.distance, ignore_load=self.ignore_load)
