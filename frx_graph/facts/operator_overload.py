"""Look up operators and their arguments by name."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from frx_graph.facts.graph_facts import Argument, OpFacts
from frx_graph.support.torch_internals import OpOverload, get_schema, pytree


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


def find_aliased_operands(node: fx.Node, *, written: bool) -> Iterator[fx.Node]:
    """Yield the operands that the operator's schema says a result may alias, or, if `written`, that it writes into."""
    if not isinstance(node.target, OpOverload):
        return
    for position, argument in enumerate(get_schema(node.target).arguments):
        if argument.alias_info is not None and (argument.alias_info.is_write or not written):
            given = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            yield from (leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, fx.Node))


def _resolve_argument(overload: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    if name in kwargs:
        return kwargs[name]
    for position, argument in enumerate(get_schema(overload).arguments):
        if argument.name == name:
            if position < len(args) and not argument.kwarg_only:
                return args[position]
            default = argument.default_value
            return tuple(default) if isinstance(default, list) else default
    return None
