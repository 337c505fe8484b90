"""Name graphs by content: the same name in every process for the same operators on the same values."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from typing import Any

import torch
from torch import Tensor, fx, nn

from frx_graph.support.torch_internals import FakeTensor, HigherOrderOperator, OpOverload, OpOverloadPacket, pytree

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
PLAIN_TENSORS = (Tensor, nn.Parameter, nn.Buffer, FakeTensor)
"""Tensor types whose operators are torch's own; other subclasses may do anything."""
_DEVICE = re.compile(r"(cuda|xpu|mtia|hpu):\d+")


def hash_graph(graph: fx.Graph) -> str:
    """Return sixteen hexadecimal digits that change with any operator, argument, value name, shape, stride, dtype or
    device.

    Devices of a kind are numbered as they appear, since each rank of a distributed program has another number. Dynamo's
    graphs are hashed with the graphs that they call: bodies of checkpoints, branches of `cond`.
    """
    numbers = _DeviceRenumbering()

    def describe(node: fx.Node) -> str:
        args, kwargs = fx.node.map_aggregate((node.args, node.kwargs), numbers.renumber)
        given = f"{_format_target(node.target)} {_ADDRESS.sub('', f'{args} {kwargs}')}"
        value = _format_value(node.meta.get("val", node.meta.get("example_value")), numbers)
        return f"{node.op} {node.name} {given} {value}{_hash_called_graph(node)}"

    return hashlib.sha256("\n".join(map(describe, graph.nodes)).encode()).hexdigest()[:16]


def hash_compilation(dynamo: fx.Graph, inner: str, inner_mode: str | None) -> str:
    """Name a Dynamo graph together with its inner compiler and mode, and with whether gradients are enabled."""
    how = f"{hash_graph(dynamo)} {inner} {inner_mode} {torch.is_grad_enabled()}"
    return hashlib.sha256(how.encode()).hexdigest()[:16]


class _DeviceRenumbering:
    """Number devices of a kind from 0, in order of appearance."""

    def __init__(self) -> None:
        self._met: dict[torch.device, torch.device] = {}
        self._counts: Counter[str] = Counter()

    def renumber(self, value: Any) -> Any:
        """Return the device, or its name, with the new number; any other value unchanged."""
        if isinstance(value, str) and _DEVICE.fullmatch(value):
            return str(self.renumber(torch.device(value)))
        if not isinstance(value, torch.device) or value.index is None:
            return value
        if value not in self._met:
            self._met[value] = torch.device(value.type, self._counts[value.type])
            self._counts[value.type] += 1
        return self._met[value]


def _hash_called_graph(node: fx.Node) -> str:
    """Return the signature of a graph that the node refers to, or an empty text."""
    if node.op != "get_attr" or node.graph.owning_module is None:
        return ""
    found = find_attribute(node.graph.owning_module, node)
    return f" {hash_graph(found.graph)}" if isinstance(found, fx.GraphModule) else ""


def find_attribute(module: fx.GraphModule, node: fx.Node) -> object:
    """Return the attribute of `module` that a `get_attr` node names; None if it has none."""
    found: object = module
    for name in str(node.target).split("."):
        found = getattr(found, name, None)
    return found


def _format_target(target: Any) -> str:
    """Return the name of an operator, or of a function without its address."""
    if isinstance(target, (str, OpOverload, OpOverloadPacket)) or not hasattr(target, "__qualname__"):
        return str(target)
    return f"{target.__module__}.{target.__qualname__}"


def _format_value(value: Any, numbers: _DeviceRenumbering) -> str:
    if isinstance(value, (tuple, list)):
        return f"({', '.join(_format_value(each, numbers) for each in value)})"
    if isinstance(value, Tensor):
        device = numbers.renumber(value.device)
        kind = "" if type(value) in PLAIN_TENSORS else type(value).__name__
        return f"{tuple(value.shape)} {tuple(value.stride())} {value.dtype} {device} {value.requires_grad}{kind}"
    return type(value).__name__


_TORCHS_OWN = frozenset({"aten", "prims"})
_MODULES = frozenset({"torch", "_operator", "operator", "builtins", "math"})


def is_repeatable(dynamo: fx.GraphModule) -> bool:
    """Return True if every call is to torch itself, on plain tensors, without communication.

    The effects of other code are unknown. A graph that holds tensors, such as an optimizer's step, may write to them,
    which the inputs do not show.
    """
    graphs = (module.graph for module in dynamo.modules() if isinstance(module, fx.GraphModule))
    nodes = [node for graph in graphs for node in graph.nodes]
    values = pytree.tree_leaves([node.meta.get("example_value") for node in nodes])
    plain = all(type(value) in PLAIN_TENSORS for value in values if isinstance(value, Tensor))
    owns = next(dynamo.parameters(), None) is not None or next(dynamo.buffers(), None) is not None
    return plain and not owns and all(is_torch_function(node.target) for node in nodes if node.op == "call_function")


def is_torch_function(function: Any) -> bool:
    """Return True for functions of torch or Python that are not custom kernels."""
    if isinstance(function, (OpOverload, OpOverloadPacket)):
        return str(function).partition(".")[0] in _TORCHS_OWN
    if isinstance(function, HigherOrderOperator):
        return "triton" not in function.name()
    module = getattr(function, "__module__", None) or type(function).__module__
    return module.partition(".")[0] in _MODULES
