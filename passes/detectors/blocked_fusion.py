"""Finds operators that a fusing compiler could run as one kernel but for an obstacle, and names it.

Assumes: compulsory traffic. Eager programs are reported, too: `torch.compile` alone would not fuse these places. FRX005
reports those that it would fuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from frx_graph.passes import confidence
from frx_graph.passes.analysis import Analysis, Detector
from frx_graph.passes.call_groups import (
    format_operator_names,
    group_by,
    group_by_place,
    list_module_paths,
    merge_sites,
    shorten_operator_name,
)
from frx_graph.passes.fusion.fusion_blockers import BlockedFusion, Blocker, find_blocked_fusions
from frx_graph.passes.severity import grade_bytes, predict_saving
from frx_graph.records import Effort, Evidence, Finding, Refusal, Risk, Severity
from frx_graph.support.plain_text import format_bytes

RULE = "FRX009"
LEAST_SHARE = 0.02
"""Share of the step's traffic; a smaller saving is not worth a line in a report."""
_ALWAYS_TOLD = frozenset({Blocker.DEVICE, Blocker.GRAPH_BREAK})
"""Worse than their bytes, since the program also waits for the device, or for Python."""


@dataclass(frozen=True, slots=True)
class _FusionRemedy:
    """Fix for one kind of blocker, and the confidence in the saving."""

    fix: str
    confidence: float
    source: str
    effort: Effort = Effort.LOCAL
    risk: Risk = Risk.LOW


_SEEN = "kernels that Inductor generates, torch 2.15 on the CPU"
_READ = "Inductor's sources, torch 2.15; not measured on a GPU"

_UNBLOCKINGS: Mapping[Blocker, _FusionRemedy] = {
    Blocker.SHARED_OPERAND: _FusionRemedy(
        "make the products one: a single Linear with the weights stacked, its result split with `chunk` or `split`",
        confidence.ASSUMED,
        _SEEN,
        risk=Risk.MEDIUM,
    ),
    Blocker.REDUCTION: _FusionRemedy(
        "avoid the second pass: reduce along the last dimension, normalise by statistics known beforehand, or apply "
        "the factor behind the next product, on a smaller tensor",
        confidence.ASSUMED,
        _SEEN,
        risk=Risk.MEDIUM,
    ),
    Blocker.SLICE: _FusionRemedy(
        "take the part first and compute on it alone",
        confidence.MODELLED,
        "strides of the captured graph",
    ),
    Blocker.INDEX: _FusionRemedy(
        "write it as a gather: let each element of the result load what it needs (`index_select`, `gather`, "
        "`torch.where` with a mask), which fuses on both sides",
        0.6,
        _SEEN,
        risk=Risk.MEDIUM,
    ),
    Blocker.DEVICE: _FusionRemedy(
        "make the tensor on the device where it is used, or move it once before the step",
        0.9,
        "devices of the captured graph",
    ),
    Blocker.GRAPH_BREAK: _FusionRemedy(
        "rewrite the line so that Dynamo can trace through it; `TORCH_LOGS=graph_breaks` explains each break",
        0.7,
        "Dynamo",
    ),
    Blocker.OPAQUE: _FusionRemedy(
        "write the operator in torch operators, or as a `torch.library.triton_op`, which the compiler can see; or take "
        "its neighbours into its own kernel",
        0.7,
        _SEEN,
        effort=Effort.REFACTOR,
        risk=Risk.MEDIUM,
    ),
}
_FREEZING = _FusionRemedy(
    "for inference compile with freezing (`TORCHINDUCTOR_FREEZING=1`): oneDNN then applies what follows inside the "
    "kernel, and batch norms become part of the weights",
    0.7,
    _SEEN,
    effort=Effort.ONE_LINE,
    risk=Risk.MEDIUM,
)
_MAX_AUTOTUNE = _FusionRemedy(
    'compile with `mode="max-autotune"`: Inductor\'s own kernels for products apply what follows before they write, '
    "where they are faster than the library's",
    confidence.ASSUMED,
    _READ,
    effort=Effort.ONE_LINE,
)


def detect(analysis: Analysis) -> Iterable[Finding | Refusal]:
    """Yield one finding for each line at which fusion stops, if that costs a material share of the traffic."""
    places = find_blocked_fusions(analysis.kernels, analysis.events.breaks, analysis.inner)
    for at_line in group_by_place(places, lambda place: place.op.site):
        by_blocker = group_by(at_line, lambda place: place.blocker)
        largest, *others = sorted(by_blocker.values(), key=_sum_saved_bytes, reverse=True)
        material = analysis.facts.calls * _sum_saved_bytes(largest) >= LEAST_SHARE * analysis.step_bytes
        if material or not _ALWAYS_TOLD.isdisjoint(by_blocker):
            yield _build_finding(analysis, largest, others)


def _sum_saved_bytes(places: Sequence[BlockedFusion]) -> int:
    return sum(place.bytes for place in places)


def _build_finding(
    analysis: Analysis, places: Sequence[BlockedFusion], others: Sequence[Sequence[BlockedFusion]]
) -> Finding:
    ops = [place.op for place in places]
    unblocking = _choose_remedy(analysis, places[0])
    calls = analysis.facts.calls
    saved = calls * _sum_saved_bytes(places)
    severity = grade_bytes(saved, analysis.step_bytes)
    return Finding(
        rule=RULE,
        title=_format_title(places[0]),
        severity=Severity.LOW if severity is Severity.INFO else severity,
        site=merge_sites(ops),
        nodes=tuple(dict.fromkeys(op.node for place in places for op in place.ops)),
        count_per_step=calls * len(places),
        bytes_per_step=saved,
        saving=predict_saving(0, saved, analysis.step_bytes),
        effort=unblocking.effort,
        risk=unblocking.risk,
        fix=unblocking.fix,
        confidence=unblocking.confidence,
        evidence=tuple(
            _build_evidence(group, _choose_remedy(analysis, group[0]), calls) for group in (places, *others)
        ),
        modules=list_module_paths(ops),
    )


def _choose_remedy(analysis: Analysis, place: BlockedFusion) -> _FusionRemedy:
    if place.blocker is not Blocker.EPILOGUE:
        return _UNBLOCKINGS[place.blocker]
    device = analysis.facts.values[place.op.outputs[0]].device.type
    return _FREEZING if device == "cpu" else _MAX_AUTOTUNE


def _format_title(place: BlockedFusion) -> str:
    if place.blocker is Blocker.SHARED_OPERAND:
        return f"{len(place.ops)} products of the same operand"
    if place.blocker is Blocker.EPILOGUE:
        return f"{format_operator_names(place.ops[1:])} behind {shorten_operator_name(place.op)}: not in its kernel"
    if place.blocker is Blocker.SLICE:
        return f"{shorten_operator_name(place.op)} computed in full and read in part"
    return f"fusion stops at {shorten_operator_name(place.op)}: {place.blocker}"


def _build_evidence(places: Sequence[BlockedFusion], unblocking: _FusionRemedy, calls: int) -> Evidence:
    count = calls * len(places)
    times = "" if count == 1 else f", {count} times per step"
    first = max(places, key=lambda place: place.bytes)
    return Evidence(
        f"{first.blocker}: {first.detail}{times}; one kernel would save "
        f"{format_bytes(calls * _sum_saved_bytes(places))} per step",
        unblocking.source,
    )


DETECTOR = Detector(RULE, "blocked_fusion", detect)
