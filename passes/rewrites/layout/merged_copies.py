"""Copies that Inductor takes for nothing, and who shares memory then.

Inductor drops a clone whose strides are those of what it copies, if what is copied is no output itself. It asks that of
each clone by itself: of two clones of one value, both returned, both are dropped, and the caller gets one memory twice
(torch 2.15, `remove_noop_ops`). Copies that were told another order become such clones where a rewrite gives the value
that order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from frx_graph.facts.size_hint import shape_hint, stride_hint
from frx_graph.support.torch_internals import pytree


def memories_under_inductor(graph: fx.Graph) -> list[int | None]:
    """For each output the number of the memory that Inductor returns it in, counted from the first; None for what has
    none."""
    values = {node: node.meta.get("val") for node in graph.nodes}
    outputs = [values[node] for node in pytree.tree_leaves(graph.output_node().args) if isinstance(node, fx.Node)]
    kept = {_memory(value) for value in (*outputs, *(values[node] for node in graph.find_nodes(op="placeholder")))}
    returned = {_memory(value) for value in outputs}
    instead: dict[int | None, int | None] = {}
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default):
        copy, source = values[node], values[node.args[0]]
        if not _alike(copy, source):
            continue
        read = instead.get(_memory(source), _memory(source))
        if _memory(copy) not in returned or read not in kept:
            instead[_memory(copy)] = read
    numbers: dict[int | None, int] = {}
    return [
        numbers.setdefault(instead.get(_memory(value), _memory(value)), len(numbers))
        if isinstance(value, Tensor)
        else None
        for value in outputs
    ]


def _memory(value: Any) -> int | None:
    return int(value.untyped_storage()._cdata) if isinstance(value, Tensor) else None


def _alike(one: Any, other: Any) -> bool:
    return (shape_hint(one), stride_hint(one), one.dtype) == (shape_hint(other), stride_hint(other), other.dtype)
