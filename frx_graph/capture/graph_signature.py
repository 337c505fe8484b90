"""A name for a graph that is the same in every process: what it computes, on what."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload, OpOverloadPacket

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def graph_signature(graph: fx.Graph) -> str:
    """Sixteen hexadecimal digits that change with any operator, any argument, and the shapes, strides, types and
    devices of all values. Names of values are part of it, since they are what a rewrite is bound to. Takes Dynamo's
    graphs, too."""
    lines = (
        f"{node.op} {node.name} {_target(node.target)} {_arguments(node)} {_value(_value_of(node))}"
        for node in graph.nodes
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def compiled_signature(dynamo: fx.Graph, inner: str, inner_mode: str | None) -> str:
    """A name for a graph of Dynamo's together with how it is compiled: for which inner compiler, and whether for
    training."""
    how = f"{graph_signature(dynamo)} {inner} {inner_mode} {torch.is_grad_enabled()}"
    return hashlib.sha256(how.encode()).hexdigest()[:16]


def _value_of(node: fx.Node) -> Any:
    return node.meta["val"] if "val" in node.meta else node.meta.get("example_value")


def _target(target: Any) -> str:
    """An operator by its name, a function without its address in memory."""
    if isinstance(target, (str, OpOverload, OpOverloadPacket)) or not hasattr(target, "__qualname__"):
        return str(target)
    return f"{target.__module__}.{target.__qualname__}"


def _arguments(node: fx.Node) -> str:
    return _ADDRESS.sub("", f"{node.args} {node.kwargs}")


def _value(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_value, value))})"
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {tuple(value.stride())} {value.dtype} {value.device} {value.requires_grad}"
    return type(value).__name__
