"""Group operators that a fusing compiler would run as one kernel, and count the traffic that this avoids.

Every operator gets a level: the number of kernels that must finish before it. Connected operators of one level and
phase form a group. Since levels never fall along an edge, no path leaves a group and comes back, so a group can always
run as a whole.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from frx_graph.capture.captured_graph import InputKind, Phase
from frx_graph.facts.graph_facts import GraphFacts, OpFacts
from frx_graph.passes.costs.operator_costs import OpCost
from frx_graph.passes.costs.operator_traffic import count_operand_bytes
from frx_graph.passes.fusion.fusion_roles import FUSIBLE, FusionRole, classify_fusion_role
from frx_graph.passes.solver.splitting import find_connected_components


@dataclass(frozen=True, slots=True)
class FusionGroup:
    """Connected operators of one phase that could share a kernel, in execution order; at least one.

    `bytes` is their traffic one by one, `saved_bytes` the reduction as one kernel. `flops` leaves out operators with
    unknown arithmetic.
    """

    ops: tuple[OpFacts, ...]
    phase: Phase
    bytes: int
    saved_bytes: int
    flops: int


class Dataflow:
    """Readers and makers of memory, with views and layout copies looked through.

    A root is a value that is neither a view nor a layout copy of another.
    """

    def __init__(self, facts: GraphFacts) -> None:
        self.facts = facts
        self.roles: Mapping[str, FusionRole] = {op.node: classify_fusion_role(op, facts) for op in facts.ops}
        self.readers: dict[str, list[tuple[OpFacts, str]]] = {}
        """Root → the operators that read it, each with the value that it reads."""
        self._root_of: dict[str, str] = {}
        for op in facts.ops:
            if self.roles[op.node] is FusionRole.TRANSPARENT:
                self._root_of.update((name, self.get_root(op.inputs[0])) for name in op.outputs if op.inputs)
            else:
                for name in dict.fromkeys(op.inputs):
                    self.readers.setdefault(self.get_root(name), []).append((op, name))
        self.returned = {self.get_root(name) for name in facts.outputs}

    def get_root(self, value: str) -> str:
        """Return the root of `value`, which may be `value` itself."""
        return self._root_of.get(value, value)

    def find_maker(self, root: str) -> OpFacts | None:
        """Return the operator that made a root; None for an input and for memory that was only allocated."""
        producer = self.facts.get_producer(root)
        return producer if producer is not None and self.is_opaque_or_fusible(producer) else None

    def is_opaque_or_fusible(self, op: OpFacts) -> bool:
        """Return False for views, allocations and layout copies."""
        return self.roles[op.node] is not FusionRole.TRANSPARENT

    def is_fusible(self, op: OpFacts) -> bool:
        """Return True for operators that can share a kernel with others."""
        return self.roles[op.node] in FUSIBLE


@dataclass(frozen=True)
class Kernels:
    """A graph divided into the kernels of a fusing compiler."""

    flow: Dataflow
    groups: tuple[FusionGroup, ...]

    @cached_property
    def number_of(self) -> Mapping[str, int]:
        """Node → position of the group; nodes that fuse with nothing are absent."""
        return {op.node: number for number, group in enumerate(self.groups) for op in group.ops}

    def list_readers(self, root: str) -> list[OpFacts]:
        """Return the operators that read a root."""
        return [op for op, _ in self.flow.readers.get(root, ())]

    def find_sole_group(self, root: str) -> FusionGroup | None:
        """Return the group that holds every reader of `root`; None for several, none, or the program's caller."""
        numbers = {self.number_of.get(op.node) for op in self.list_readers(root)}
        number = numbers.pop() if len(numbers) == 1 and root not in self.flow.returned else None
        return None if number is None else self.groups[number]


def compute_kernel_levels(flow: Dataflow) -> dict[str, int]:
    """Return the number of kernels that must finish before each operator, as late as its consumers allow."""
    levels = _compute_earliest_levels(flow)
    for op in reversed(flow.facts.ops):
        if flow.is_fusible(op) and not any(flow.facts.values[name].mutated for name in (*op.inputs, *op.outputs)):
            latest = _compute_latest_level(op, flow, levels)
            if latest is not None:
                levels[op.node] = max(levels[op.node], latest)
    return levels


def _compute_earliest_levels(flow: Dataflow) -> dict[str, int]:
    levels: dict[str, int] = {}
    ready: dict[str, int] = {}
    written: dict[int, int] = {}
    touched: dict[int, int] = {}
    values = flow.facts.values
    for op in flow.facts.ops:
        if not flow.is_opaque_or_fusible(op):
            continue
        roots = [flow.get_root(name) for name in op.inputs]
        level = max((max(ready.get(root, 0), written.get(values[root].storage, 0)) for root in roots), default=0)
        level = max((level, *(touched.get(values[name].storage, 0) for name in op.mutates)))
        role = flow.roles[op.node]
        if role is FusionRole.STATISTICS and any(_is_fused_at(flow, root, level, levels) for root in roots):
            level += 1
        levels[op.node] = level
        done = level + 1 if role in (FusionRole.BARRIER, FusionRole.REDUCTION) else level
        ready.update((name, done) for name in op.outputs)
        for name in op.inputs:
            touched[values[name].storage] = max(touched.get(values[name].storage, 0), done)
        for name in op.mutates:
            written[values[name].storage] = done
    return levels


def _is_fused_at(flow: Dataflow, root: str, level: int, levels: Mapping[str, int]) -> bool:
    maker = flow.find_maker(root)
    return maker is not None and flow.is_fusible(maker) and levels[maker.node] == level


def _compute_latest_level(op: OpFacts, flow: Dataflow, levels: Mapping[str, int]) -> int | None:
    """Return the level of the first consumer in the phase, if any, less one if it needs the finished result."""
    waits = 1 if flow.roles[op.node] is FusionRole.REDUCTION else 0
    latest = (
        levels[reader.node] - max(waits, 1 if flow.roles[reader.node] is FusionRole.STATISTICS else 0)
        for name in op.outputs
        for reader, _ in flow.readers.get(name, ())
        if reader.phase is op.phase
    )
    return min(latest, default=None)


def partition_kernels(facts: GraphFacts, costs: Mapping[str, OpCost]) -> Kernels:
    """Return the kernels of a graph, groups in execution order; every fusible operator is in exactly one.

    `costs` is `op_costs(facts)`. Linear in the size of the graph.
    """
    flow = Dataflow(facts)
    levels = compute_kernel_levels(flow)
    fusible = [op for op in flow.facts.ops if flow.is_fusible(op)]
    index = {op.node: number for number, op in enumerate(fusible)}
    pairs: list[tuple[OpFacts, OpFacts]] = []
    for root, readers in flow.readers.items():
        maker = flow.find_maker(root)
        members = [op for op, _ in readers if flow.is_fusible(op)]
        if maker is not None and flow.is_fusible(maker):
            pairs.extend((maker, op) for op in members)
        pairs.extend(_pair_similar_readers(flow, root, members))
    joined = (
        (index[first.node], index[second.node])
        for first, second in pairs
        if levels[first.node] == levels[second.node] and first.phase is second.phase
    )
    components = find_connected_components(len(fusible), joined)
    saved = _count_saved_bytes(flow, {fusible[i].node: key for key, members in enumerate(components) for i in members})
    groups = []
    for key, component in enumerate(components):
        ops = tuple(fusible[i] for i in component)
        moved, flops = sum(costs[op.node].bytes for op in ops), sum(costs[op.node].flops or 0 for op in ops)
        groups.append(FusionGroup(ops, ops[0].phase, moved, saved.get(key, 0), flops))
    return Kernels(flow, tuple(groups))


def _pair_similar_readers(flow: Dataflow, root: str, members: list[OpFacts]) -> Iterable[tuple[OpFacts, OpFacts]]:
    """Yield neighbouring readers of one tensor that have the same number of elements: they fuse horizontally. Weights
    and single numbers, which many read, do not count."""
    value = flow.facts.values[root]
    if value.kind in (InputKind.PARAMETER, InputKind.BUFFER) or value.numel <= 1:
        return
    last: dict[tuple[int, Phase], OpFacts] = {}
    for op in members:
        size = max((out.numel for out in flow.facts.get_output_values(op)), default=0)
        if (size, op.phase) in last:
            yield last[size, op.phase], op
        last[size, op.phase] = op


def _count_saved_bytes(flow: Dataflow, group_of: Mapping[str, int]) -> Mapping[int, int]:
    """Return the traffic that each group avoids as one kernel: repeated reads, reads of the group's own results, and
    writes that nothing outside needs."""
    saved: Counter[int] = Counter()
    for root, readers in flow.readers.items():
        maker = flow.find_maker(root)
        own = group_of.get(maker.node) if maker is not None else None
        reads: defaultdict[int, list[int]] = defaultdict(list)
        for op, name in readers:
            if op.node in group_of:
                reads[group_of[op.node]].append(count_operand_bytes(op, flow.facts.values[name], flow.facts))
        for group, amounts in reads.items():
            saved[group] += sum(amounts) - (0 if group == own else max(amounts))
        inside = all(group_of.get(op.node) == own for op, _ in readers)
        if own is not None and inside and root not in flow.returned:
            saved[own] += flow.facts.values[root].bytes
    return saved
