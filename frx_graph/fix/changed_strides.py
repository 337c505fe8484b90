"""Follow other strides of a value through a graph: to views that they do not allow, and to the caller."""

from __future__ import annotations

from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.facts.operator_families import LAYOUT_COPIES
from frx_graph.passes.copies.stride_replay import Strides, have_same_strides, replay_operator
from frx_graph.passes.copies.view_chain import is_view


def explain_obstacle(facts: GraphFacts, value: str, strides: Strides) -> str:
    """Return why `value` must not have these strides; empty if nothing behind it minds. The strides of a product, or of
    anything else that computes, do not depend on those of the operands."""
    if facts.values[value].user_visible:
        return "the caller sees the strides of the result, which would be others"
    pending = {value: strides}
    while pending:
        name, now = pending.popitem()
        for user in facts.get_users(name):
            if not (is_view(user) or user.pointwise or user.operator in LAYOUT_COPIES):
                continue
            results = replay_operator(user, facts, {name: now})
            if results is None:
                return f"the view of the result on line {user.site.line} would not take its strides"
            for output, after in zip(user.outputs, results, strict=True):
                known = facts.values[output]
                if have_same_strides(known.shape, known.strides, after):
                    continue
                if known.user_visible:
                    return "the caller sees the strides of the result, which would be others"
                pending[output] = after
    return ""
