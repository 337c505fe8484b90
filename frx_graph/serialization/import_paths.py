"""Name the functions of a graph so that a process that has only imported torch finds the same objects."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from frx_graph.errors import SerializationError
from frx_graph.support.torch_internals import (
    HigherOrderOperator,
    OpOverload,
    OpOverloadPacket,
    get_overload_name,
    get_packet_name,
    get_qualified_name,
)

_PACKAGES = frozenset({"torch", "operator", "_operator", "builtins", "math"})
"""Functions of other packages may be the user's own, or be in the graph only at the request of the user's script."""

_NAMESPACES = frozenset({"aten", "prims", "prim", "profiler", "quantized", "inductor", "inductor_prims"})
"""Operators that `import torch` registers; those of `_c10d_functional` need a process group besides."""

_OPERATORS = "torch.ops."

_CHECKPOINT = "torch.ops.higher_order.tag_activation_checkpoint"
"""The higher-order operator that Dynamo traces from its own graph to the same graph again; `autograd_function_apply` is
one that it does not (seen on torch 2.15)."""


def find_import_path(called: Callable[..., Any]) -> str:
    """Return a dotted path at which `resolve_import_path` finds this very object in every process. Raises
    `SerializationError` if a fresh process could follow none."""
    if is_checkpoint(called):
        return _CHECKPOINT
    if isinstance(called, HigherOrderOperator):
        raise SerializationError(
            f"the higher-order operator {called.name()}, whose body is another graph, cannot be serialized"
        )
    if isinstance(called, (OpOverload, OpOverloadPacket)):
        path = _find_operator_path(called)
    else:
        try:
            # `torch.fx` writes graphs as source with it, and knows where torch's own modules are wrong.
            path = get_qualified_name(called)
        except Exception as error:
            raise SerializationError(f"{called!r} has no name to import it by") from error
        path = path if "." in path else f"builtins.{path}"
        if path.partition(".")[0] not in _PACKAGES:
            raise SerializationError(f"the function {path} is not part of torch, and a fresh process may lack it")
    if resolve_import_path(path) is not called:
        raise SerializationError(f"{path} is not the function that the graph calls")
    return path


def is_checkpoint(called: object) -> bool:
    """Return True for the operator of `torch.utils.checkpoint`, whose first argument is a graph."""
    return called is torch.ops.higher_order.tag_activation_checkpoint


def resolve_import_path(path: str) -> Any:
    """Return the object at a path from `find_import_path`. Raises `SerializationError` if torch has none there."""
    package, _, rest = path.partition(".")
    if package not in _PACKAGES or not rest:
        raise SerializationError(f"{path} is not a function of torch")
    if path.startswith(_OPERATORS) and path != _CHECKPOINT and path.split(".")[2] not in _NAMESPACES:
        raise SerializationError(f"{path} is not an operator of torch")
    found: Any = importlib.import_module(package)
    walked = package
    for name in rest.split("."):
        walked = f"{walked}.{name}"
        try:
            found = getattr(found, name)
        except (AttributeError, RuntimeError) as missing:  # the latter for a missing overload
            try:
                found = importlib.import_module(walked)
            except ImportError:
                raise SerializationError(f"this torch has no {path}") from missing
    return found


def _find_operator_path(operator: OpOverload | OpOverloadPacket) -> str:
    packet = operator.overloadpacket if isinstance(operator, OpOverload) else operator
    namespace, _, name = get_packet_name(packet).partition("::")
    if namespace not in _NAMESPACES:
        raise SerializationError(
            f"the operator {namespace}::{name} is registered by code outside torch, which a fresh process lacks"
        )
    path = f"{_OPERATORS}{namespace}.{name}"
    return f"{path}.{get_overload_name(operator)}" if isinstance(operator, OpOverload) else path
