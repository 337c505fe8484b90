"""Price one run of a graph as an inner compiler runs it: measured library calls, and the traffic of everything else.

The gain of a rewrite is the difference of two such prices, of the graph before and after it, under the same compiler.
So a choice that the compiler makes by itself is in both prices and gains nothing, and no gain exceeds the run.

- A library call (convolution, product, attention) takes its measured time on the operands that it really gets.
- Eager runs every other operator by itself. It moves its compulsory traffic at the device's bandwidth. A copy that
  changes strides takes its measured time.
- Inductor fuses operators to loops, as `passes/fusion` groups them. A loop moves the traffic of one group. A copy
  fuses with the loop that makes or reads the value.
- Inductor runs a convolution with all operands in the order of the result, and converts a weight in every run. If its
  own rules choose channels-last, that is the order of all convolutions, whatever the graph says.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.layout import CHANNELS_LAST_ORDER, make_ordered_strides
from frx_graph.facts.operator_families import CONVOLUTIONS
from frx_graph.facts.operator_signature import OperatorSignature, build_signature
from frx_graph.passes.costs.operator_costs import count_op_costs
from frx_graph.passes.fusion.fusion_groups import Dataflow, partition_kernels
from frx_graph.passes.fusion.fusion_roles import is_layout_copy
from frx_graph.passes.layouts.dimension_map import Order, canonicalize_order, make_plain_order
from frx_graph.passes.layouts.operator_layout import find_layout_operator
from frx_graph.rules.layout_operator import LayoutRole

LoopSeconds = Mapping[str, Mapping[Order, float]]
"""Measured seconds of generated loops, by node and the order of their result."""

STRIDED_SHARE = 0.5
"""Share of a copy that a loop pays for reading a library call's result in another order. As in `layout/costs.py`."""

_LOOP_SECONDS = {"inductor": 2e-6, "eager": 4e-6}
"""Seconds to start a loop: an OpenMP region of generated code, or an operator through torch's dispatcher."""


@dataclass(frozen=True)
class PricedProgram:
    """One run of a graph: library calls, each with its traffic, and loops.

    `moved_bytes` is the traffic of loops and of copies that are not measured. `loop_seconds` is the time of loops that
    were measured, which are not among the `loops` that are counted.
    """

    calls: Mapping[OperatorSignature, int] = field(default_factory=dict)
    call_bytes: Mapping[OperatorSignature, int] = field(default_factory=dict)
    moved_bytes: int = 0
    loops: int = 0
    loop_seconds: float = 0.0
    start_seconds: float = 0.0

    def list_unknown(self, timed: Mapping[OperatorSignature, float]) -> Mapping[OperatorSignature, int]:
        """Return the calls without a time, with how often each is made."""
        return {call: count for call, count in self.calls.items() if call not in timed}

    def sum_seconds(self, timed: Mapping[OperatorSignature, float], bandwidth_bytes_per_s: float) -> float:
        """Return the seconds of one run. A call without a time moves its traffic, which is the least it can take."""
        moved = self.moved_bytes + sum(
            self.call_bytes.get(call, 0) * count for call, count in self.list_unknown(timed).items()
        )
        calls = math.fsum(timed[call] * count for call, count in self.calls.items() if call in timed)
        return calls + self.loop_seconds + self.loops * self.start_seconds + moved / bandwidth_bytes_per_s


def price_gain(
    before: PricedProgram,
    after: PricedProgram,
    timed: Mapping[OperatorSignature, float],
    bandwidth_bytes_per_s: float,
) -> float | None:
    """Return the seconds that a run of `after` saves, negative for a loss and never more than a run of `before` takes.

    None if a call without a time is made in one program and not as often in the other: its time would count as a gain.
    """
    if before.list_unknown(timed) != after.list_unknown(timed):
        return None
    return before.sum_seconds(timed, bandwidth_bytes_per_s) - after.sum_seconds(timed, bandwidth_bytes_per_s)


def build_priced_program(
    facts: GraphFacts,
    inner: str,
    *,
    channels_last: bool = False,
    loop_seconds: LoopSeconds = MappingProxyType({}),
    constants: Collection[str] = (),
) -> PricedProgram:
    """Return what one run of the graph consists of under `inner`.

    `channels_last` is True if Inductor runs all convolutions so by its own choice. `loop_seconds` are times of loops
    that depend on their order: poolings, and the gathers of upsampling. Values among `constants` are computed once.
    """
    if constants:
        ops = tuple(op for op in facts.ops if not op.outputs or not set(op.outputs) <= set(constants))
        facts = replace(facts, ops=ops)
    if inner == "inductor":
        return _build_fused_program(facts, channels_last, loop_seconds)
    return _build_eager_program(facts)


def _build_eager_program(facts: GraphFacts) -> PricedProgram:
    costs = count_op_costs(facts)
    flow = Dataflow(facts)
    calls: Counter[OperatorSignature] = Counter()
    call_bytes: dict[OperatorSignature, int] = {}
    moved = loops = 0
    for op in facts.ops:
        if not costs[op.node].bytes or _changes_nothing(op, facts):
            continue
        if is_layout_copy(op, facts) or (flow.is_opaque_or_fusible(op) and not flow.is_fusible(op)):
            signature = build_signature(op, facts)
            calls[signature] += 1
            call_bytes[signature] = costs[op.node].bytes
        else:
            moved += costs[op.node].bytes
            loops += 1
    return PricedProgram(calls, call_bytes, moved, loops, start_seconds=_LOOP_SECONDS["eager"])


def _changes_nothing(op: OpFacts, facts: GraphFacts) -> bool:
    """Return True for `contiguous` of a value that has the wanted strides: it returns the value itself."""
    return (
        op.operator == "aten.contiguous" and facts.values[op.inputs[0]].strides == facts.values[op.outputs[0]].strides
    )


def _build_fused_program(facts: GraphFacts, channels_last: bool, loop_seconds: LoopSeconds) -> PricedProgram:
    costs = count_op_costs(facts)
    kernels = partition_kernels(facts, costs)
    flow = kernels.flow
    # Loops that were measured were measured without what they fuse with: their own traffic counts there.
    timed = {op.node: _find_loop_seconds(op, facts, channels_last, loop_seconds) for op in facts.ops}
    measured = {node: seconds for node, seconds in timed.items() if seconds is not None}
    moved = sum(
        max(0, group.bytes - group.saved_bytes - sum(costs[op.node].bytes for op in group.ops if op.node in measured))
        for group in kernels.groups
    )
    calls: Counter[OperatorSignature] = Counter()
    call_bytes: dict[OperatorSignature, int] = {}
    loops = sum(1 for group in kernels.groups if group.bytes)
    for op in facts.ops:
        if is_layout_copy(op, facts):
            moved += _count_copied_bytes(op, flow)
        elif not flow.is_opaque_or_fusible(op) or flow.is_fusible(op) or not costs[op.node].bytes:
            continue
        elif op.node in measured:
            loops += 1
        elif _is_generated(op):
            moved += costs[op.node].bytes
            loops += 1
        else:
            signature = build_signature(op, facts, _find_convolution_strides(op, facts, channels_last))
            calls[signature] += 1
            call_bytes[signature] = costs[op.node].bytes
    moved += sum(_count_conversions(facts, flow, channels_last))
    return PricedProgram(
        calls, call_bytes, moved, loops, math.fsum(measured.values()), start_seconds=_LOOP_SECONDS["inductor"]
    )


def _is_generated(op: OpFacts) -> bool:
    """Return True if Inductor writes the loop of an operator that fuses with nothing. Eager's kernel for one of torch's
    prims is a reference, ten times as slow."""
    row = find_layout_operator(op)
    return op.operator.startswith("prims.") or (row.role is LayoutRole.ANCHOR and row.generated)


def _find_loop_seconds(op: OpFacts, facts: GraphFacts, channels_last: bool, loop_seconds: LoopSeconds) -> float | None:
    """Return the measured time of a loop in the order that it runs in; None if it was not measured in that."""
    known = loop_seconds.get(op.node)
    if known is None or not op.outputs:
        return None
    result = facts.values[op.outputs[0]]
    rank = len(result.shape)
    order = CHANNELS_LAST_ORDER[rank] if channels_last and rank == 4 else result.order
    canonical = {canonicalize_order(result.shape, asked): seconds for asked, seconds in known.items()}
    return canonical.get(canonicalize_order(result.shape, order))


def _is_laid_out(value: ValueFacts, order: Order) -> bool:
    return canonicalize_order(value.shape, value.order) == canonicalize_order(value.shape, order)


def _find_convolution_order(op: OpFacts, facts: GraphFacts, channels_last: bool) -> Order | None:
    """Return the order in which Inductor runs a convolution; None for other operators."""
    if op.operator not in CONVOLUTIONS or not op.inputs:
        return None
    image = facts.values[op.inputs[0]]
    rank = len(image.shape)
    if channels_last and rank == 4:
        return CHANNELS_LAST_ORDER[rank]
    operands = [value for value in facts.get_input_values(op) if len(value.shape) == rank]
    wanted = CHANNELS_LAST_ORDER.get(rank)
    if wanted is not None and any(_is_laid_out(value, wanted) and not _is_plain(value) for value in operands):
        return wanted
    return make_plain_order(image.shape)


def _is_plain(value: ValueFacts) -> bool:
    return _is_laid_out(value, make_plain_order(value.shape))


def _find_convolution_strides(op: OpFacts, facts: GraphFacts, channels_last: bool) -> Mapping[str, tuple[int, ...]]:
    """Return the strides of a convolution's operands as Inductor passes them; none for other operators."""
    order = _find_convolution_order(op, facts, channels_last)
    if order is None:
        return {}
    rank = len(order)
    images = (value for value in facts.get_input_values(op) if len(value.shape) == rank)
    return {value.name: make_ordered_strides(value.shape, order) for value in images}


def _count_copied_bytes(copy: OpFacts, flow: Dataflow) -> int:
    """Return the bytes that a copy in the graph moves: none if it changes nothing, or fuses with its maker."""
    source, result = (flow.facts.values[names[0]] for names in (copy.inputs, copy.outputs))
    if source.strides == result.strides:
        return 0
    root = flow.get_root(source.name)
    maker = flow.find_maker(root)
    if maker is not None and flow.is_fusible(maker):
        others = any(node != copy.node for node in source.users) or source.name in flow.facts.outputs
        return result.bytes if others else 0
    readers = [flow.facts.op_by_node[node] for node in result.users]
    if readers and all(flow.is_fusible(reader) for reader in readers) and result.name not in flow.facts.outputs:
        return int(2 * result.bytes * STRIDED_SHARE)
    return 2 * result.bytes


def _count_conversions(facts: GraphFacts, flow: Dataflow, channels_last: bool) -> Iterator[int]:
    """Yield the bytes of each copy that Inductor adds around convolutions."""
    converted: set[str] = set()
    for op in facts.ops:
        order = _find_convolution_order(op, facts, channels_last)
        if order is None:
            continue
        for value in facts.get_input_values(op):
            if len(value.shape) != len(order) or _is_laid_out(value, order) or value.name in converted:
                continue
            maker = flow.find_maker(flow.get_root(value.name))
            # A loop writes its result in the order that is read; a forced convolution has it.
            if maker is not None and (flow.is_fusible(maker) or maker.operator in CONVOLUTIONS):
                continue
            converted.add(value.name)
            yield 2 * value.bytes
        if not channels_last:
            continue
        for value in facts.get_output_values(op):
            if len(value.shape) == len(order) and not _is_laid_out(value, order) and _is_read_plain(value, facts, flow):
                yield 2 * value.bytes


def _is_read_plain(value: ValueFacts, facts: GraphFacts, flow: Dataflow) -> bool:
    """Return True for a result that the caller sees, or that a library call other than a convolution reads."""
    if value.user_visible and value.name in facts.outputs:
        return True
    readers = (op for op, _ in flow.readers.get(flow.get_root(value.name), ()))
    return any(not flow.is_fusible(reader) and reader.operator not in CONVOLUTIONS for reader in readers)
