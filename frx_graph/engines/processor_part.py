"""One of several equal parts of the processors that a node's programs may use."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass

from frx_graph.measure.machine.processor_state import siblings


@dataclass(frozen=True, slots=True)
class ProcessorPart:
    """The part `number`, from 0, of `parts`. Each has as many processors as the others, so that they are alike; no two
    share one, unless there are fewer processors than parts."""

    number: int
    parts: int

    def of(self, usable: Collection[int], core: Callable[[int], Collection[int]] = siblings) -> frozenset[int]:
        """Its processors, neighbours; those of one `core` stay together, since they slow each other down."""
        ordered = sorted(usable, key=lambda processor: (min(core(processor)), processor))
        size = max(1, len(ordered) // self.parts)
        begin = self.number * size % len(ordered)
        return frozenset(ordered[begin : begin + size])

    def take(self) -> None:
        """From now on the process, and what it starts, uses no others, where the system can see to that."""
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.of(os.sched_getaffinity(0)))
