"""Write results of pointwise operators into an operand that is not read any more.

Why: tracing removes a program's in-place operators. In eager each of them then allocates a result and moves it through
the caches beside the operand. Inductor already reuses memory.
How: the in-place form replaces the operator.
Assumes: the graph is functional but for the writes into inputs at its end.
Safe: an operator that always allocates makes the operand's memory in this call. That memory is neither returned nor
saved, and not read afterwards. No collective reads it, since one may go on reading after it has returned. It has the
shape, dtype and strides of the result, whose strides are certain. No view of such memory is returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq

from frx_graph.facts.graph_facts import OpFacts, ValueFacts
from frx_graph.facts.operator_families import CONVOLUTIONS, is_collective
from frx_graph.facts.operator_overload import find_overload
from frx_graph.passes.rewrites.meta_strides.fake_values import have_equal_strides
from frx_graph.passes.rewrites.rewrite import Rewrite, RewriteSubject, have_same_layout
from frx_graph.records import Candidate, Refusal
from frx_graph.support.torch_internals import OpOverload

NAME = "reuse_memory"

_ALLOCATE = CONVOLUTIONS | {
    "aten._native_batch_norm_legit", "aten._native_batch_norm_legit_no_training", "aten.addmm", "aten.avg_pool2d",
    "aten.bmm", "aten.cat", "aten.max_pool2d_with_indices", "aten.mean", "aten.mm", "aten.native_batch_norm",
    "aten.native_group_norm", "aten.native_layer_norm", "aten.sum", "frx_graph.product",
    "frx_graph.unfolded_convolution", "mkldnn._convolution_pointwise", "mkldnn._convolution_transpose_pointwise",
    "mkldnn._linear_pointwise",
}  # fmt: skip
"""Operators, besides the pointwise ones, that always allocate their results."""


def propose(subject: RewriteSubject) -> Iterator[Candidate | Refusal]:
    """Propose one candidate for all operators whose first operand's memory is free."""
    if subject.generates_loops:
        return
    facts = subject.facts
    position = {op.node: place for place, op in enumerate(facts.ops)}
    found: list[str] = []
    in_views: set[str] = set()
    for op in facts.ops:
        if not _can_write(op, subject, position):
            continue
        operand, result = op.inputs[0], op.outputs[0]
        maker = facts.get_producer(operand)
        if operand in in_views or (maker is not None and maker.view):
            # It would be returned as a view of memory that the program does not know. The program could see that, and
            # guards check the sizes of a view's base.
            if any(value.user_visible for value in facts.values_by_storage[facts.values[result].storage]):
                continue
            in_views.add(result)
        found.append(op.node)
    if found:
        yield Candidate(NAME, facts.graph_id, tuple(found))


def apply(_subject: RewriteSubject, module: fx.GraphModule, candidate: Candidate) -> tuple[str, ...]:
    """Put the in-place forms in the operators' places; nothing is inserted."""
    chosen = set(candidate.nodes)
    for node in module.graph.nodes:
        if node.name not in chosen:
            continue
        operand = node.args[0]
        in_place = _find_in_place(str(node.target))
        assert isinstance(operand, fx.Node) and in_place is not None
        one, other = operand.meta["val"], node.meta["val"]
        same_shape = statically_known_true(sym_eq(tuple(one.shape), tuple(other.shape)))
        if statically_known_true(one.numel() > 0) and same_shape and have_equal_strides(operand, node):
            node.target = in_place
            # From now on both share memory, in the fakes, too.
            node.meta["val"] = operand.meta["val"]
    return ()


REWRITE = Rewrite(NAME, propose, apply)


def _can_write(op: OpFacts, subject: RewriteSubject, position: Mapping[str, int]) -> bool:
    facts = subject.facts
    if not op.pointwise or len(op.outputs) != 1 or op.view or op.mutates or _find_in_place(op.target) is None:
        return False
    operand = facts.get_operand(op, 0)
    # A value computed from constants alone is computed once, and read in every call.
    if operand is None or operand.name in subject.constants or not operand.dense:
        return False
    result = facts.values[op.outputs[0]]
    if not have_same_layout(operand, result) or result.name in subject.doubtful or _is_line(operand):
        return False
    sharing = facts.values_by_storage[operand.storage]
    # Read through a view, an operand would change while it is read.
    others = {value.name for value in sharing} - {operand.name}
    return (
        # Without elements there is no memory to give, and the strides of fakes are wrong.
        operand.numel > 0
        and all(value.producer is not None and not value.user_visible for value in sharing)
        # A result that is returned has no more memory than its elements need.
        and all(value.numel <= operand.numel for value in sharing)
        and not any(_is_lazy_view(facts.get_producer(value.name)) for value in sharing)
        and not others & set(op.inputs)
        and _is_allocation(facts.get_producer(sharing[0].name))
        and all(position[user] <= position[op.node] for value in sharing for user in value.users)
        and not any(is_collective(user.operator) for value in sharing for user in facts.get_users(value.name))
    )


def _is_line(value: ValueFacts) -> bool:
    """Return True for rows and columns: forty fakes get their strides wrong unless the operand is new (2.15)."""
    return len(value.shape) <= 2 and 1 in value.shape


def _is_lazy_view(op: OpFacts | None) -> bool:
    """Return True for conjugated and negated views: a result written there keeps the mark, which a new tensor lacks."""
    return op is not None and op.operator in ("aten._conj", "aten._neg_view")


def _is_allocation(op: OpFacts | None) -> bool:
    return op is not None and not op.view and not op.mutates and (op.pointwise or op.operator in _ALLOCATE)


def _find_in_place(target: str) -> OpOverload | None:
    """Return the overload of an ATen operator that writes its result into its first operand."""
    namespace, name, *overload = target.split(".")
    if namespace != "aten" or len(overload) != 1:
        return None
    return find_overload(f"aten.{name}_.{overload[0]}") if hasattr(torch.ops.aten, f"{name}_") else None
