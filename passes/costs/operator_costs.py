"""Count the cost of a step: bytes and FLOPs of every operator call, its traffic, and its points on the roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from frx_graph.advice import RooflinePoint
from frx_graph.capture.call_site import merge_module_paths
from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import GraphFacts, OpFacts
from frx_graph.measure.machine.device_profile import DeviceProfile
from frx_graph.passes.costs.operator_flops import count_flops, load_flop_formulas
from frx_graph.passes.costs.operator_traffic import count_storage_bytes, count_traffic


@dataclass(frozen=True, slots=True)
class OpCost:
    """Compulsory traffic of one call, and its FLOPs: None if the operator's arithmetic is unknown."""

    bytes: int
    flops: int | None


def count_op_costs(facts: GraphFacts) -> dict[str, OpCost]:
    """Return the cost of every operator call by node name; linear in the size of the graph."""
    storages = count_storage_bytes(facts)
    formulas = load_flop_formulas()
    return {
        op.node: OpCost(count_traffic(op, facts, storages).bytes, count_flops(op, facts, formulas)) for op in facts.ops
    }


def count_step_traffic(facts: GraphFacts) -> int:
    """Return the bytes that one eager run of the graph moves, with the graph's own copies. Copies inside operators come
    on top. A step that calls the graph several times moves as many times as much."""
    storages = count_storage_bytes(facts)
    return sum(count_traffic(op, facts, storages).bytes for op in facts.ops)


def list_roofline_points(facts: GraphFacts, costs: Mapping[str, OpCost] | None = None) -> tuple[RooflinePoint, ...]:
    """Return one point for all calls of an operator at one call site, phase and dtype, in order of first execution.

    Numbers cover a whole step, which may run the graph several times. Calls that move nothing, and those whose FLOPs
    are unknown, have no place on a roofline and are left out. `costs` spares computing `op_costs(facts)` again.
    """
    costs = count_op_costs(facts) if costs is None else costs
    groups: dict[tuple[str, object, Phase, str], list[OpFacts]] = {}
    for op in facts.ops:
        cost = costs[op.node]
        if cost.bytes and cost.flops is not None:
            groups.setdefault((op.operator, op.site.place, op.phase, format_dtype(op, facts)), []).append(op)
    return tuple(_make_point(key, ops, facts.calls, costs) for key, ops in groups.items())


def find_compute_dtype(op: OpFacts, facts: GraphFacts) -> torch.dtype | None:
    """Return the dtype of the arithmetic: that of the first floating-point operand or result, else of any."""
    values = (*facts.get_input_values(op), *facts.get_output_values(op))
    return next((value.dtype for value in values if value.dtype.is_floating_point), values[0].dtype if values else None)


def format_dtype(op: OpFacts, facts: GraphFacts) -> str:
    """Return `float32`, as in reports; empty for an operator without tensors."""
    return str(find_compute_dtype(op, facts) or "").removeprefix("torch.")


def _make_point(
    key: tuple[str, object, Phase, str],
    ops: Sequence[OpFacts],
    calls: int,
    costs: Mapping[str, OpCost],
) -> RooflinePoint:
    operator, _, phase, dtype = key
    site = replace(ops[0].site, module_path=merge_module_paths(op.site.module_path for op in ops))
    return RooflinePoint(
        operator=operator,
        site=site,
        phase=phase,
        dtype=dtype,
        count=calls * len(ops),
        flops=calls * sum(costs[op.node].flops or 0 for op in ops),
        bytes=calls * sum(costs[op.node].bytes for op in ops),
        seconds=None,
    )


@dataclass(frozen=True, slots=True)
class RooflinePosition:
    """Some work on a device. `intensity` and `ridge` are FLOPs per byte, rates FLOP/s, times seconds."""

    flops: int
    bytes: int
    ridge: float
    peak: float
    bandwidth: float

    @property
    def intensity(self) -> float:
        """FLOPs for each byte moved."""
        return self.flops / self.bytes

    @property
    def memory_bound(self) -> bool:
        """True left of the ridge point, where bandwidth limits."""
        return self.intensity < self.ridge

    @property
    def attainable(self) -> float:
        """FLOP/s that the roofline allows."""
        return min(self.peak, self.intensity * self.bandwidth)

    @property
    def predicted_seconds(self) -> float:
        """The least time on this device."""
        return max(self.bytes / self.bandwidth, self.flops / self.peak)


def find_roofline_position(
    flops: int, moved_bytes: int, device: DeviceProfile, dtype: torch.dtype
) -> RooflinePosition | None:
    """Return the position of work on a device; None if nothing is moved or the device's peak for `dtype` is unknown."""
    ridge = device.get_ridge_point(dtype)
    if ridge is None or moved_bytes <= 0:
        return None
    return RooflinePosition(flops, moved_bytes, ridge, device.peak_flops[dtype], device.bandwidth_bytes_per_s)
