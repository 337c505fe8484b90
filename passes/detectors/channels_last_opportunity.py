"""Finds convolution and pooling regions that run plain although channels-last was measured to be faster.

Assumes: operators between the convolutions take either layout at the same cost; conversions run at the device's
bandwidth and are not fused away; the converted region's weights are converted once, ahead of time. Each region's
cheapest layouts come from an exact minimum cut over the measured times. On CUDA, half precision is assumed to profit if
nothing was measured, with low confidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.layout import Layout, name_channels_last
from frx_graph.facts.operator_families import LAYOUT_COPIES
from frx_graph.passes import confidence
from frx_graph.passes.analysis import Analysis, Detector
from frx_graph.passes.call_groups import list_module_paths, merge_sites
from frx_graph.passes.copies.view_chain import format_location, name_written_call
from frx_graph.passes.layouts.layout_findings import (
    find_unmeasured_convolutions,
    format_anchor_count,
    format_modules,
    format_values,
    make_layout_finding,
    refuse_unmeasured,
)
from frx_graph.passes.layouts.layout_fixes import LayoutFix, group_changes_by_fix, select_worthwhile_changes
from frx_graph.passes.layouts.regions import LayoutGroup, RegionOperator
from frx_graph.passes.severity import grade_bytes, predict_saving
from frx_graph.records import Effort, Evidence, Finding, Refusal, Risk
from frx_graph.support.plain_text import format_bytes

RULE = "FRX004"
_HALF = (torch.float16, torch.bfloat16)


def detect(analysis: Analysis) -> Iterable[Finding | Refusal]:
    """Yield one finding for the whole model if all of it gains, else one for each line at which a region begins."""
    changes = select_worthwhile_changes(analysis, Layout.CHANNELS_LAST)
    for found, whole in group_changes_by_fix(analysis, changes):
        yield _build_measured_finding(analysis, found, whole=whole)
    left = []
    for group, operators in find_unmeasured_convolutions(analysis, Layout.PLAIN):
        if all(_wants_tensor_cores(operator, analysis) for operator in operators):
            yield _build_predicted_finding(analysis, group, operators)
        else:
            left.append((group, operators))
    yield from refuse_unmeasured(analysis, RULE, DETECTOR.name, left)


def _build_measured_finding(analysis: Analysis, changes: LayoutFix, *, whole: bool) -> Finding:
    memory_format = name_channels_last(changes.total.rank)
    anchors = format_anchor_count(len(changes.anchors))
    fix = f"`model = model.to(memory_format={memory_format})`"
    if not whole:
        fix = f"convert {format_modules(changes)} with `.to(memory_format={memory_format})`"
    fix += _describe_edges(changes, memory_format)
    if not whole:
        fix += "; leave the rest as it is: it is faster plain, or not measured to gain"
    return make_layout_finding(
        analysis,
        changes,
        rule=RULE,
        title=f"{anchors} plain, measured {changes.total.speedup:.2f}x faster in channels-last",
        fix=fix,
        effort=Effort.ONE_LINE if whole else Effort.LOCAL,
        risk=Risk.LOW,
    )


def _describe_edges(changes: LayoutFix, memory_format: str) -> str:
    """Return the conversions that the program has to make itself."""
    text, facts = "", changes.facts
    needless = [value for value in changes.entering if _is_copied_to_plain(value, facts)]
    entering = [value for value in changes.entering if value not in needless]
    if entering:
        text = f", and `.contiguous(memory_format={memory_format})` for {format_values(entering, facts)}"
    if needless:
        makers = (facts.op_by_node[value.producer] for value in needless if value.producer is not None)
        calls = dict.fromkeys(f"`.{name_written_call(op)}()` at {format_location(op.site)}" for op in makers)
        text += f", and drop the {', the '.join(calls)} (FRX002), whose source is channels-last"
    if changes.leaving:
        text += f", and `.contiguous()` for {format_values(changes.leaving, changes.facts)}, where the region ends"
    return text


def _is_copied_to_plain(value: ValueFacts, facts: GraphFacts) -> bool:
    """Return True if the program copies a channels-last value, such as a permuted one, only to make it plain."""
    producer = facts.get_producer(value.name)
    if producer is None or producer.operator not in LAYOUT_COPIES:
        return False
    return facts.values[producer.inputs[0]].layout is Layout.CHANNELS_LAST


def _wants_tensor_cores(operator: RegionOperator, analysis: Analysis) -> bool:
    image = analysis.facts.values[(*operator.operands, *operator.results)[0]]
    if image.device.type != "cuda" or image.dtype not in _HALF:
        return False
    gpu, contract = analysis.device, analysis.contract
    if gpu is None or not gpu.documented:
        return True
    # Nothing is documented of convolutions on AMD's GPUs, and those before Ampere have no tensor cores for bfloat16.
    return contract is not None and contract.documented and image.dtype in gpu.peak_flops


def _build_predicted_finding(analysis: Analysis, group: LayoutGroup, operators: Sequence[RegionOperator]) -> Finding:
    """Return a finding of the images that the region's kernels would convert inside, less what crosses its edges."""
    facts = analysis.facts
    names = [name for operator in operators for name in (*operator.operands, *operator.results)]
    inside = facts.calls * sum(2 * facts.values[name].bytes for name in names)
    plain_inputs = {v.name: v.bytes for r in group.regions for v in r.inputs if v.layout is Layout.PLAIN}
    produced = {name for operator in group.operators for name in operator.results}
    entering = sum(2 * size for name, size in plain_inputs.items() if name not in produced)
    leaving = sum(2 * v.bytes for region in group.regions for v in region.outputs if Layout.PLAIN in v.wanted)
    edges = facts.calls * (entering + leaving)
    most = max(0, inside - edges)
    ops: tuple[OpFacts, ...] = tuple(operator.op for operator in operators)
    memory_format = name_channels_last(group.rank)
    site = merge_sites(ops)
    return Finding(
        rule=RULE,
        title=f"{len(ops)} half-precision convolutions run plain; tensor-core kernels want channels-last",
        severity=grade_bytes(most, analysis.step_bytes),
        site=site,
        nodes=tuple(op.node for op in ops),
        count_per_step=facts.calls * len(ops),
        bytes_per_step=None,
        saving=predict_saving(0, most, analysis.step_bytes),
        effort=Effort.ONE_LINE,
        risk=Risk.LOW,
        fix=f"convert `{site.module_path}` and its input with `.to(memory_format={memory_format})`, and measure",
        confidence=confidence.ASSUMED,
        evidence=(
            Evidence(
                f"not measured: if every one of these kernels converts its images, that is {format_bytes(inside)} per "
                f"step, against {format_bytes(edges)} at the region's edges",
                "region edges",
            ),
        ),
        modules=list_module_paths(ops),
    )


DETECTOR = Detector(RULE, "channels_last_opportunity", detect)
