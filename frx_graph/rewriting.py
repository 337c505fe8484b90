"""From a graph of an inner compiler's to the same graph rewritten: facts, measured times, candidates, changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor, fx

from frx_graph.capture.aot_graph import captured_from_aot
from frx_graph.capture.captured_graph import Phase
from frx_graph.errors import EvidenceError, RewriteError
from frx_graph.evidence.device_calibration import device_profile
from frx_graph.evidence.measurement_cache import MeasuredOperators
from frx_graph.evidence.operator_measurement import LayoutTimes
from frx_graph.facts.build import build_graph_facts
from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.passes.layouts.regions import anchor_signatures
from frx_graph.passes.rewrites import REWRITES
from frx_graph.passes.rewrites.backward_twin import backward_twin
from frx_graph.passes.rewrites.rewrite import RewriteSubject
from frx_graph.records import Candidate, Refusal


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
        inner=inner,
        everything=plan == "all",
        times=_times(facts) if plan == "solved" else {},
        bandwidth_bytes_per_s=_bandwidth(facts) if plan == "solved" else None,
        visible=frozenset(visible),
        given=given,
    )
    applied: list[Candidate] = []
    refused: list[Refusal] = []
    conversions: list[str] = []
    for rewrite in REWRITES:
        for outcome in rewrite.propose(subject):
            if isinstance(outcome, Refusal):
                refused.append(outcome)
                continue
            try:
                conversions.extend(rewrite.apply(subject, module, outcome))
            except RewriteError as error:
                refused.append(Refusal(rewrite.name, str(error), outcome.nodes))
            else:
                applied.append(outcome)
    return RewrittenGraph(graph_id, phase, tuple(applied), tuple(refused), tuple(conversions))


def _times(facts: GraphFacts) -> Mapping[str, LayoutTimes]:
    """Measured seconds of each anchor in either layout; in the forward of a training step those of its backward are
    added."""
    calls = dict(anchor_signatures(facts))
    if not calls:
        return {}
    twins = {
        node: twin
        for node in calls
        if facts.train and (twin := backward_twin(facts.op_by_node[node], facts)) is not None
    }
    measured = MeasuredOperators(_device_type(facts))
    measured.measure((), (*calls.values(), *twins.values()))
    times = {node: found for node, call in calls.items() if (found := measured.layout_times(call)) is not None}
    for node, twin in twins.items():
        backward = measured.layout_times(twin)
        if node in times and backward is not None:
            times[node] = times[node] + backward
    return times


def _bandwidth(facts: GraphFacts) -> float | None:
    try:
        return device_profile(_device_type(facts)).bandwidth_bytes_per_s
    except EvidenceError:
        return None


def _device_type(facts: GraphFacts) -> str:
    return "cuda" if any(value.device.type == "cuda" for value in facts.values.values()) else "cpu"
