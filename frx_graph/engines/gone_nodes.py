"""Nodes that have gone with what ran on them, though the cluster does not say so of what ran there.

A cluster may lose a node between the start of a task and its first step, and then wait for a node like it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

GONE_SECONDS = 10.0
"""That a node has to be gone before nobody listens to it any more: the cluster itself may know better what was lost."""


class GoneNodes:
    """Counts, by `clock`, for how long nodes have been away."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}

    def among(self, wanted: Collection[str], alive: Collection[str]) -> frozenset[str]:
        """Of the ids that are `wanted`, those that were not `alive` for long, each time this was asked."""
        now = self._clock()
        self._since = {node: self._since.get(node, now) for node in wanted if node not in alive}
        return frozenset(node for node, since in self._since.items() if now - since >= GONE_SECONDS)
