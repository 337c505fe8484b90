"""Measures what choosing orders for a graph rests on: its anchors' times, and the device's bandwidth."""

from __future__ import annotations

from frx_graph.errors import EvidenceError
from frx_graph.evidence.device_calibration import device_profile
from frx_graph.evidence.measurement_cache import MeasuredOperators
from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.passes.rewrites.anchor_calls import AnchorCall, anchor_calls
from frx_graph.passes.rewrites.order_problem import AnchorSeconds
from frx_graph.passes.rewrites.rewrite import RewriteSubject
from frx_graph.rules.dimension_map import Order


def anchor_seconds(subject: RewriteSubject, *, prepared: bool = False) -> AnchorSeconds:
    """Measured times of every anchor in each of its orders; an anchor of which one is missing is left out, all
    are where the bandwidth is not known. With `prepared`, its weights are stored in that order, too."""
    asked = {
        anchor.op.node: anchor_calls(anchor, subject.facts, subject.phase, prepared=prepared)
        for anchor in subject.anchors
    }
    if not asked or subject.bandwidth_bytes_per_s is None:
        return {}
    measured = MeasuredOperators(_device_type(subject.facts))
    measured.time(
        variants
        for orders in asked.values()
        for variants in zip(*(call.calls for call in orders.values()), strict=True)
    )
    found: dict[str, dict[Order, float]] = {}
    for node, orders in asked.items():
        times = {order: _total(call, measured, subject.bandwidth_bytes_per_s) for order, call in orders.items()}
        known = {order: seconds for order, seconds in times.items() if seconds is not None}
        if known and len(known) == len(times):
            found[node] = known
    return found


def _total(call: AnchorCall, measured: MeasuredOperators, bytes_per_second: float) -> float | None:
    times = [measured.seconds(signature) for signature in call.calls]
    known = [seconds for seconds in times if seconds is not None]
    return sum(known) + call.moved_bytes / bytes_per_second if len(known) == len(times) else None


def bandwidth_of(facts: GraphFacts) -> float | None:
    """Bytes per second, read plus written, of the graph's device; None where it could not be measured."""
    try:
        return device_profile(_device_type(facts)).bandwidth_bytes_per_s
    except EvidenceError:
        return None


def _device_type(facts: GraphFacts) -> str:
    return "cuda" if any(value.device.type == "cuda" for value in facts.values.values()) else "cpu"
