"""From the name of an operator to the operator, and from the names of its arguments to what a call gives for them."""

from __future__ import annotations

import functools

import torch
from torch._ops import OpOverload

from frx_graph.facts.graph_facts import Argument, OpFacts


@functools.cache
def find_overload(target: str) -> OpOverload | None:
    """The operator that `OpFacts.target` names, `aten.sum.dim_IntList`; None for a higher-order operator and for one
    that is not registered."""
    namespace, _, rest = target.partition(".")
    packet, _, name = rest.rpartition(".")
    found = getattr(getattr(getattr(torch.ops, namespace, None), packet, None), name, None)
    return found if isinstance(found, OpOverload) else None


def argument_of(op: OpFacts, name: str) -> Argument:
    """What `op` is called with for the argument that torch's schema calls `name`: given, or the schema's default. None
    where the operator has no such argument."""
    overload = find_overload(op.target)
    if name in op.kwargs or overload is None:
        return op.kwargs.get(name)
    for position, argument in enumerate(overload._schema.arguments):
        if argument.name == name:
            if position < len(op.args) and not argument.kwarg_only:
                return op.args[position]
            default = argument.default_value
            return tuple(default) if isinstance(default, list) else default
    return None
