"""Finds matrix products and convolutions in fp32 on a device that computes faster in TF32, bf16 or fp16.

Assumes: the roofline. Casts that autocast adds are not counted, so the predicted time is a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from frx_graph.facts.graph_facts import GraphFacts, OpFacts
from frx_graph.facts.operator_families import CONVOLUTIONS, MATRIX_PRODUCTS
from frx_graph.measure.machine.device_profile import DeviceProfile
from frx_graph.passes import confidence
from frx_graph.passes.analysis import Analysis, Detector, PrecisionSettings
from frx_graph.passes.call_groups import list_module_paths, merge_sites
from frx_graph.passes.costs.operator_costs import find_compute_dtype, find_roofline_position
from frx_graph.passes.severity import MEDIUM_SHARE, grade_share
from frx_graph.records import Effort, Evidence, Finding, Refusal, Risk, Saving

RULE = "FRX013"
LEAST_RATIO = 1.5
"""Least speedup of narrower arithmetic; casts use up a smaller lead."""
_ATTENTION = "aten._scaled_dot_product_"


def detect(analysis: Analysis) -> Iterable[Finding | Refusal]:
    """Yield one finding for a graph: the switch is one for the whole program."""
    device = analysis.device
    if device is None or torch.float32 not in device.peak_flops:
        yield Refusal(RULE, "needs the device's peak arithmetic by dtype, which was not measured")
        return
    peaks = device.peak_flops
    faster = choose_faster_dtype(peaks)
    narrowed = analysis.precision is not None and analysis.precision.autocast
    if narrowed or peaks.get(faster, 0.0) < LEAST_RATIO * peaks[torch.float32]:
        return
    ops = list(_find_fp32_products(analysis))
    calls = analysis.facts.calls
    before = calls * sum(_estimate_seconds(op, analysis, device) for op in analysis.facts.ops)
    saved = calls * sum(
        _estimate_seconds(op, analysis, device) - _estimate_seconds(op, analysis, device, faster) for op in ops
    )
    if ops and saved >= MEDIUM_SHARE * before:
        yield _build_finding(analysis, device, ops, faster, before, saved)


def choose_faster_dtype(peaks: Mapping[torch.dtype, float]) -> torch.dtype:
    """Return the half-precision dtype in which a device computes faster."""
    return max((torch.bfloat16, torch.float16), key=lambda half: peaks.get(half, 0.0))


def _find_fp32_products(analysis: Analysis) -> Iterator[OpFacts]:
    """Yield products that compute in fp32, not those that torch's settings let run in TF32 or bf16 already."""
    for op in analysis.facts.ops:
        product = op.operator in MATRIX_PRODUCTS or op.operator.startswith(_ATTENTION)
        if not product and op.operator not in CONVOLUTIONS:
            continue
        fp32 = bool(analysis.costs[op.node].flops) and find_compute_dtype(op, analysis.facts) is torch.float32
        if fp32 and not _is_narrowed(op, analysis.facts, analysis.precision):
            yield op


def _is_narrowed(op: OpFacts, facts: GraphFacts, precision: PrecisionSettings | None) -> bool:
    """Return True if torch's settings already let it run narrower; on the CPU they apply to matrix products only."""
    if precision is None:
        return False
    if facts.values[op.inputs[0]].device.type == "cuda":
        return precision.cudnn_tf32 if op.operator in CONVOLUTIONS else precision.matmul_tf32
    return op.operator not in CONVOLUTIONS and precision.float32_matmul_precision != "highest"


def _estimate_seconds(
    op: OpFacts, analysis: Analysis, device: DeviceProfile, dtype: torch.dtype | None = None
) -> float:
    """Return the least time of one call by the roofline, in its own dtype or as if its operands were of `dtype`."""
    cost = analysis.costs[op.node]
    own = find_compute_dtype(op, analysis.facts) or torch.float32
    moved = cost.bytes if dtype is None else cost.bytes * dtype.itemsize // own.itemsize
    position = find_roofline_position(cost.flops or 0, moved, device, dtype or own)
    return position.predicted_seconds if position is not None else moved / device.bandwidth_bytes_per_s


def _build_finding(
    analysis: Analysis, device: DeviceProfile, ops: Sequence[OpFacts], faster: torch.dtype, before: float, saved: float
) -> Finding:
    costs = analysis.costs
    total = sum(cost.flops or 0 for cost in costs.values())
    flops = sum(costs[op.node].flops or 0 for op in ops)
    heaviest = max(ops, key=lambda op: costs[op.node].flops or 0)
    on_cuda = analysis.facts.values[heaviest.inputs[0]].device.type == "cuda"
    name = "bf16" if faster is torch.bfloat16 else "fp16"
    ratio = device.peak_flops[faster] / device.peak_flops[torch.float32]
    return Finding(
        rule=RULE,
        title=f"{100 * flops / total:.0f}% of the FLOPs in fp32, where {name} is {ratio:.1f} times as fast",
        severity=grade_share(saved / before),
        site=merge_sites([heaviest, *ops]),
        nodes=tuple(op.node for op in ops),
        count_per_step=analysis.facts.calls * len(ops),
        bytes_per_step=None,
        saving=Saving(),
        effort=Effort.ONE_LINE,
        risk=Risk.MEDIUM,
        fix=_describe_fix(name, "cuda" if on_cuda else "cpu", analysis),
        confidence=confidence.MODELLED,
        evidence=(
            Evidence(
                f"{len(ops)} of the matrix products, convolutions and attentions do {100 * flops / total:.0f}% of the "
                f"step's FLOPs in fp32",
                "dtypes of the captured graph and torch's precision settings",
            ),
            Evidence(
                f"by the roofline the step takes at least {1e3 * before:.3g} ms now, and at least "
                f"{1e3 * (before - saved):.3g} ms with these in {name}",
                f"peak arithmetic and bandwidth of {device.name}{', documented' if device.documented else ''}",
            ),
        ),
        modules=list_module_paths(ops),
    )


def _describe_fix(name: str, device: str, analysis: Analysis) -> str:
    dtype = "torch.bfloat16" if name == "bf16" else "torch.float16"
    autocast = f'run the model under `torch.autocast("{device}", dtype={dtype})`'
    if name == "fp16" and analysis.facts.train:
        autocast += ", with a `torch.amp.GradScaler`"
    if device == "cuda" and (analysis.precision is None or analysis.precision.has_tf32):
        return f'`torch.set_float32_matmul_precision("high")` lets fp32 products run in TF32; or {autocast}'
    return autocast


DETECTOR = Detector(RULE, "unused_precision", detect)
