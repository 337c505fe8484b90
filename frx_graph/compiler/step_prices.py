"""Relate savings to a step: the forward of a Dynamo graph and, in training, its backward, each with a price."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from frx_graph.compiler.rewrite_pipeline import RewrittenGraph
from frx_graph.records import Candidate


def price_steps(graphs: Sequence[RewrittenGraph]) -> tuple[RewrittenGraph, ...]:
    """Return the graphs with the price of a whole step as `run_seconds` of each candidate.

    Graphs with one `graph_id` are one step. Its price lacks what attention saves, since that comes before, so this is
    added. Inner choices concern the whole step: the first of the graphs gets each of them, with all gains added.
    """
    groups: dict[str, list[RewrittenGraph]] = {}
    for graph in graphs:
        groups.setdefault(graph.graph_id, []).append(graph)
    seconds = {graph_id: _sum_step(group) for graph_id, group in groups.items()}
    choices = {graph_id: _merge_choices(group, seconds[graph_id]) for graph_id, group in groups.items()}
    # Recorded candidates keep the price of the step in which they were proposed.
    priced = {graph.graph_id for graph in graphs if graph.disturbed or graph.run_seconds is not None}
    return tuple(
        replace(
            graph,
            applied=tuple(
                replace(one, run_seconds=seconds[graph.graph_id]) if graph.graph_id in priced else one
                for one in graph.applied
            ),
            untried=choices.pop(graph.graph_id, ()),
        )
        for graph in graphs
    )


def _sum_step(group: Sequence[RewrittenGraph]) -> float | None:
    """Return the price of a step without rewrites; None if no graph has a price, or times of one were disturbed."""
    if any(graph.disturbed for graph in group):
        return None
    priced = [graph for graph in group if graph.run_seconds is not None]
    # Only rewrites of Dynamo's graph have gains that no price of a graph contains.
    apart = (one.predicted_seconds for graph in group if graph.run_seconds is None for one in graph.applied)
    return sum(graph.run_seconds or 0.0 for graph in priced) + sum(filter(None, apart)) if priced else None


def _merge_choices(group: Iterable[RewrittenGraph], step: float | None) -> tuple[Candidate, ...]:
    found: dict[Candidate, list[float | None]] = {}
    for graph in group:
        for one in graph.untried:
            found.setdefault(replace(one, predicted_seconds=None), []).append(one.predicted_seconds)
    return tuple(
        replace(choice, predicted_seconds=_sum_known(gains), run_seconds=step) for choice, gains in found.items()
    )


def _sum_known(gains: Iterable[float | None]) -> float | None:
    total = 0.0
    for gain in gains:
        if gain is None:
            return None
        total += gain
    return total
