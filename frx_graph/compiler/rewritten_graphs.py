"""Print the rewrites of this process."""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.compiler.rewrite_pipeline import RewrittenGraph
from frx_graph.records import Candidate
from frx_graph.support.plain_text import clean_line

_LONGEST = 200
_NODES_SHOWN = 4


class RewrittenGraphs(tuple[RewrittenGraph, ...]):
    """The rewrites of each compiled graph, in order. Prints a graph, and below it what was applied and refused."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(line for graph in self for line in _describe_graph(graph)) or "no graph was rewritten"


def _describe_graph(graph: RewrittenGraph) -> Iterator[str]:
    plan = f", plan {graph.plan}" if graph.plan else ""
    yield f"graph {graph.signature or graph.graph_id or 'of a whole model'}, {graph.phase.value}{plan}"
    for one in graph.applied:
        yield f"    applied {_describe_candidate(one)}"
    for refusal in graph.refused:
        yield f"    refused {clean_line(refusal.subject, _LONGEST)}: {clean_line(refusal.reason, _LONGEST)}"
    for one in graph.untried:
        yield f"    left to a trial: {_describe_candidate(one)}"
    if not (graph.applied or graph.refused or graph.untried):
        yield "    nothing to change"


def _describe_candidate(one: Candidate) -> str:
    shown = one.nodes or one.choices
    if not shown:
        return f"{one.rewrite} to the whole graph"
    hidden = len(shown) - _NODES_SHOWN
    names = ", ".join(clean_line(name, _LONGEST) for name in shown[:_NODES_SHOWN])
    return f"{one.rewrite} to {names}{f' and {hidden} more' if hidden > 0 else ''}"
