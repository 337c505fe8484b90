"""From a graph of an inner compiler's to the same graph rewritten: facts, measured times, candidates, changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from torch import Tensor, fx

from frx_graph.capture.aot_graph import captured_from_aot, renewed
from frx_graph.capture.captured_graph import Phase
from frx_graph.errors import EvidenceError, RewriteError
from frx_graph.evidence.device_calibration import device_profile
from frx_graph.evidence.measurement_cache import MeasuredOperators
from frx_graph.facts.build import build_graph_facts
from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.passes.rewrites import REWRITES
from frx_graph.passes.rewrites.anchor_calls import AnchorCall, anchor_calls
from frx_graph.passes.rewrites.order_problem import AnchorSeconds
from frx_graph.passes.rewrites.rewrite import RewriteSubject
from frx_graph.records import Candidate, Refusal
from frx_graph.rules.dimension_map import Order


@dataclass(frozen=True)
class RewrittenGraph:
    """What was done to one graph: the candidates applied, and what was refused with its reason. `conversions` are the
    copies that were inserted, by node name."""

    graph_id: str
    phase: Phase
    applied: tuple[Candidate, ...]
    refused: tuple[Refusal, ...]
    conversions: tuple[str, ...] = ()


def rewrite_graph(
    module: fx.GraphModule,
    *,
    graph_id: str,
    phase: Phase,
    train: bool,
    inner: str,
    plan: str,
    static_inputs: Collection[str] = (),
    visible: Collection[str] = (),
    given: Mapping[str, Tensor] = MappingProxyType({}),
) -> RewrittenGraph:
    """Apply to `module`, in place, what measured times say is worth it."""
    captured = captured_from_aot(
        module, graph_id=graph_id, phase=phase, train=train, static_inputs=frozenset(static_inputs)
    )
    facts = build_graph_facts(captured)
    subject = RewriteSubject(
        facts=facts,
        phase=phase,
        inner=inner,
        everything=plan == "all",
        bandwidth_bytes_per_s=_bandwidth(facts) if plan == "solved" else None,
        visible=frozenset(visible),
        given=given,
    )
    if plan == "solved":
        subject = replace(subject, seconds=_seconds(subject))
    applied: list[Candidate] = []
    refused: list[Refusal] = []
    conversions: list[str] = []
    for rewrite in REWRITES:
        changed = False
        for outcome in rewrite.propose(subject):
            if isinstance(outcome, Refusal):
                refused.append(outcome)
                continue
            try:
                conversions.extend(rewrite.apply(subject, module, outcome))
            except RewriteError as error:
                refused.append(Refusal(rewrite.name, str(error), outcome.nodes))
            else:
                changed = True
                applied.append(outcome)
        if changed:
            # The next rewrite looks at the graph as this one has left it.
            subject = replace(subject, facts=build_graph_facts(renewed(captured)), given={})
    return RewrittenGraph(graph_id, phase, tuple(applied), tuple(refused), tuple(conversions))


def _seconds(subject: RewriteSubject) -> AnchorSeconds:
    """Measured times of every anchor in each of its orders; an anchor of which one is missing is left out."""
    asked = {anchor.op.node: anchor_calls(anchor, subject.facts, subject.phase) for anchor in subject.anchors}
    if not asked:
        return {}
    measured = MeasuredOperators(_device_type(subject.facts))
    measured.time(
        variants
        for orders in asked.values()
        for variants in zip(*(call.calls for call in orders.values()), strict=True)
    )
    per_byte = 1 / subject.bandwidth_bytes_per_s if subject.bandwidth_bytes_per_s is not None else None
    found: dict[str, dict[Order, float]] = {}
    for node, orders in asked.items():
        times = {order: _total(call, measured, per_byte) for order, call in orders.items()}
        known = {order: seconds for order, seconds in times.items() if seconds is not None}
        if known and len(known) == len(times):
            found[node] = known
    return found


def _total(call: AnchorCall, measured: MeasuredOperators, seconds_per_byte: float | None) -> float | None:
    times = [measured.seconds(signature) for signature in call.calls]
    moving = 0.0 if not call.moved_bytes else seconds_per_byte and call.moved_bytes * seconds_per_byte
    known = [seconds for seconds in (*times, moving) if seconds is not None]
    return sum(known) if len(known) == len(times) + 1 else None


def _bandwidth(facts: GraphFacts) -> float | None:
    try:
        return device_profile(_device_type(facts)).bandwidth_bytes_per_s
    except EvidenceError:
        return None


def _device_type(facts: GraphFacts) -> str:
    return "cuda" if any(value.device.type == "cuda" for value in facts.values.values()) else "cpu"
