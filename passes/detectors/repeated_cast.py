"""Finds values that are converted to another dtype several times in one call, with the same result.

Assumes: eager runs every cast of the graph. Inductor merges equal ones, so it gets no finding. Each cast reads its
value and writes the result once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import torch

from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.passes import confidence
from frx_graph.passes.analysis import Analysis, Detector
from frx_graph.passes.call_groups import list_module_paths, merge_sites
from frx_graph.passes.severity import grade_bytes, predict_saving
from frx_graph.records import Effort, Evidence, Finding, Refusal, Risk
from frx_graph.support.plain_text import format_bytes

RULE = "FRX017"
_CAST = "aten._to_copy"
_SHOWN = 3


def detect(analysis: Analysis) -> Iterable[Finding | Refusal]:
    """Yield one finding for each value and dtype, with all casts but the first as waste."""
    if analysis.inner != "eager":
        return
    for casts in _group_casts(analysis.facts):
        yield _build_finding(analysis, casts)


def _group_casts(facts: GraphFacts) -> Iterator[Sequence[OpFacts]]:
    """Yield casts of one value to the same dtype and strides, if there are several."""
    groups: dict[tuple[object, ...], list[OpFacts]] = defaultdict(list)
    for op in facts.ops:
        if op.operator != _CAST or not op.inputs or not op.outputs:
            continue
        source, result = facts.values[op.inputs[0]], facts.values[op.outputs[0]]
        same_place = source.device == result.device and not source.mutated and not result.mutated
        if same_place and source.dtype is not result.dtype and source.numel:
            groups[source.name, result.dtype, result.strides].append(op)
    return (casts for casts in groups.values() if len(casts) > 1)


def _build_finding(analysis: Analysis, casts: Sequence[OpFacts]) -> Finding:
    facts = analysis.facts
    source, result = facts.values[casts[0].inputs[0]], facts.values[casts[0].outputs[0]]
    needless = facts.calls * (len(casts) - 1)
    wasted = needless * (source.bytes + result.bytes)
    count = facts.calls * len(casts)
    name = source.path or source.name
    kind = "Parameter" if source.is_parameter else "Value"
    lines = list(dict.fromkeys(str(op.site) for op in casts))
    shown = ", ".join(lines[:_SHOWN]) + (f" and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else "")
    return Finding(
        rule=RULE,
        title=f"{kind} cast to {_format_dtype(result.dtype)} {count} times a call",
        severity=grade_bytes(wasted, analysis.step_bytes),
        site=merge_sites(casts),
        nodes=tuple(op.node for op in casts),
        count_per_step=count,
        bytes_per_step=wasted,
        saving=predict_saving(wasted, wasted, analysis.step_bytes),
        effort=Effort.ONE_LINE,
        risk=Risk.LOW,
        fix=_choose_fix(source, result, train=facts.train),
        confidence=confidence.MEASURED,
        evidence=(
            Evidence(
                f"`{name}`, {_format_dtype(source.dtype)} of {format_bytes(source.bytes)}, is cast {count} times; "
                f"{needless} of them move {format_bytes(wasted)} for a result that was there before",
                "casts of the captured graph",
            ),
            Evidence(f"at {shown}", "casts of the captured graph"),
        ),
        modules=list_module_paths(casts),
    )


def _choose_fix(source: ValueFacts, result: ValueFacts, *, train: bool) -> str:
    dtype = str(result.dtype)
    fix = f"cast it once, `cast = value.to({dtype})`, and use that in all places"
    if not source.is_parameter:
        return fix
    stored = "" if train else f", or store it as {dtype}"
    return f"{fix}{stored}; under autocast, leave `cache_enabled=True`, and put one region around the whole call"


def _format_dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


DETECTOR = Detector(RULE, "repeated_cast", detect)
