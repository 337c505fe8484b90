"""Finds parameters that are converted to another layout on every call.

Assumes: predicted copies with the role WEIGHT are of parameters, found through the storage they share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from frx_graph.facts.graph_facts import GraphFacts, ValueFacts
from frx_graph.facts.layout import Layout, name_channels_last
from frx_graph.measure.operators.operator_tagger import ACCUMULATION
from frx_graph.passes.analysis import Analysis, Detector
from frx_graph.passes.copies.copy_findings import CopyGroup, Remedy, build_copy_finding, format_value, group_copies
from frx_graph.records import Copy, CopyKind, Effort, Evidence, Finding, Refusal, Risk, Severity
from frx_graph.support.plain_text import format_bytes

RULE = "FRX007"
_SHOWN = 3
"""Parameters and conversions named in the evidence; the rest is counted."""


def detect(analysis: Analysis) -> Iterable[Finding | Refusal]:
    """Yield one finding for each line that converts parameters."""
    for group in group_copies(analysis, RULE):
        remedy = _choose_remedy(analysis, group)
        yield build_copy_finding(
            group,
            analysis,
            rule=RULE,
            title=_format_title(analysis.facts, group),
            remedy=remedy,
            possible_bytes=group.bytes,
            evidence=_collect_evidence(analysis, group),
        )


def _format_title(facts: GraphFacts, group: CopyGroup) -> str:
    several = len(_count_parameters(facts, group)) > 1
    if group.largest.operator == ACCUMULATION:
        return f"{'Gradients' if several else 'Gradient'} copied into the strides of the weight"
    weights = "Weights" if several else "Weight"
    return f"{weights} converted on every call of {group.largest.operator.removeprefix('aten.')}"


def _choose_remedy(analysis: Analysis, group: CopyGroup) -> Remedy:
    """Return the fix for the largest copy; the smaller ones of the line mostly go with it."""
    copy = group.largest
    weight = analysis.facts.values.get(copy.value)
    to_strides = sum(c.bytes for c in group.copies if c.kind is not CopyKind.REORDER)
    if copy.kind is CopyKind.REORDER and weight is not None and weight.device.type == "cpu":
        return _choose_onednn_remedy(analysis, to_strides)
    images = weight is not None and weight.layout is Layout.CHANNELS_LAST
    if "conv" in copy.operator or (copy.operator == ACCUMULATION and images):
        memory_format = name_channels_last(len(weight.shape) if weight is not None else 4)
        if images and copy.operator != ACCUMULATION:
            return Remedy(
                fix=f"the weight is channels-last, what it meets is not: convert the input too "
                f"(`.to(memory_format={memory_format})`), or leave the module plain. Where both are "
                f"channels-last already, the kernel itself wants plain: leave this module out of the conversion",
            )
        return Remedy(
            fix=f"convert once, before the first call and before torch.compile: "
            f"`model = model.to(memory_format={memory_format})`",
            effort=Effort.ONE_LINE,
            sure_bytes=to_strides,
        )
    if weight is not None and weight.layout is Layout.EXPANDED:
        fix = "do not expand the parameter over the batch: fold the batch into the rows and multiply once (F.linear)"
    else:
        fix = "store the parameter in the order it is used in: permute it once in __init__ (and in loaded state dicts)"
    return Remedy(fix=fix, effort=Effort.LOCAL, risk=Risk.MEDIUM, sure_bytes=group.bytes)


def _choose_onednn_remedy(analysis: Analysis, to_strides: int) -> Remedy:
    if analysis.facts.train:
        return Remedy(
            fix="oneDNN packs the weight again because the optimizer changes it; no stride avoids that while training. "
            "Larger batches spread it over more samples; for inference freeze the model",
            effort=Effort.REFACTOR,
            sure_bytes=to_strides,
            severity=Severity.INFO,
            needs_action=to_strides > 0,
        )
    return Remedy(
        fix="let Inductor pack the weights once: `torch._inductor.config.freezing = True` before "
        "`torch.compile(model.eval())`, called under torch.no_grad()",
        risk=Risk.MEDIUM,
        sure_bytes=to_strides,
    )


def _count_parameters(facts: GraphFacts, group: CopyGroup) -> Counter[str]:
    """Count the conversions of each parameter per step, by path."""
    counts: Counter[str] = Counter()
    for copy in group.copies:
        parameter = _find_parameter(facts, copy)
        counts[parameter.path or parameter.name if parameter is not None else copy.value] += copy.count
    return counts


def _find_parameter(facts: GraphFacts, copy: Copy) -> ValueFacts | None:
    value = facts.values.get(copy.value)
    if value is None:
        return None
    return next((v for v in facts.values_by_storage[value.storage] if v.is_parameter), value)


def _collect_evidence(analysis: Analysis, group: CopyGroup) -> Iterator[Evidence]:
    facts = analysis.facts
    parameters = _count_parameters(facts, group)
    named = [f"{path} ({times}×)" if times > 1 else path for path, times in parameters.most_common(_SHOWN)]
    more = f" and {len(parameters) - _SHOWN} more" if len(parameters) > _SHOWN else ""
    yield Evidence(f"converted per step: {', '.join(named)}{more}", "eager graph")
    largest = facts.values.get(group.largest.value)
    if largest is not None:
        yield Evidence(f"the largest is {format_value(largest)}", "eager graph")
    measured = all(copy.node in analysis.measurements for copy in group.copies)
    for cause, times in Counter(copy.cause for copy in group.copies).most_common(_SHOWN):
        yield Evidence(f"{cause} ({times}×)", "operator measurement" if measured else "operator layout contract")
    activations = _count_activation_bytes(facts, group)
    if activations:
        yield Evidence(
            f"the copies move {format_bytes(group.bytes)} for any batch size; the activations of these calls are "
            f"{format_bytes(activations)}",
            "eager graph",
        )


def _count_activation_bytes(facts: GraphFacts, group: CopyGroup) -> int:
    """Return the bytes per step that the operators read and write besides parameters."""
    ops = [facts.op_by_node[node] for node in group.nodes if node in facts.op_by_node]
    values = (value for op in ops for value in (*facts.get_input_values(op), *facts.get_output_values(op)))
    return facts.calls * sum(value.bytes for value in values if not value.is_parameter)


DETECTOR = Detector(RULE, "weight_reconversion", detect)
