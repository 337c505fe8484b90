"""List the recompilations and the graph breaks of a graph's frame."""

from __future__ import annotations

from frx_graph.capture.call_site import UNKNOWN_SITE, CallSite
from frx_graph.capture.captured_graph import GraphBreak, get_frame_id
from frx_graph.evidence.recompile_reason import RecompileReason, parse_reason
from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.passes.analysis import Analysis
from frx_graph.support.torch_internals import dynamo_config


def get_recompile_limit() -> int:
    """Return the number of versions of a frame that Dynamo keeps, after which it runs the frame in eager."""
    return int(dynamo_config.recompile_limit)


def list_frame_recompiles(analysis: Analysis) -> tuple[RecompileReason, ...]:
    """Return the reasons for recompiling the frame of this graph, in order; other frames belong to other graphs."""
    frame = get_frame_id(analysis.facts.graph_id)
    return tuple(parse_reason(r.reason) for r in analysis.events.recompiles if get_frame_id(r.graph_id) == frame)


def list_frame_breaks(analysis: Analysis) -> tuple[GraphBreak, ...]:
    """Return the breaks that ended graphs of this graph's frame."""
    frame = get_frame_id(analysis.facts.graph_id)
    return tuple(b for b in analysis.events.breaks if b.graph_id and get_frame_id(b.graph_id) == frame)


def find_first_site(facts: GraphFacts) -> CallSite:
    """Return the first user line that the graph runs, else a site with at least a module path."""
    sites = [op.site for op in facts.ops]
    return next((site for site in sites if site.line), sites[0] if sites else UNKNOWN_SITE)
