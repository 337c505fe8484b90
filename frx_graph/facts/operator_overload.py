"""Look up operators and their arguments by name."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from frx_graph.facts.graph_facts import Argument, OpFacts
from frx_graph.support.torch_internals import OpOverload


@functools.cache
def find_overload(target: str) -> OpOverload | None:
    """Return the operator that `OpFacts.target` names (`aten.sum.dim_IntList`), unless higher-order or unregistered."""
    namespace, _, rest = target.partition(".")
    packet, _, name = rest.rpartition(".")
    found = getattr(getattr(getattr(torch.ops, namespace, None), packet, None), name, None)
    return found if isinstance(found, OpOverload) else None


def get_argument(op: OpFacts, name: str) -> Argument:
    """Return the argument that torch's schema calls `name`, as given or its default; None if there is no such one."""
    overload = find_overload(op.target)
    return op.kwargs.get(name) if overload is None else _resolve_argument(overload, op.args, op.kwargs, name)


def is_random_call(overload: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return True for a call that draws random numbers; attention has torch's tag only for its dropout."""
    tagged = torch.Tag.nondeterministic_seeded in overload.tags
    return tagged and bool(_resolve_argument(overload, args, kwargs, "dropout_p") != 0.0)


def _resolve_argument(overload: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    if name in kwargs:
        return kwargs[name]
    for position, argument in enumerate(overload._schema.arguments):
        if argument.name == name:
            if position < len(args) and not argument.kwarg_only:
                return args[position]
            default = argument.default_value
            return tuple(default) if isinstance(default, list) else default
    return None
