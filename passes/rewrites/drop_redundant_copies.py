"""Copies that give a value the strides that it has already.

Why: `contiguous()` on a contiguous tensor costs nothing in eager, but `clone`, `to(memory_format=...)` and what tracing
makes of a reshape copy whether there is anything to change or not; and once values lie as their readers want them, the
copies that were written to make them so are of no use any more.
How: readers of the copy read its source.
Assumes: the graph is functional but for the writes into inputs at its end.
Safe: a copy stays where somebody could tell: where it is returned beside, or instead of, an input or another output,
and where its source is an input that the graph writes into.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq

from frx_graph.facts.graph_facts import GraphFacts, OpFacts
from frx_graph.facts.operator_families import LAYOUT_COPIES
from frx_graph.passes.rewrites.rewrite import Rewrite, RewriteSubject
from frx_graph.records import Candidate, Refusal

NAME = "drop_redundant_copies"

_COPIES = LAYOUT_COPIES - {"aten.contiguous"}
"""Tracing makes clones of `contiguous`: where one stands in a graph, it was put there because strides may turn out
otherwise than predicted."""


def propose(subject: RewriteSubject) -> Iterator[Candidate | Refusal]:
    """One candidate for all copies of the graph that change nothing."""
    if subject.generates_loops:
        # Inductor drops them itself, after the passes that come before its own.
        return
    facts = subject.facts
    returned = {value.storage for value in facts.values.values() if value.user_visible}
    read_instead: dict[int, int] = {}
    """For the memory of a copy that is dropped, that of what it was copied from."""
    views: set[str] = set()
    """Results of dropped copies that will be views."""
    dropped: list[str] = []
    for op in facts.ops:
        if op.operator not in _COPIES or not _changes_nothing(op, facts):
            continue
        source, result = facts.values[op.inputs[0]], facts.values[op.outputs[0]]
        storage = read_instead.get(source.storage, source.storage)
        shared = facts.values_by_storage[storage]
        is_returned = result.storage in returned
        maker = facts.producer(source.name)
        viewed = source.name in views or (maker is not None and maker.view)
        is_input = any(value.producer is None for value in shared)
        if is_input and any(value.mutated for value in shared):
            yield Refusal(NAME, "its source is an input that is written into", (op.node,))
        elif result.name in facts.outputs and viewed:
            yield Refusal(NAME, "it is returned, and its source is a view, which nobody could write into", (op.node,))
        elif is_returned and (is_input or storage in returned):
            yield Refusal(NAME, "it is returned, and shares no memory with an input or another output", (op.node,))
        else:
            if is_returned:
                returned.add(storage)
            read_instead[result.storage] = storage
            if viewed:
                views.add(result.name)
            dropped.append(op.node)
    if dropped:
        yield Candidate(NAME, facts.graph_id, tuple(dropped))


def apply(_subject: RewriteSubject, module: fx.GraphModule, candidate: Candidate) -> tuple[str, ...]:
    """Let the copies' readers read their sources; nothing is inserted."""
    copies = set(candidate.nodes)
    for node in list(module.graph.nodes):
        if node.name not in copies:
            continue
        source = node.args[0]
        if isinstance(source, fx.Node) and _same_strides(source, node):
            node.replace_all_uses_with(source)
            module.graph.erase_node(node)
    return ()


REWRITE = Rewrite(NAME, propose, apply)


def _changes_nothing(op: OpFacts, facts: GraphFacts) -> bool:
    source, result = facts.values[op.inputs[0]], facts.values[op.outputs[0]]
    return (source.shape, source.strides, source.dtype, source.device) == (
        result.shape,
        result.strides,
        result.dtype,
        result.device,
    )


def _same_strides(first: fx.Node, second: fx.Node) -> bool:
    """True if the strides are the same for every size, not only for those of the example."""
    one, other = first.meta["val"], second.meta["val"]
    return (
        isinstance(one, Tensor)
        and isinstance(other, Tensor)
        and one.layout is torch.strided
        and bool(statically_known_true(sym_eq(tuple(one.stride()), tuple(other.stride()))))
    )
