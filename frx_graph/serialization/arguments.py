"""Write arguments of a graph's calls, and values of settings, as JSON and read them back.

JSON values are written as they are. Everything else is an object whose only key is its kind: `{"node": "relu"}`,
`{"tuple": [1, 1]}`, `{"dtype": "float32"}`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from frx_graph.errors import SerializationError
from frx_graph.serialization.import_paths import find_import_path, resolve_import_path

_NAMED = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}
"""Torch's constants: each prints as its own path in `torch`."""
_NESTED: Mapping[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "slice": lambda parts: slice(*parts),
    "complex": lambda parts: complex(*parts),
}
_PLAIN: Mapping[str, Callable[[Any], Any]] = {
    "float": float,
    "size": torch.Size,
    "range": lambda ends: range(*ends),
    "ellipsis": lambda _: ...,
    "device": torch.device,
    "object": resolve_import_path,
}


def encode_value(value: Any) -> Any:
    """Return `value` as JSON. Raises `SerializationError`, which names its type, if it cannot be written so."""
    kind = type(value)
    if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
        return value
    if kind is float:
        return {"float": str(value)}
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if kind is tuple or kind is torch.Size:
        return {"tuple" if kind is tuple else "size": [encode_value(part) for part in value]}
    # Nodes keep their lists and dictionaries as immutable ones, which are subclasses.
    if kind is list or kind is fx.immutable_collections.immutable_list:
        return [encode_value(part) for part in value]
    if kind is dict or kind is fx.immutable_collections.immutable_dict:
        return {"dict": [[encode_value(key), encode_value(part)] for key, part in value.items()]}
    if kind is slice:
        return {"slice": [encode_value(part) for part in (value.start, value.stop, value.step)]}
    if kind is range:
        return {"range": [value.start, value.stop, value.step]}
    if kind is complex:
        return {"complex": [encode_value(value.real), encode_value(value.imag)]}
    if value is Ellipsis:
        return {"ellipsis": None}
    if kind is torch.device:
        return {"device": str(value)}
    for tag, constant in _NAMED.items():
        if kind is constant:
            return {tag: str(value).removeprefix("torch.")}
    if callable(value) and not isinstance(value, Tensor):
        return {"object": find_import_path(value)}
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise SerializationError(f"the size {value} is not fixed, and graphs with dynamic shapes cannot be serialized")
    raise SerializationError(f"a {kind.__module__}.{kind.__qualname__} cannot be serialized")


def decode_value(written: Any, nodes: Mapping[str, fx.Node]) -> Any:
    """Return the value that `encode_value` wrote; `nodes` are the graph's. Raises `SerializationError` for others."""
    if isinstance(written, list):
        return [decode_value(part, nodes) for part in written]
    if not isinstance(written, dict):
        return written
    try:
        ((tag, content),) = written.items()
        if tag == "node":
            return nodes[content]
        if tag == "dict":
            return {decode_value(key, nodes): decode_value(part, nodes) for key, part in content}
        if tag in _NESTED:
            return _NESTED[tag]([decode_value(part, nodes) for part in content])
        if tag in _PLAIN:
            return _PLAIN[tag](content)
        found = getattr(torch, content)
        if not isinstance(found, _NAMED[tag]):
            raise TypeError(tag)
        return found
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise SerializationError(f"{written!r} is not an argument of a graph") from error
