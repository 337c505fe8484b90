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

from frx_graph.errors import TravelError
from frx_graph.serialization.import_paths import find_import_path, resolve_import_path

_NAMED = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}
"""Torch's constants: each prints as its own path in `torch`."""


def encode_value(value: Any) -> Any:
    """Return `value` as JSON. Raises `TravelError`, which names its type, if it cannot be written so."""
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
        raise TravelError(f"the size {value} is not fixed, and graphs with dynamic shapes cannot be serialized")
    raise TravelError(f"a {kind.__module__}.{kind.__qualname__} cannot be serialized")


def decode_value(written: Any, nodes: Mapping[str, fx.Node]) -> Any:
    """Return the value that `to_json` wrote; `nodes` are the graph's, by name. Raises `TravelError` for anything
    else."""
    if isinstance(written, list):
        return [decode_value(part, nodes) for part in written]
    if not isinstance(written, dict):
        return written
    try:
        ((tag, content),) = written.items()
        return _decode_tagged(tag, content, nodes, lambda part: decode_value(part, nodes))
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise TravelError(f"{written!r} is not an argument of a graph") from error


def _decode_tagged(tag: str, content: Any, nodes: Mapping[str, fx.Node], read: Callable[[Any], Any]) -> Any:
    match tag:
        case "node":
            return nodes[content]
        case "float":
            return float(content)
        case "tuple":
            return tuple(read(part) for part in content)
        case "size":
            return torch.Size(content)
        case "dict":
            return {read(key): read(part) for key, part in content}
        case "slice":
            return slice(*(read(part) for part in content))
        case "range":
            return range(*content)
        case "complex":
            return complex(*(read(part) for part in content))
        case "ellipsis":
            return ...
        case "device":
            return torch.device(content)
        case "object":
            return resolve_import_path(content)
    found = getattr(torch, content)
    if not isinstance(found, _NAMED[tag]):
        raise TypeError(tag)
    return found
