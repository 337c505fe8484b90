"""Which strides a custom operator's registration tells the compiler to hand it."""

from __future__ import annotations

import enum

from frx_graph.facts.graph_facts import OpFacts
from frx_graph.facts.operator_overload import find_overload
from frx_graph.support.torch_internals import functorch_config


class LayoutConstraint(enum.StrEnum):
    """torch's layout tags of operators (`torch.Tag`), strictest first."""

    EXACT = "needs_exact_strides"
    CONTIGUOUS = "needs_contiguous_strides"
    FIXED_ORDER = "needs_fixed_stride_order"
    FLEXIBLE = "flexible_layout"


def layout_constraint(op: OpFacts) -> LayoutConstraint | None:
    """The constraint under which Inductor calls a custom operator: its strictest tag, else torch's default for
    operators without one. None for a higher-order operator and for one that is no longer registered."""
    overload = find_overload(op.target)
    if overload is None:
        return None
    tags = {tag.name for tag in overload.tags}
    default = functorch_config.custom_op_default_layout_constraint
    return next((constraint for constraint in LayoutConstraint if constraint.value in tags), LayoutConstraint(default))


def is_default(op: OpFacts) -> bool:
    """True if the operator's registration names no constraint."""
    overload = find_overload(op.target)
    names = {constraint.value for constraint in LayoutConstraint}
    return overload is not None and names.isdisjoint(tag.name for tag in overload.tags)
