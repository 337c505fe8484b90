"""Results of pointwise operators written into an operand that nobody reads any more.

Why: tracing takes away the in-place operators that a program was written with. In eager each of them then allocates a
result of its own, and moves it through the caches beside its operand. Inductor reuses memory by itself.
How: the operator gives way to its in-place form.
Assumes: the graph is functional but for the writes into inputs at its end.
Safe: done where the operand's memory is the graph's own, was made in this call by an operator that always allocates, is
neither returned nor saved, is read by nobody afterwards, no collective either, which may go on reading when it has
returned, and has the shape, dtype and strides of the result, which lies as its fake says. What is returned is no view
of such memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq

from frx_graph.facts.graph_facts import OpFacts, ValueFacts, ValueRef
from frx_graph.facts.operator_families import CONVOLUTIONS, is_collective
from frx_graph.facts.operator_overload import find_overload
from frx_graph.passes.rewrites.rewrite import Rewrite, RewriteSubject
from frx_graph.records import Candidate, Refusal
from frx_graph.support.torch_internals import OpOverload

NAME = "reuse_memory"

_ALLOCATE = CONVOLUTIONS | {
    "aten._native_batch_norm_legit",
    "aten._native_batch_norm_legit_no_training",
    "aten.addmm",
    "aten.avg_pool2d",
    "aten.bmm",
    "aten.cat",
    "aten.max_pool2d_with_indices",
    "aten.mean",
    "aten.mm",
    "aten.native_batch_norm",
    "aten.native_group_norm",
    "aten.native_layer_norm",
    "aten.sum",
    "frx_graph.product",
    "frx_graph.unfolded_convolution",
    "mkldnn._convolution_pointwise",
    "mkldnn._convolution_transpose_pointwise",
    "mkldnn._linear_pointwise",
}
"""Operators, besides the pointwise ones, whose results never are what they were given."""


def propose(subject: RewriteSubject) -> Iterator[Candidate | Refusal]:
    """One candidate for all operators of the graph whose first operand's memory is free."""
    if subject.generates_loops:
        return
    facts = subject.facts
    position = {op.node: place for place, op in enumerate(facts.ops)}
    found: list[str] = []
    in_views: set[str] = set()
    for op in facts.ops:
        if not _may_write(op, subject, position):
            continue
        operand, result = op.inputs[0], op.outputs[0]
        if operand in in_views or _is_view(facts.producer(operand)):
            # It would be returned as a view of memory that the program does not know: it can see that, and is
            # guarded on the sizes of what a view is of.
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
        in_place = _in_place(str(node.target))
        assert isinstance(operand, fx.Node) and in_place is not None
        if _same_for_every_size(operand, node):
            node.target = in_place
            # The two are one from now on, also for whoever asks what shares memory.
            node.meta["val"] = operand.meta["val"]
    return ()


REWRITE = Rewrite(NAME, propose, apply)


def _may_write(op: OpFacts, subject: RewriteSubject, position: Mapping[str, int]) -> bool:
    facts = subject.facts
    if not op.pointwise or len(op.outputs) != 1 or op.view or op.mutates or _in_place(op.target) is None:
        return False
    first = op.args[0] if op.args else None
    operand = facts.values.get(first.name) if isinstance(first, ValueRef) else None
    # What is computed of constants alone is computed once, and read in every call.
    if operand is None or operand.name in subject.constants or not _alike(operand, facts.values[op.outputs[0]]):
        return False
    if op.outputs[0] in subject.doubtful or _is_line(operand):
        return False
    sharing = facts.values_by_storage[operand.storage]
    # Read through a view, an operand would change while it is read.
    others = {value.name for value in sharing} - {operand.name}
    return (
        # Without elements there is no memory to give, and fakes tell strides that operators do not make.
        operand.numel > 0
        and all(value.producer is not None and not value.user_visible for value in sharing)
        # A result that is returned has no more memory than its elements need.
        and all(value.numel <= operand.numel for value in sharing)
        and not any(_reads_bits_otherwise(facts.producer(value.name)) for value in sharing)
        and not others & set(op.inputs)
        and _allocates(facts.producer(sharing[0].name))
        and all(position[user] <= position[op.node] for value in sharing for user in value.users)
        and not any(is_collective(user.operator) for value in sharing for user in facts.users(value.name))
    )


def _alike(operand: ValueFacts, result: ValueFacts) -> bool:
    return operand.dense and (operand.shape, operand.strides, operand.dtype, operand.device) == (
        result.shape,
        result.strides,
        result.dtype,
        result.device,
    )


def _is_line(value: ValueFacts) -> bool:
    """True for rows and columns, of one element or more: of about forty operators fakes tell their strides wrongly
    where those of what they are given are not a new tensor's (`hardtanh`, torch 2.15). Of more dimensions `doubtful`
    knows."""
    return len(value.shape) <= 2 and 1 in value.shape


def _reads_bits_otherwise(op: OpFacts | None) -> bool:
    """True for views in which memory is read as another number: what is written into one keeps its mark, of which a new
    tensor is free, and which `view_as_real` does not take."""
    return op is not None and op.operator in ("aten._conj", "aten._neg_view")


def _is_view(op: OpFacts | None) -> bool:
    return op is not None and op.view


def _allocates(op: OpFacts | None) -> bool:
    return op is not None and not op.view and not op.mutates and (op.pointwise or op.operator in _ALLOCATE)


def _in_place(target: str) -> OpOverload | None:
    """The overload of an ATen operator that writes its result into its first operand."""
    namespace, name, *overload = target.split(".")
    if namespace != "aten" or len(overload) != 1:
        return None
    return find_overload(f"aten.{name}_.{overload[0]}") if hasattr(torch.ops.aten, f"{name}_") else None


def _same_for_every_size(first: fx.Node, second: fx.Node) -> bool:
    one, other = first.meta["val"], second.meta["val"]
    return bool(
        statically_known_true(one.numel() > 0)
        and statically_known_true(sym_eq(tuple(one.shape), tuple(other.shape)))
        and statically_known_true(sym_eq(tuple(one.stride()), tuple(other.stride())))
    )
