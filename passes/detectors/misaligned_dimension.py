"""Finds matrix products and convolutions whose dimensions do not fill the device's vectors or tensor-core tiles.

Assumes: on the CPU, what was measured with AVX-512 on oneDNN: convolutions only. On CUDA, NVIDIA's documentation; the
loss there was not measured, so its size is not predicted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from frx_graph.facts.graph_facts import OpFacts
from frx_graph.passes import confidence
from frx_graph.passes.analysis import Analysis, Detector
from frx_graph.passes.call_groups import group_by_place, list_module_paths, merge_sites, shorten_operator_name
from frx_graph.passes.costs.product_dimensions import Dimension, find_misaligned_on_cpu, find_misaligned_on_cuda
from frx_graph.records import Effort, Evidence, Finding, Refusal, Risk, Saving, Severity

RULE = "FRX011"
LEAST_FLOPS_SHARE = 0.02
MEDIUM_FLOPS_SHARE = 0.10
"""Shares of the step's FLOPs: wasted ones on a CPU, those of the misaligned operators on a GPU."""
_VECTOR_BYTES = (32, 64)
"""Vector sizes of AVX2 and AVX-512, for which oneDNN's blocked formats have 8 and 16 channels."""


@dataclass(frozen=True, slots=True)
class _MisalignedCall:
    """One call. `share` is its contribution to the finding's share of FLOPs."""

    op: OpFacts
    dimensions: tuple[Dimension, ...]
    share: float

    @property
    def padding(self) -> float:
        """FLOPs with all dimensions padded, over FLOPs."""
        return math.prod(dimension.above / dimension.size for dimension in self.dimensions)


def detect(analysis: Analysis) -> Iterable[Finding | Refusal]:
    """Yield one finding for each line whose misaligned operators do a material share of the arithmetic."""
    if analysis.device is None:
        yield Refusal(RULE, "needs to know the device's vectors or tiles, and the device was not measured")
        return
    total = sum(cost.flops or 0 for cost in analysis.costs.values())
    misfits = [misfit for op in analysis.facts.ops if (misfit := _find_misalignment(op, analysis)) is not None]
    for instances in group_by_place(misfits, lambda misfit: misfit.op.site):
        share = sum(misfit.share for misfit in instances) / total if total else 0.0
        if share >= LEAST_FLOPS_SHARE:
            yield _build_finding(analysis, instances, share)


def _find_misalignment(op: OpFacts, analysis: Analysis) -> _MisalignedCall | None:
    device = analysis.device
    flops = analysis.costs[op.node].flops
    if device is None or not flops or not op.inputs:
        return None
    on_cpu = analysis.facts.values[op.inputs[0]].device.type == "cpu"
    alignment = device.preferred_alignment_bytes
    if on_cpu and device.device == "cpu" and alignment in _VECTOR_BYTES:
        dimensions = find_misaligned_on_cpu(op, analysis.facts, alignment)
    elif not on_cpu and device.device == "cuda":
        dimensions = find_misaligned_on_cuda(op, analysis.facts, alignment, analysis.precision)
    else:
        return None
    misfit = _MisalignedCall(op, dimensions, flops)
    if on_cpu:
        misfit = replace(misfit, share=flops * (misfit.padding - 1))
    return misfit if dimensions else None


def _build_finding(analysis: Analysis, instances: Sequence[_MisalignedCall], share: float) -> Finding:
    largest = max(instances, key=lambda misfit: misfit.share)
    ops = [misfit.op for misfit in instances]
    on_cpu = analysis.device is not None and analysis.device.device == "cpu"
    sizes = dict.fromkeys(dimension for misfit in instances for dimension in misfit.dimensions)
    listed = ", ".join(f"{d.name} {d.size} (next: {d.above})" for d in list(sizes)[:3])
    name, first = shorten_operator_name(largest.op).removesuffix("_backward"), largest.dimensions[0]
    return Finding(
        rule=RULE,
        title=f"{name} with {first.name} {first.size}",
        severity=Severity.MEDIUM if share >= MEDIUM_FLOPS_SHARE else Severity.LOW,
        site=merge_sites(ops),
        nodes=tuple(op.node for op in ops),
        count_per_step=analysis.facts.calls * len(ops),
        bytes_per_step=None,
        saving=Saving(),
        effort=Effort.LOCAL,
        risk=Risk.HIGH if on_cpu else Risk.MEDIUM,
        fix=_describe_cpu_fix(largest) if on_cpu else _describe_cuda_fix(largest),
        confidence=confidence.MODELLED if on_cpu else confidence.ASSUMED,
        evidence=(
            Evidence(f"{listed}; {len(sizes)} such sizes in all", "shapes of the captured graph"),
            _build_cpu_evidence(share) if on_cpu else _build_cuda_evidence(largest, share),
        ),
        modules=list_module_paths(ops),
    )


def _describe_cpu_fix(misfit: _MisalignedCall) -> str:
    dimension = misfit.dimensions[0]
    less = 100.0 * (1 - dimension.below / dimension.above)
    return (
        f"when the model is next designed or trained: {dimension.above} {dimension.name} take the time that "
        f"{dimension.size} take now, {dimension.below} take {less:.0f}% less"
    )


def _describe_cuda_fix(misfit: _MisalignedCall) -> str:
    sizes = ", ".join(f"{d.name} from {d.size} to {d.above}" for d in misfit.dimensions)
    return f"pad {sizes}, where the weights or the batch are made: {100 * (misfit.padding - 1):.2g}% more FLOPs"


def _build_cpu_evidence(share: float) -> Evidence:
    return Evidence(
        f"oneDNN computes whole vectors of channels: {100 * share:.1f}% more FLOPs than the step needs",
        "convolutions timed with AVX-512, torch 2.15",
    )


def _build_cuda_evidence(misfit: _MisalignedCall, share: float) -> Evidence:
    multiple = misfit.dimensions[0].above - misfit.dimensions[0].below
    return Evidence(
        f"{100 * share:.0f}% of the step's FLOPs are in these operators; tensor cores want multiples of {multiple} "
        "elements",
        "NVIDIA, Matrix Multiplication Background User's Guide; not measured here",
    )


DETECTOR = Detector(RULE, "misaligned_dimension", detect)
