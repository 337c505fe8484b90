"""Make repeated copies of one value once.

Why: each layer that needs a mask, a position table or a skip connection in another order makes its own copy.
How: the first of several copies with the same strides stays, and all readers read it.
Assumes: the graph is functional but for the writes into inputs at its end.
Safe: a copy that is returned stays, since two outputs must not share memory that they did not share before.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from frx_graph.facts.operator_families import LAYOUT_COPIES
from frx_graph.passes.rewrites.meta_strides.fake_values import have_equal_strides
from frx_graph.passes.rewrites.rewrite import Rewrite, RewriteSubject
from frx_graph.records import Candidate, Refusal

NAME = "hoist_copy"


def propose(subject: RewriteSubject) -> Iterator[Candidate | Refusal]:
    """Propose one candidate for all repeated copies; its choices name the copy that replaces each."""
    first: dict[object, str] = {}
    repeated: dict[str, str] = {}
    for op in subject.facts.ops:
        if op.operator not in LAYOUT_COPIES:
            continue
        key = op.target, op.args, tuple(sorted(op.kwargs.items(), key=lambda item: item[0]))
        kept = first.setdefault(key, op.node)
        if kept == op.node:
            continue
        if any(subject.facts.values[value].user_visible for value in (*op.outputs, kept)):
            yield Refusal(NAME, "a returned copy must not share memory with another", (op.node,))
        else:
            repeated[op.node] = kept
    if repeated:
        yield Candidate(NAME, subject.facts.graph_id, tuple(repeated), tuple(repeated.values()))


def apply(_subject: RewriteSubject, module: fx.GraphModule, candidate: Candidate) -> tuple[str, ...]:
    """Let the readers of each repeated copy read the first one; nothing is inserted."""
    nodes = {node.name: node for node in module.graph.nodes}
    for name, kept in zip(candidate.nodes, candidate.choices, strict=True):
        copy, first = nodes[name], nodes[kept]
        if have_equal_strides(copy, first):
            copy.replace_all_uses_with(first)
            module.graph.erase_node(copy)
    return ()


REWRITE = Rewrite(NAME, propose, apply)
