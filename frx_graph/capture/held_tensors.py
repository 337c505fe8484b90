"""Tensors that a Dynamo graph holds itself and is not given: an optimizer's state, or weights that are constants."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, fx


@contextlib.contextmanager
def held_tensors_replaced(dynamo: fx.GraphModule, replaced: Callable[[Tensor], Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """Inside, the graph holds `replaced` of each of them, which are given, and whatever runs it changes none of the
    program's own."""
    held: list[tuple[dict[str, Any], str, Tensor]] = []
    for graph in (module for module in dynamo.modules() if isinstance(module, fx.GraphModule)):
        for target in dict.fromkeys(str(node.target) for node in graph.graph.find_nodes(op="get_attr")):
            path, _, name = target.rpartition(".")
            owner = graph.get_submodule(path)
            tables: tuple[dict[str, Any], ...] = (owner._parameters, owner._buffers, owner.__dict__)
            held.extend((table, name, table[name]) for table in tables if isinstance(table.get(name), Tensor))
    new = {id(value): replaced(value) for _, _, value in held}
    try:
        for table, name, value in held:
            table[name] = new[id(value)]
        yield tuple(new.values())
    finally:
        for table, name, value in held:
            table[name] = value
