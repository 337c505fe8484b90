"""From the name of an operator to the operator, and from the names of its arguments to what a call gives for them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from frx_graph.facts.graph_facts import Argument, OpFacts
from frx_graph.support.torch_internals import OpOverload


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
    return op.kwargs.get(name) if overload is None else _given(overload, op.args, op.kwargs, name)


def draws_random_numbers(overload: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """True for a call of an operator that draws; attention carries torch's tag for the sake of its dropout."""
    tagged = torch.Tag.nondeterministic_seeded in overload.tags
    return tagged and bool(_given(overload, args, kwargs, "dropout_p") != 0.0)


def _given(overload: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    if name in kwargs:
        return kwargs[name]
    for position, argument in enumerate(overload._schema.arguments):
        if argument.name == name:
            if position < len(args) and not argument.kwarg_only:
                return args[position]
            default = argument.default_value
            return tuple(default) if isinstance(default, list) else default
    return None
