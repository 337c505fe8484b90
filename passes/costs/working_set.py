"""Estimate the memory that one step of a graph goes through again and again."""

from __future__ import annotations

from frx_graph.facts.graph_facts import GraphFacts

_LIVE_RESULTS = 2
"""Without a backward, memory of earlier results is used again: an operator's operand and its result are live."""


def estimate_working_set(facts: GraphFacts) -> int:
    """Return the bytes of inputs and parameters, and of results: all of them in training, else the largest ones."""
    given: dict[int, int] = {}
    made: dict[int, int] = {}
    for value in facts.values.values():
        group = given if value.producer is None else made
        group[value.storage] = max(group.get(value.storage, 0), value.bytes)
    results = [size for storage, size in made.items() if storage not in given]
    live = results if facts.train else sorted(results, reverse=True)[:_LIVE_RESULTS]
    return sum(given.values()) + sum(live)
