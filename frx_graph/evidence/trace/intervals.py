"""Measure overlapping time spans: their union, the intersection of two sets, and the time of one owner alone.

A set of spans is merged first (`merged`): ordered, without overlaps. Functions of two sets then take linear time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

Owner = TypeVar("Owner", bound=Hashable)

Span = tuple[int, int]
"""Start and end in nanoseconds, with the end excluded."""


def merge_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the union as ordered spans with gaps between them; empty spans are left out."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if end <= start:
            continue
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return tuple(found)


def sum_spans(spans: Sequence[Span]) -> int:
    """Return the total length of merged spans."""
    return sum(end - start for start, end in spans)


def is_covered(spans: Sequence[Span], time_ns: int) -> bool:
    """Return True if one of the merged spans runs at a moment."""
    position = bisect_right(spans, time_ns, key=lambda span: span[0]) - 1
    return position >= 0 and time_ns < spans[position][1]


def intersect_spans(one: Sequence[Span], other: Sequence[Span]) -> tuple[Span, ...]:
    """Return the times at which both run. Inputs and result are merged."""
    found: list[Span] = []
    i = j = 0
    while i < len(one) and j < len(other):
        start, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if start < end:
            found.append((start, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def subtract_spans(one: Sequence[Span], other: Sequence[Span]) -> tuple[Span, ...]:
    """Return the times at which the first runs and the second does not. Inputs and result are merged."""
    found: list[Span] = []
    j = 0
    for first, end in one:
        start = first
        while j < len(other) and other[j][1] <= start:
            j += 1
        k = j
        while k < len(other) and other[k][0] < end:
            if other[k][0] > start:
                found.append((start, other[k][0]))
            start = max(start, other[k][1])
            k += 1
        if start < end:
            found.append((start, end))
    return tuple(found)


def measure_union(spans: Iterable[Span]) -> int:
    """Return the nanoseconds in which at least one of the `(start, end)` spans runs."""
    return sum_spans(merge_spans(spans))


def measure_exclusive(spans: Iterable[tuple[int, int, Owner]]) -> dict[Owner, int]:
    """Return, by owner, the nanoseconds in which only its spans run: the time that the union would lose without it.

    Spans are `(start, end, owner)`. Every owner has an entry, 0 if it never runs alone.
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
