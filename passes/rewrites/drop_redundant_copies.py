"""Drop copies that give a value the strides that it already has.

Why: `contiguous()` on a contiguous tensor costs nothing in eager, but `clone`, `to(memory_format=...)` and a traced
reshape always copy. Once values have the strides that their readers want, explicit copies into those strides are
useless, too.
How: readers of the copy read its source. If the copy has an explicit order, and the source's strides are uncertain
(`unreliable_values.py`), they read it through a copy that is made only if needed.
Assumes: the graph is functional but for the writes into inputs at its end.
Safe: a copy stays if the caller could notice the change. That holds if it is returned beside, or instead of, an input
or another output, or if its source is an input that the graph writes into. It also holds if the copy is returned in an
explicit order and its source's strides are uncertain.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from frx_graph.facts.layout import get_dimension_order, is_dense
from frx_graph.facts.operator_families import TRACED_COPIES
from frx_graph.passes.rewrites.layout.conversion import pin_in_aten, restore_exact_strides
from frx_graph.passes.rewrites.meta_strides.fake_values import (
    find_fake_mode,
    has_fixed_sizes,
    have_equal_strides,
    run_fakes_unguarded,
)
from frx_graph.passes.rewrites.meta_strides.unreliable_values import has_explicit_order
from frx_graph.passes.rewrites.rewrite import Rewrite, RewriteSubject, have_same_layout
from frx_graph.records import Candidate, Refusal
from frx_graph.support.size_hint import get_shape_hint, get_stride_hint

NAME = "drop_redundant_copies"


def propose(subject: RewriteSubject) -> Iterator[Candidate | Refusal]:
    """Propose one candidate for all copies of the graph that change nothing."""
    if subject.generates_loops:
        # Inductor drops them itself, after the passes that come before its own.
        return
    facts = subject.facts
    returned = {value.storage for value in facts.values.values() if value.user_visible}
    read_instead: dict[int, int] = {}
    """Memory of a dropped copy → memory of the source."""
    views: set[str] = set()
    """Results of dropped copies that will be views."""
    dropped: list[str] = []
    for op in facts.ops:
        if op.operator not in TRACED_COPIES:
            continue
        source, result = facts.values[op.inputs[0]], facts.values[op.outputs[0]]
        if not have_same_layout(source, result):
            continue
        storage = read_instead.get(source.storage, source.storage)
        shared = facts.values_by_storage[storage]
        is_returned = result.storage in returned
        maker = facts.get_producer(source.name)
        viewed = source.name in views or (maker is not None and maker.view)
        is_doubtful = source.name in subject.doubtful and has_explicit_order(op)
        is_input = any(value.producer is None for value in shared)
        if is_input and any(value.mutated for value in shared):
            yield Refusal(NAME, "its source is an input that the graph writes into", (op.node,))
        elif result.name in facts.outputs and viewed:
            yield Refusal(
                NAME, "it is returned, and its source is a view, which the caller cannot write to", (op.node,)
            )
        elif result.name in facts.outputs and is_doubtful:
            yield Refusal(NAME, "it is returned, and its source's strides are uncertain", (op.node,))
        elif is_returned and (is_input or storage in returned):
            yield Refusal(NAME, "it is returned, and shares no memory with an input or another output", (op.node,))
        else:
            if is_returned:
                returned.add(storage)
            read_instead[result.storage] = storage
            if viewed or is_doubtful:
                views.add(result.name)
            dropped.append(op.node)
    if dropped:
        yield Candidate(NAME, facts.graph_id, tuple(dropped))


def apply(subject: RewriteSubject, module: fx.GraphModule, candidate: Candidate) -> tuple[str, ...]:
    """Let the copies' readers read their sources; returns no names, since no copy is inserted that is always made."""
    copies = set(candidate.nodes)
    for node in list(module.graph.nodes):
        if node.name not in copies:
            continue
        source = node.args[0]
        if not isinstance(source, fx.Node) or not have_equal_strides(source, node):
            continue
        op = subject.facts.op_by_node[node.name]
        is_doubtful = op.inputs[0] in subject.doubtful and has_explicit_order(op)
        instead = _pin_source(module.graph, source, node) if is_doubtful else source
        if instead is not None:
            node.replace_all_uses_with(instead)
            module.graph.erase_node(node)
    return ()


def _pin_source(graph: fx.Graph, source: fx.Node, copy: fx.Node) -> fx.Node | None:
    """Add a copy of `source` with the strides of `copy`, made only if needed; None if these cannot be expressed."""
    value = copy.meta["val"]
    shape, strides = get_shape_hint(value), get_stride_hint(value)
    if 0 in shape or not is_dense(shape, strides) or (1 in shape and not has_fixed_sizes(value)):
        return None
    with run_fakes_unguarded(find_fake_mode(graph)), graph.inserting_before(copy):
        pin = pin_in_aten(graph, source, get_dimension_order(shape, strides))
        return restore_exact_strides(graph, pin, value) if 1 in shape else pin


REWRITE = Rewrite(NAME, propose, apply)
