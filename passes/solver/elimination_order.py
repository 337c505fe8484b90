"""In which order to eliminate variables: always the one whose table is smallest next, as in the minimum-weight rule."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Order:
    """`variables` one by one need tables of `entries` entries in all, once the `skipped` ones are decided otherwise."""

    variables: tuple[int, ...]
    skipped: tuple[int, ...]
    entries: int


def elimination_order(
    choices: Sequence[int], scopes: Iterable[Sequence[int]], largest: int, may_skip: int = 0
) -> Order:
    """An order without a table of more than `largest` entries. `choices` counts those of each variable, which share
    the costs of `scopes`. Variables that would need larger ones are skipped, and after more than `may_skip` of them
    the order ends unfinished, as `skipped` then shows."""
    neighbours: list[set[int]] = [set() for _ in choices]
    for scope in scopes:
        for variable in scope:
            neighbours[variable].update(scope)
    for variable, around in enumerate(neighbours):
        around.discard(variable)
    entries = [
        own * math.prod(choices[other] for other in around) for own, around in zip(choices, neighbours, strict=True)
    ]
    queue = [(size, variable) for variable, size in enumerate(entries)]
    heapq.heapify(queue)
    order: list[int] = []
    skipped: list[int] = []
    done = [False] * len(choices)
    total = 0
    while queue and len(skipped) <= may_skip:
        size, variable = heapq.heappop(queue)
        if done[variable] or size != entries[variable]:
            continue
        around = neighbours[variable]
        fits = size <= largest
        if fits:
            order.append(variable)
            total += size
        else:
            variable = max((variable, *sorted(around)), key=lambda other: len(neighbours[other]))
            around = neighbours[variable]
            skipped.append(variable)
        done[variable] = True
        for other in around:
            neighbours[other].discard(variable)
            entries[other] //= choices[variable]
            if fits:
                added = around - neighbours[other] - {other}
                neighbours[other] |= added
                entries[other] *= math.prod(choices[new] for new in added)
            heapq.heappush(queue, (entries[other], other))
    return Order(tuple(order), tuple(skipped), total)
