"""Finds operators that wait for memory: groups that would share one kernel but run one by one, and operators with too
little arithmetic for what they move.

Assumes: compulsory traffic, with nothing left in a cache between operators. Under Inductor groups are fused already and
not reported. Layout copies between the operators are not counted here; the copy rules answer for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import GraphFacts, OpFacts
from frx_graph.facts.operator_families import LAYOUT_COPIES
from frx_graph.measure.machine.device_profile import DeviceProfile
from frx_graph.passes import confidence
from frx_graph.passes.analysis import Analysis, Detector
from frx_graph.passes.attention_pattern import Attention
from frx_graph.passes.attention_walks import SCORE_PRODUCTS
from frx_graph.passes.call_groups import (
    format_operator_names,
    group_by_place,
    list_module_paths,
    merge_sites,
    shorten_operator_name,
)
from frx_graph.passes.copies.view_chain import is_view, trace_views
from frx_graph.passes.costs.operator_costs import RooflinePosition, find_compute_dtype, find_roofline_position
from frx_graph.passes.fusion.fusion_roles import FusionRole
from frx_graph.passes.severity import grade_bytes, predict_saving
from frx_graph.records import Effort, Evidence, Finding, Refusal, Risk
from frx_graph.support.plain_text import format_bytes

RULE = "FRX005"
MATERIAL_SHARE = 0.02
LEAST_SAVING = 0.01
"""Share of the step's traffic; less than this is not worth a line in a report."""
FUSION_FIX = (
    "run the group as one kernel: `torch.compile` the model, or the module that holds these lines; intermediate "
    "results then stay in registers"
)


@dataclass(frozen=True, slots=True)
class _MemoryBoundRegion:
    """Operators that run one after the other, as one piece of work. `anchor` moves most of the bytes."""

    ops: tuple[OpFacts, ...]
    anchor: OpFacts
    bytes: int
    saved_bytes: int
    flops: int


def detect(analysis: Analysis) -> Iterable[Finding | Refusal]:
    """Yield one finding for each line with a material share of memory-bound work."""
    device = analysis.device
    if device is None:
        yield Refusal(RULE, "needs the device's bandwidth and peak arithmetic, which were not measured")
        return
    if analysis.inner != "inductor":
        yield from _build_findings(analysis, device, _find_fusible_regions(analysis), fused=True)
    if device.peak_flops.get(torch.bfloat16, 0.0) >= device.peak_flops.get(torch.float32, float("inf")):
        yield from _build_findings(analysis, device, _find_single_regions(analysis), fused=False)


def _find_fusible_regions(analysis: Analysis) -> list[_MemoryBoundRegion]:
    costs = analysis.costs
    regions = []
    for group in analysis.kernels.groups:
        compiled = all(analysis.is_compiled_by_program(op) for op in group.ops)
        if group.saved_bytes > 0 and not compiled:
            moving = tuple(op for op in group.ops if costs[op.node].bytes)
            anchor = max(moving, key=lambda op: (not _is_gradient_sum(op), costs[op.node].bytes))
            regions.append(_MemoryBoundRegion(moving, anchor, group.bytes, group.saved_bytes, group.flops))
    return regions


def _is_gradient_sum(op: OpFacts) -> bool:
    """Return True for autograd's sums of gradients: no line asks for them, and the graph names an unrelated one."""
    return op.phase is Phase.BACKWARD and op.operator == "aten.add"


def _find_single_regions(analysis: Analysis) -> list[_MemoryBoundRegion]:
    """Return fp32 operators that fuse with nothing but compute: a narrower dtype would halve their bytes.

    FRX012 counts the traffic of the products of an attention that it replaces, and its fix ends those of the backward.
    """
    regions = []
    replaced = {
        node for attention in analysis.replaceable_attentions for node in _list_products(analysis.facts, attention)
    }
    roles = analysis.kernels.flow.roles
    for op in analysis.facts.ops:
        if op.node in replaced:
            continue
        cost = analysis.costs[op.node]
        dtype = find_compute_dtype(op, analysis.facts)
        if roles[op.node] is FusionRole.BARRIER and cost.bytes and cost.flops and dtype is torch.float32:
            regions.append(_MemoryBoundRegion((op,), op, cost.bytes, cost.bytes // 2, cost.flops))
    return regions


def _list_products(facts: GraphFacts, attention: Attention) -> Iterator[str]:
    """Yield the nodes of the two products, and of the four on their lines that autograd makes of them: these read the
    weights or the gradient of the scores, or make the gradient of the weights."""
    yield from (attention.first.node, attention.second.node)
    places = {attention.first.site.place, attention.second.site.place}
    pending, seen = [name for op in attention.between for name in op.outputs], set[str]()
    while pending:
        for op in facts.get_users(pending.pop()):
            backward, own = op.phase is Phase.BACKWARD, op.site.place in places
            softmax = backward and "softmax_backward" in op.operator
            if backward and own and op.operator in SCORE_PRODUCTS:
                yield op.node
            elif op.node not in seen and (softmax or is_view(op) or (backward and _passes_on(op))):
                seen.add(op.node)
                pending.extend(op.outputs)
            maker = facts.get_producer(op.inputs[0]) if softmax else None
            while maker is not None and maker.phase is Phase.BACKWARD and (is_view(maker) or _passes_on(maker)):
                maker = facts.get_producer(maker.inputs[0])
            if maker is not None and maker.operator in SCORE_PRODUCTS and maker.site.place in places:
                yield maker.node


def _passes_on(op: OpFacts) -> bool:
    return op.pointwise or op.operator in LAYOUT_COPIES


def _build_findings(
    analysis: Analysis, device: DeviceProfile, regions: Iterable[_MemoryBoundRegion], *, fused: bool
) -> Iterable[Finding]:
    for instances in group_by_place(regions, lambda region: region.anchor.site):
        typical = _find_typical_region(instances)
        dtype = find_compute_dtype(typical.anchor, analysis.facts)
        calls = analysis.facts.calls
        moved = calls * sum(region.bytes for region in instances)
        flops = calls * sum(region.flops for region in instances)
        roof = _raise_bandwidth(analysis, device, instances)
        position = find_roofline_position(flops, moved, roof, dtype) if dtype is not None else None
        saved = calls * sum(region.saved_bytes for region in instances)
        material = moved >= MATERIAL_SHARE * analysis.step_bytes and saved >= LEAST_SAVING * analysis.step_bytes
        if position is not None and position.memory_bound and material:
            yield _build_finding(analysis, device, instances, typical, position, fused=fused)


def _raise_bandwidth(analysis: Analysis, device: DeviceProfile, regions: Sequence[_MemoryBoundRegion]) -> DeviceProfile:
    """Return the device with at least the bandwidth that these operators reached, if all of them were timed.

    A copy of large buffers gives the bandwidth of memory; operands that a cache holds arrive faster.
    """
    times = [analysis.get_least_seconds(op.node) for region in regions for op in region.ops]
    known = [seconds for seconds in times if seconds]
    if len(known) < len(times):
        return device
    reached = sum(region.bytes for region in regions) / sum(known)
    return replace(device, bandwidth_bytes_per_s=max(device.bandwidth_bytes_per_s, reached))


def _find_typical_region(instances: Sequence[_MemoryBoundRegion]) -> _MemoryBoundRegion:
    """Return the largest region of the kind that moves most; the first of equals."""
    moved: Counter[str] = Counter()
    for region in instances:
        moved[format_operator_names(region.ops)] += region.bytes
    return max(instances, key=lambda region: (moved[format_operator_names(region.ops)], region.bytes))


def _build_finding(
    analysis: Analysis,
    device: DeviceProfile,
    instances: Sequence[_MemoryBoundRegion],
    typical: _MemoryBoundRegion,
    position: RooflinePosition,
    *,
    fused: bool,
) -> Finding:
    count = analysis.facts.calls * len(instances)
    saved = analysis.facts.calls * sum(region.saved_bytes for region in instances)
    anchors = [region.anchor for region in instances]
    phase = " (backward)" if all(op.phase is Phase.BACKWARD for op in anchors) else ""
    evidence = [_build_roofline_evidence(position, device)]
    if fused:
        shape = f"{len(typical.ops)} operators ({format_operator_names(typical.ops)})"
        groups = f"one group of {shape}" if count == 1 else f"{count} such groups, mostly of {shape}"
        evidence.append(
            Evidence(
                f"run one by one they move {format_bytes(position.bytes)} per step, as one kernel each, "
                f"{format_bytes(position.bytes - saved)} in all; {groups}",
                "traffic of the captured graph",
            )
        )
    if not analysis.attention_nodes.isdisjoint(op.node for op in typical.ops):
        # First, so that no report leaves it out: the two savings must not be added.
        evidence.insert(
            0, Evidence("part of an attention that stores its scores: FRX012's fix ends this traffic too", "FRX012")
        )
    return Finding(
        rule=RULE,
        title=f"{format_operator_names(typical.ops)}: memory-bound{', not fused' if fused else ''}{phase}",
        severity=grade_bytes(saved, analysis.step_bytes),
        site=merge_sites(anchors),
        nodes=tuple(op.node for region in instances for op in region.ops),
        count_per_step=count,
        bytes_per_step=saved,
        saving=predict_saving(saved if fused else 0, saved, analysis.step_bytes),
        effort=Effort.ONE_LINE,
        risk=Risk.LOW if fused else Risk.MEDIUM,
        fix=FUSION_FIX if fused else _describe_single_fix(analysis, typical),
        # Half the bytes take half the time only if nothing else limits the operator.
        confidence=confidence.MODELLED if fused else confidence.ASSUMED,
        evidence=tuple(evidence),
        modules=list_module_paths(anchors),
    )


def _describe_single_fix(analysis: Analysis, region: _MemoryBoundRegion) -> str:
    op = region.anchor
    roots = [analysis.facts.values[trace_views(analysis.facts, name).base] for name in op.inputs]
    weights = sum(value.bytes for value in roots if value.is_parameter)
    narrower = f"run {shorten_operator_name(op)} in bf16 (`torch.autocast`): half the bytes"
    if 2 * weights > region.bytes:
        return (
            "most of what moves is weights: process more rows for each time that they are read (a larger batch), "
            f"hold the weights in a narrower dtype, or {narrower}"
        )
    return narrower


def _build_roofline_evidence(position: RooflinePosition, device: DeviceProfile) -> Evidence:
    share = 100.0 * position.attainable / position.peak
    return Evidence(
        f"{position.intensity:.2g} FLOP per byte, below the ridge point of {position.ridge:.3g}: at most {share:.2g}% "
        f"of the device's peak is attainable, in {1e3 * position.predicted_seconds:.3g} ms per step or more",
        f"roofline of {device.name}, {'documented' if device.documented else 'measured'}",
    )


DETECTOR = Detector(RULE, "memory_bound_region", detect)
