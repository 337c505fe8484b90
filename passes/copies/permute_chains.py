"""Find chains of views, copies and unary pointwise operators along which dimensions are reordered."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from frx_graph.capture.captured_graph import InputKind, Phase
from frx_graph.facts.graph_facts import GraphFacts, OpFacts
from frx_graph.facts.layout import make_contiguous_strides
from frx_graph.facts.operator_families import LAYOUT_COPIES
from frx_graph.passes.copies.stride_replay import Strides, have_same_strides, replay_operator
from frx_graph.passes.copies.view_chain import REORDERING_VIEWS, STORAGE_READERS, is_view

MAX_LENGTH = 32
"""Steps followed from the end of a chain; attention's longest have about ten."""
COMPOSABLE = 3
"""Reorderings in a row from which a chain counts as one hidden permute. Two are ordinary: every attention swaps the
keys' heads and sequence, then sequence and dim."""


@dataclass(frozen=True)
class Step:
    """One operator of a chain, and the result with which the chain continues."""

    op: OpFacts
    value: str


@dataclass(frozen=True)
class Chain:
    """Run of steps from `base`, made by a computing operator or the caller, to the last value before the next
    computation.

    `reorderings` are the positions of the steps that really reorder, dimensions of size 1 aside.
    """

    base: str
    steps: tuple[Step, ...]
    reorderings: tuple[int, ...]


def find_chains(facts: GraphFacts) -> Iterator[Chain]:
    """Yield every chain of the forward with at least one reordering, ordered by last value.

    Chains of parameters and buffers are left out: the `t()` of every linear layer is one, and costs nothing.
    """
    transparent = [op for op in facts.ops if op.phase is Phase.FORWARD and is_transparent(facts, op)]
    parents = {name: op.inputs[0] for op in transparent for name in op.outputs}
    reordering = {op.node for op in transparent if is_reordering(facts, op)}
    inner = set(parents.values())
    for leaf in parents:
        if leaf in inner:
            continue
        steps: list[Step] = []
        value = leaf
        while value in parents and len(steps) < MAX_LENGTH:
            producer = facts.get_producer(value)
            assert producer is not None, "only results of operators have parents"
            steps.append(Step(producer, value))
            value = parents[value]
        base = facts.values[value]
        if base.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            continue
        steps.reverse()
        positions = tuple(i for i, step in enumerate(steps) if step.op.node in reordering)
        if positions:
            yield Chain(value, tuple(steps), positions)


def is_transparent(facts: GraphFacts, op: OpFacts) -> bool:
    """Return True for operators that keep the logical order of elements, or only permute dimensions: views, copies in
    the same dtype, and pointwise operators of one tensor."""
    if len(op.inputs) != 1 or not op.outputs or op.opaque:
        return False
    if op.operator in STORAGE_READERS:
        return False
    if is_view(op):
        return True
    if op.mutates or len(op.outputs) != 1:
        return False
    before, after = facts.values[op.inputs[0]], facts.values[op.outputs[0]]
    if op.operator in LAYOUT_COPIES:
        return before.dtype is after.dtype and before.device == after.device
    return op.pointwise and before.shape == after.shape


def is_reordering(facts: GraphFacts, op: OpFacts) -> bool:
    """Return True if `op` changes the order of dimensions larger than 1."""
    if op.operator not in REORDERING_VIEWS or len(op.outputs) != 1:
        return False
    shape = facts.values[op.inputs[0]].shape
    if 0 in shape:
        return False
    moved = replay_operator(op, facts, {op.inputs[0]: make_contiguous_strides(shape)})
    if moved is None:
        return False
    result = facts.values[op.outputs[0]].shape
    real = [stride for size, stride in zip(result, moved[0], strict=True) if size > 1]
    return real != sorted(real, reverse=True)


@dataclass(frozen=True)
class Span:
    """Steps `first` to `last` of a chain, both included."""

    chain: Chain
    first: int
    last: int

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps themselves."""
        return self.chain.steps[self.first : self.last + 1]


def find_cancelling_span(facts: GraphFacts, chain: Chain) -> Span | None:
    """Return the first span that restores the order of dimensions after two or more reorderings, with the copies that
    follow at once, if removable.

    None if nothing cancels, if the cancelling part is needed, or if the span is torch's own work inside an einsum.
    """
    positions = set(chain.reorderings)
    if len(positions) < 2:
        return None
    met: list[tuple[int, tuple[int, ...], Strides]] = []
    for index, segment, shape, strides in _replay_states(facts, chain):
        for first in reversed(range(len(met))):
            at, old_shape, old_strides = met[first]
            inside = [p for p in positions if first <= p <= index]
            same = at == segment and old_shape == shape and have_same_strides(shape, old_strides, strides)
            if not same or len(inside) < 2 or _is_inside_einsum(chain, inside):
                continue
            span = Span(chain, min(inside), _include_copies(chain, index))
            if _is_replaceable(facts, span, back_at=index):
                return span
            views = replace(span, last=index)
            if not has_data_movement(facts, views):
                return views
        met.append((segment, shape, strides))
    return None


def _is_inside_einsum(chain: Chain, positions: list[int]) -> bool:
    """Return True for reorderings of a line that also unsqueezes: einsum adds missing labels as dimensions of size 1,
    and permutes before and after."""
    sites = {chain.steps[p].op.site for p in positions}
    return len(sites) == 1 and any(s.op.operator == "aten.unsqueeze" and s.op.site in sites for s in chain.steps)


def find_composable_span(facts: GraphFacts, chain: Chain) -> Span | None:
    """Return a run of at least `COMPOSABLE` reorderings with only views of the same dimensions between them."""
    positions = set(chain.reorderings)
    run: list[int] = []
    for index, step in enumerate(chain.steps):
        if index in positions:
            run.append(index)
        elif not is_view(step.op) or _drop_unit_sizes(facts, step.value) != _drop_unit_sizes(facts, step.op.inputs[0]):
            if len(run) >= COMPOSABLE:
                break
            run = []
    if len(run) < COMPOSABLE or _is_inside_einsum(chain, run):
        return None
    span = Span(chain, run[0], run[-1])
    return None if has_data_movement(facts, span) or is_read_between(facts, span) else span


def has_data_movement(facts: GraphFacts, span: Span) -> bool:
    """Return True if a step of `span` writes new memory: a copy, or an operator that computes."""
    return any(_is_storing(facts, step) for step in span.steps)


def is_read_between(facts: GraphFacts, span: Span, before: int | None = None) -> bool:
    """Return True if a value inside `span` is returned or has another forward reader than the next step. With `before`,
    values from that step on do not count. What the backward keeps follows the forward."""
    stop = span.last if before is None else before
    steps = span.chain.steps[span.first : stop + 1]
    for step, following in itertools.pairwise(steps):
        for name in step.op.outputs:
            readers = {user.node for user in facts.get_users(name) if user.phase is Phase.FORWARD}
            if name in facts.outputs or not readers <= {following.op.node}:
                return True
    return False


def _is_replaceable(facts: GraphFacts, span: Span, back_at: int) -> bool:
    """Return True if the readers of `span` from step `back_at` on can read the value before it. At that step the
    dimensions are as before the span.

    That always holds for views of one memory. With copies between, removed values must have no other readers, and no
    side of a copy may be written once the span has begun. The caller must not get other strides or shared memory.
    """
    if not has_data_movement(facts, span):
        return True
    if is_read_between(facts, span, before=back_at):
        return False
    if not any(step.op.operator in LAYOUT_COPIES and _is_storing(facts, step) for step in span.steps):
        return True
    source = facts.values[span.steps[0].op.inputs[0]]
    # A later `.contiguous()` may copy nothing once the strides are the source's.
    later = [step for step in span.chain.steps[span.last + 1 :] if step.op.operator in LAYOUT_COPIES]
    involved = {source.storage, *(facts.values[step.value].storage for step in (*span.steps, *later))}
    begun = facts.ops.index(span.steps[0].op)
    if any(facts.values[name].storage in involved for op in facts.ops[begun:] for name in op.mutates):
        return False
    held = source.user_visible or any(v.kind is not None for v in facts.values_by_storage[source.storage])
    ends = (facts.values[step.value] for step in span.chain.steps[back_at : span.last + 1])
    return not any(e.user_visible and (held or not have_same_strides(e.shape, source.strides, e.strides)) for e in ends)


def _is_storing(facts: GraphFacts, step: Step) -> bool:
    return facts.values[step.value].storage != facts.values[step.op.inputs[0]].storage


def compose_order(facts: GraphFacts, span: Span) -> tuple[int, ...] | None:
    """Return the permutation that a span amounts to; None if its views also join, split or add dimensions."""
    value = span.steps[0].op.inputs[0]
    shape = facts.values[value].shape
    strides = make_contiguous_strides(shape)
    for step in span.steps:
        moved = replay_operator(step.op, facts, {value: strides})
        if moved is None:
            return None
        value, strides = step.value, moved[step.op.outputs.index(step.value)]
    before = make_contiguous_strides(shape)
    if len(strides) != len(before) or len(set(before)) != len(before) or sorted(strides) != sorted(before):
        return None
    return tuple(before.index(stride) for stride in strides)


def _drop_unit_sizes(facts: GraphFacts, value: str) -> list[int]:
    """Return the sizes that are not 1."""
    return [size for size in facts.values[value].shape if size != 1]


def _replay_states(facts: GraphFacts, chain: Chain) -> Iterator[tuple[int, int, tuple[int, ...], Strides]]:
    """Yield (step, segment, shape, strides) before the chain (step -1) and after every step, as if the base were
    contiguous and no step copied.

    Equal strides within a segment mean the same order of the same dimensions. A view that needs the copy before it
    begins a new segment.
    """
    shape = facts.values[chain.base].shape
    strides, segment, value = make_contiguous_strides(shape), 0, chain.base
    yield -1, segment, shape, strides
    for index, step in enumerate(chain.steps):
        shape = facts.values[step.value].shape
        if is_view(step.op):
            moved = replay_operator(step.op, facts, {value: strides})
            if moved is None:
                strides, segment = make_contiguous_strides(shape), segment + 1
            else:
                strides = moved[step.op.outputs.index(step.value)]
        value = step.value
        yield index, segment, shape, strides


def _include_copies(chain: Chain, last: int) -> int:
    while last + 1 < len(chain.steps) and chain.steps[last + 1].op.operator in LAYOUT_COPIES:
        last += 1
    return last
