"""Time spans that overlap: how long any of them runs, and how long one owner's run alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import TypeVar

Owner = TypeVar("Owner", bound=Hashable)


def union_ns(spans: Iterable[tuple[int, int]]) -> int:
    """Nanoseconds in which at least one of the `(start, end)` spans runs."""
    total = 0
    reached: int | None = None
    for start, end in sorted(spans):
        if reached is None or start > reached:
            reached = start
        if end > reached:
            total += end - reached
            reached = end
    return total


def sole_ns(spans: Iterable[tuple[int, int, Owner]]) -> dict[Owner, int]:
    """Nanoseconds in which only spans of one owner run: what the union would lose without that owner.

    Spans are `(start, end, owner)`. Every owner has an entry, 0 where it never runs alone.
    """
    edges: list[tuple[int, int, Owner]] = []
    alone: dict[Owner, int] = {}
    for start, end, owner in spans:
        alone.setdefault(owner, 0)
        if end > start:
            edges.append((start, 1, owner))
            edges.append((end, -1, owner))
    edges.sort(key=lambda edge: edge[0])
    running: dict[Owner, int] = defaultdict(int)
    before = 0
    for time, change, owner in edges:
        if len(running) == 1 and time > before:
            alone[next(iter(running))] += time - before
        before = time
        running[owner] += change
        if running[owner] == 0:
            del running[owner]
    return alone
