"""The recompilations of the frame that a graph was compiled from."""

from __future__ import annotations

from frx_graph.capture.call_site import UNKNOWN_SITE, CallSite
from frx_graph.capture.captured_graph import GraphBreak
from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.passes.analysis import Analysis
from frx_graph.passes.stability.recompile_reasons import RecompileReason, parse_reason
from frx_graph.support.torch_internals import dynamo_config


def recompile_limit() -> int:
    """Versions of one frame that Dynamo keeps, as this process sets it; then it runs the frame in eager."""
    return int(dynamo_config.recompile_limit)


def frame_of(graph_id: str) -> str:
    """The frame of a compile id: `0` for `0/3`."""
    return graph_id.rpartition("/")[0]


def recompiles_of_frame(analysis: Analysis) -> tuple[RecompileReason, ...]:
    """Why the frame of this graph was compiled again, in order. Other frames are other graphs' business, so that
    nothing is told twice."""
    frame = frame_of(analysis.facts.graph_id)
    return tuple(parse_reason(r.reason) for r in analysis.events.recompiles if frame_of(r.graph_id) == frame)


def breaks_of_frame(analysis: Analysis) -> tuple[GraphBreak, ...]:
    """Where graphs of this graph's frame ended."""
    frame = frame_of(analysis.facts.graph_id)
    return tuple(b for b in analysis.events.breaks if b.graph_id and frame_of(b.graph_id) == frame)


def first_known_site(facts: GraphFacts) -> CallSite:
    """The first line of the user's that the graph runs; at least a module path, where torch alone called it."""
    sites = [op.site for op in facts.ops]
    return next((site for site in sites if site.line), sites[0] if sites else UNKNOWN_SITE)
