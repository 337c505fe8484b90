"""Measure the times of a graph's operators in other layouts, and the device's bandwidth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from frx_graph.errors import EvidenceError
from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.facts.operator_signature import OperatorSignature
from frx_graph.measure.inductor.generated_timing import get_generated_seconds
from frx_graph.measure.machine.device_profile_cache import get_device_profile
from frx_graph.measure.measurement_cache import MeasuredOperators
from frx_graph.passes.layouts.dimension_map import Order
from frx_graph.passes.rewrites.generated_loops import list_loop_calls
from frx_graph.passes.rewrites.layout.anchor_calls import AnchorCall, list_anchor_calls, list_conversion_calls
from frx_graph.passes.rewrites.layout.assignment import find_undecided_loops, find_undecided_values
from frx_graph.passes.rewrites.layout.costs import AnchorSeconds
from frx_graph.passes.rewrites.rewrite import RewriteSubject


def add_measured_times(subject: RewriteSubject, *, prepared: bool = False) -> RewriteSubject:
    """Return the subject with all times that decide its layout.

    Anchors come first: their times tell which loops and conversions matter. With `prepared`, weights are stored in the
    order of their convolution.
    """
    subject = replace(subject, bandwidth_bytes_per_s=measure_bandwidth(subject.facts))
    subject = replace(subject, seconds=time_anchors(subject, prepared=prepared))
    subject = replace(subject, loop_seconds=time_loops(subject))
    return replace(subject, conversion_seconds=time_conversions(subject))


def time_anchors(subject: RewriteSubject, *, prepared: bool = False) -> AnchorSeconds:
    """Return the measured times of every anchor in every possible order; with `prepared`, weights have it, too.

    Anchors with an unknown time are left out. If the bandwidth is unknown, the result is empty.
    """
    asked = {
        anchor.op.node: list_anchor_calls(
            anchor, subject.facts, subject.phase, prepared=prepared, frozen=subject.frozen
        )
        for anchor in subject.anchors
    }
    if not asked or subject.bandwidth_bytes_per_s is None:
        return {}
    timed = time_calls(
        (
            [signature for forms in variants for form in forms for signature in form.calls]
            for orders in asked.values()
            for variants in zip(*(call.calls for call in orders.values()), strict=True)
        ),
        find_device_type(subject.facts),
    )
    found: dict[str, dict[Order, float]] = {}
    for node, orders in asked.items():
        times = {order: _sum_fastest(call, timed, subject.bandwidth_bytes_per_s) for order, call in orders.items()}
        known = {order: seconds for order, seconds in times.items() if seconds is not None}
        if known and len(known) == len(times):
            found[node] = known
    return found


def time_loops(subject: RewriteSubject) -> AnchorSeconds:
    """Return the measured times of generated loops whose order is undecided."""
    asked = {loop.op.node: list_loop_calls(loop, subject.facts) for loop in find_undecided_loops(subject)}
    timed = get_generated_seconds(
        (tuple(dict.fromkeys(calls.values())) for calls in asked.values()),
        find_device_type(subject.facts),
    )
    return {
        node: {order: timed[call] / call.times for order, call in calls.items()}
        for node, calls in asked.items()
        if all(call in timed for call in calls.values())
    }


def time_conversions(subject: RewriteSubject) -> Mapping[str, float]:
    """Return the measured seconds to convert each value, by name, between its orders: the slower direction.

    Compilers that generate loops convert inside them, at the device's bandwidth (seen with Inductor, 2.15). A separate
    copy takes up to three times as long.
    """
    if subject.generates_loops:
        return {}
    asked = {value.name: calls for value in find_undecided_values(subject) if (calls := list_conversion_calls(value))}
    timed = time_calls(asked.values(), find_device_type(subject.facts))
    return {
        name: max(timed[call] for call in calls)
        for name, calls in asked.items()
        if all(call in timed for call in calls)
    }


def time_calls(groups: Iterable[Sequence[OperatorSignature]], device_type: str) -> Mapping[OperatorSignature, float]:
    """Return the seconds of each call that could be timed; times of one group are comparable."""
    return time_under_load(groups, device_type)[0]


def time_under_load(
    groups: Iterable[Sequence[OperatorSignature]], device_type: str
) -> tuple[Mapping[OperatorSignature, float], bool]:
    """Return what `time_calls` returns, and True if other programs disturbed times that were taken now."""
    asked = list(groups)
    if not asked:
        return {}, False
    measured = MeasuredOperators(device_type)
    measured.time(asked)
    times = {signature: measured.seconds(signature) for group in asked for signature in group}
    return {signature: seconds for signature, seconds in times.items() if seconds is not None}, measured.loaded


def _sum_fastest(call: AnchorCall, timed: Mapping[OperatorSignature, float], bytes_per_second: float) -> float | None:
    """Sum the calls in their fastest forms; None if one could not be timed as it is."""
    seconds = call.moved_bytes / bytes_per_second
    for forms in call.calls:
        times = [form.sum_seconds(timed) for form in forms]
        if times[0] is None:
            return None
        seconds += min(known for known in times if known is not None)
    return seconds


def measure_bandwidth(facts: GraphFacts) -> float | None:
    """Return the bytes per second, read plus written, of the graph's device; None if it cannot be measured."""
    return _read_bandwidth(find_device_type(facts))


def list_known_bandwidths() -> tuple[str, ...]:
    """Return the device types of this machine whose bandwidth is known, or can be measured now."""
    here = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    return tuple(kind for kind in here if _read_bandwidth(kind) is not None)


def _read_bandwidth(device_type: str) -> float | None:
    try:
        return get_device_profile(device_type).bandwidth_bytes_per_s
    except EvidenceError:
        return None


def find_device_type(facts: GraphFacts) -> str:
    """Return the device type to time the graph's operators on: "cuda" if any value is there."""
    return "cuda" if any(value.device.type == "cuda" for value in facts.values.values()) else "cpu"
