"""Inputs of the detectors: one graph's facts, with the measurements and predictions about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from frx_graph.capture.captured_graph import GraphBreak, Recompile
from frx_graph.facts.graph_facts import GraphFacts, OpFacts
from frx_graph.measure.machine.device_profile import DeviceProfile, ReachedSpeed
from frx_graph.measure.operators.operator_contract import OperatorContract
from frx_graph.measure.operators.operator_measurement import LayoutTimes, OperatorMeasurement
from frx_graph.measure.page_faults import AllocationCost
from frx_graph.passes.attention_pattern import Attention, find_attentions, is_replaceable
from frx_graph.passes.call_groups import group_by
from frx_graph.passes.copies.view_chain import trace_views
from frx_graph.passes.costs.operator_costs import OpCost, count_op_costs, find_compute_dtype
from frx_graph.passes.fusion.fusion_groups import Kernels, partition_kernels
from frx_graph.passes.layouts.layout_choice import LayoutChange, find_steady_layouts, list_layout_changes
from frx_graph.passes.layouts.layout_problem import build_layout_problem
from frx_graph.passes.layouts.regions import LayoutGroup, find_layout_groups
from frx_graph.records import Copy, Finding, Refusal


@dataclass(frozen=True, slots=True)
class PrecisionSettings:
    """Global switches of torch that decide the arithmetic of fp32 matmuls and convolutions."""

    float32_matmul_precision: str
    matmul_tf32: bool
    cudnn_tf32: bool
    autocast: bool
    has_tf32: bool = True
    """False if the advice is for a GPU without TF32."""

    @staticmethod
    def read_current(device: str) -> PrecisionSettings:
        """Read the switches from torch now."""
        try:
            precision = torch.get_float32_matmul_precision()
            matmul_tf32, cudnn_tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        except RuntimeError:
            # The older switches refuse to be read once a program has set the newer `fp32_precision`.
            matmul_tf32 = getattr(torch.backends.cuda.matmul, "fp32_precision", None) == "tf32"
            cudnn_tf32 = getattr(getattr(torch.backends.cudnn, "conv", None), "fp32_precision", None) == "tf32"
            precision = "high" if matmul_tf32 else "highest"
        return PrecisionSettings(precision, matmul_tf32, cudnn_tf32, torch.is_autocast_enabled(device))


@dataclass(frozen=True)
class CompileEvents:
    """Events around the compilation of the graphs."""

    breaks: tuple[GraphBreak, ...] = ()
    recompiles: tuple[Recompile, ...] = ()
    cudagraph_skips: int = 0


@dataclass(frozen=True)
class Analysis:
    """Everything a detector may read about one graph.

    `copies` are the predicted layout copies of one step. `layout_times` and `measurements` are keyed by node name and
    hold only what was measured on this device. `step_bytes` is the predicted traffic of one eager step, including
    copies and the step's other graphs; savings are percentages of it. `contract` lists the strides that an operator
    takes without a copy; None if this device and torch have no contract. `loaded` is True if other programs disturbed
    the measured times. `allocation_cost` is the program's, and is set for its first graph only. `compiled_modules` are
    the paths of modules that the program compiles by itself.
    """

    facts: GraphFacts
    copies: tuple[Copy, ...]
    step_bytes: int
    inner: str = "eager"
    device: DeviceProfile | None = None
    layout_times: Mapping[str, LayoutTimes] = field(default_factory=dict)
    measurements: Mapping[str, OperatorMeasurement] = field(default_factory=dict)
    events: CompileEvents = field(default_factory=CompileEvents)
    precision: PrecisionSettings | None = None
    contract: OperatorContract | None = None
    loaded: bool = False
    allocation_cost: AllocationCost | None = None
    compiled_modules: frozenset[str] = frozenset()

    def is_compiled_by_program(self, op: OpFacts) -> bool:
        """Return True for an operator of a module that the program compiles, or of a part of one."""
        parts = op.site.module_path.split(".")
        return any(".".join(parts[:count]) in self.compiled_modules for count in range(1, len(parts) + 1))

    @cached_property
    def layout_groups(self) -> tuple[LayoutGroup, ...]:
        """Convolution and pooling regions, forward and backward."""
        return find_layout_groups(self.facts, self.inner)

    @cached_property
    def layout_changes(self) -> tuple[LayoutChange, ...]:
        """Changes that the cheapest layouts make, small fragments aside; empty without measured times or bandwidth."""
        if self.device is None or not self.layout_times:
            return ()
        rest = (self.facts, self.layout_times, self.device.bandwidth_bytes_per_s)
        problems = [build_layout_problem(group, *rest) for group in self.layout_groups]
        return tuple(change for p in problems for change in list_layout_changes(p, find_steady_layouts(p)))

    @cached_property
    def reached_speeds(self) -> tuple[ReachedSpeed, ...]:
        """The arithmetic speed of every operator that was timed, in its faster layout."""
        found = []
        for op in self.facts.ops if self.layout_times else ():
            seconds, flops = self.get_least_seconds(op.node), self.costs[op.node].flops
            dtype = find_compute_dtype(op, self.facts)
            if seconds and flops and dtype is not None:
                found.append(ReachedSpeed(op.operator, dtype, flops / seconds))
        return tuple(found)

    def get_least_seconds(self, node: str) -> float | None:
        """Return the measured time of one call in its faster layout; None if it was not timed."""
        times = self.layout_times.get(node)
        known = () if times is None else (times.plain_seconds, times.channels_last_seconds)
        return min((seconds for seconds in known if seconds is not None), default=None)

    @cached_property
    def attentions(self) -> tuple[Attention, ...]:
        """Every attention of the forward that is written out as products, in execution order."""
        return tuple(find_attentions(self.facts))

    @cached_property
    def replaceable_attentions(self) -> tuple[Attention, ...]:
        """Those of them that FRX012 tells to replace by a fused kernel."""
        return tuple(attention for attention in self.attentions if is_replaceable(self.facts, attention))

    @cached_property
    def replaceable_operands(self) -> Mapping[str, Attention]:
        """Queries, keys and values of these, each with its attention."""
        return {value.name: a for a in self.replaceable_attentions for value in (a.query, a.key, a.value)}

    @cached_property
    def replaceable_operand_bases(self) -> Mapping[str, Attention]:
        """Values that these operands are views of, each with its attention."""
        return {trace_views(self.facts, name).base: one for name, one in self.replaceable_operands.items()}

    @cached_property
    def attention_operands(self) -> frozenset[str]:
        """Queries, keys and values of these attentions."""
        return frozenset(value.name for a in self.attentions for value in (a.query, a.key, a.value))

    @cached_property
    def attention_operand_bases(self) -> frozenset[str]:
        """Values that these operands are views of."""
        return frozenset(trace_views(self.facts, name).base for name in self.attention_operands)

    @cached_property
    def attention_results(self) -> frozenset[str]:
        """Results of these attentions."""
        return frozenset(attention.second.outputs[0] for attention in self.attentions)

    @cached_property
    def attention_nodes(self) -> frozenset[str]:
        """Operators between the two products of these attentions."""
        return frozenset(op.node for a in self.attentions for op in a.between)

    @cached_property
    def copies_by_node(self) -> Mapping[str, Sequence[Copy]]:
        """The predicted copies of every node that makes any."""
        return group_by(self.copies, lambda copy: copy.node)

    @cached_property
    def costs(self) -> Mapping[str, OpCost]:
        """Bytes and FLOPs of every operator call, by node name."""
        return count_op_costs(self.facts)

    @cached_property
    def kernels(self) -> Kernels:
        """Groups that a fusing compiler would make."""
        return partition_kernels(self.facts, self.costs)


@dataclass(frozen=True, slots=True)
class Detector:
    """A rule's code, its name (the defect, in the field's terms), and the function that detects it."""

    rule: str
    name: str
    detect: Callable[[Analysis], Iterable[Finding | Refusal]]
