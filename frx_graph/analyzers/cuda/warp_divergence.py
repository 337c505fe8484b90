"""Detect a condition that sends every second, third, … thread of a warp another way, so that the warp takes both.

Certain for a remainder that does not align with a warp (`threadIdx.x % 2 == 0`), if both branches have work, or a loop
repeats more than a store. Silent on the choice of one thread of a warp.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.analyzers.cuda.excessive_branching import MANY
from frx_graph.analyzers.cuda.finding import Occurrence
from frx_graph.evidence.cuda.source import Access, Branch, Call, CudaSource, Kernel, Loop, Product, Use


def detect(source: CudaSource) -> Iterator[Occurrence]:
    """Yield one occurrence per condition."""
    for kernel in source.kernels:
        chains: set[int] = set()
        for event in kernel.events:
            if not isinstance(event, Branch):
                continue
            if event.arms >= MANY or any((chain, 1) in event.step.arms for chain in chains):
                # A chain is reported once, by `excessive_branching`.
                chains.add(event.number)
                continue
            condition = event.condition
            if not condition.modulo or condition.data or condition.single:
                continue
            if (event.arms > 1 and _works(kernel, event, 0) and _works(kernel, event, 1)) or (
                event.step.loops and not event.invariant and _works(kernel, event, 0, stores=False)
            ):
                said = f"`{condition.text}` holds for some threads of each warp, and the others wait"
                yield Occurrence(kernel.name, event.step.line, said)


def _works(kernel: Kernel, branch: Branch, arm: int, *, stores: bool = True) -> bool:
    """Return True if a branch does more than set a variable, which compilers turn into a select. With `stores` False,
    stores alone do not count: the other threads wait for a few instructions only."""
    return any(
        (branch.number, arm) in event.step.arms
        and isinstance(event, (Access, Call, Loop, Product))
        and (stores or not isinstance(event, Access) or event.use is not Use.WRITE)
        for event in kernel.events
    )
