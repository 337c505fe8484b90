"""Detect a chain of four or more arms that threads of one warp take: the warp executes all of them.

Certain if the condition is arithmetic on the thread's place that differs within a warp.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.analyzers.cuda.finding import Occurrence
from frx_graph.evidence.cuda.source import Branch, CudaSource

MANY = 4
"""Fewest arms for a remainder: `warp_divergence` reports two, and predicated instructions have fewer."""
_OF_BORDERS = 6
"""Fewest arms for any other condition: of four that separate the borders of a tile, a warp takes two."""


def detect(source: CudaSource) -> Iterator[Occurrence]:
    """Yield one occurrence per chain; its later arms are themselves chains, and not repeated."""
    for kernel in source.kernels:
        last = 0
        for event in kernel.events:
            if not isinstance(event, Branch) or event.arms < MANY or not event.condition.lane or event.condition.data:
                continue
            continues = any(branch == last for branch, _ in event.step.arms)
            last = event.number
            if not continues and (event.arms >= _OF_BORDERS or event.condition.modulo):
                said = f"`{event.condition.text}` and what follows: {event.arms} arms that threads of one warp take"
                yield Occurrence(kernel.name, event.step.line, said)
