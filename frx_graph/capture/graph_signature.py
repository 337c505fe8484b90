"""A name for a graph that is the same in every process: what it computes, on what."""

from __future__ import annotations

import hashlib
from typing import Any

from torch import Tensor, fx


def graph_signature(graph: fx.Graph) -> str:
    """Sixteen hexadecimal digits that change with any operator, any argument, and the shapes, strides, types and
    devices of all values. Names of values are part of it, since they are what a rewrite is bound to."""
    lines = (
        f"{node.op} {node.name} {node.target} {node.args} {node.kwargs} {_value(node.meta.get('val'))}"
        for node in graph.nodes
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _value(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_value, value))})"
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {tuple(value.stride())} {value.dtype} {value.device}"
    return type(value).__name__
