"""Read the names, shapes, strides and dtypes of a batch's tensors, during the program's step.

A batch may be a tensor, or any nesting of mappings (also Hugging Face's `BatchEncoding`), lists, tuples, named tuples
and dataclasses; other objects in it are skipped. The batch is never kept or written to, and it is iterated only if that
cannot exhaust it. `MOST_TENSORS`, `MOST_THINGS` and `DEEPEST` bound the search. Reading a tensor takes 0.4 µs.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, TypeAlias

MOST_TENSORS = 64
MOST_THINGS = 256
MOST_COUNTED = 16_384
DEEPEST = 8
_LONGEST_NAME = 200
_LONG = 16
_MOST_TYPES = 1024
_INDICES = tuple(map(str, range(MOST_THINGS)))


TensorLayout: TypeAlias = tuple[str, tuple[int, ...], tuple[int, ...] | None, object]
"""Name, shape, strides in elements (None for tensors without strides, such as sparse ones), and torch's dtype, which
becomes text when it is written. Plain tuples take a third of the time of named ones to make and compare."""
Layout: TypeAlias = tuple[TensorLayout, ...]

# Not an enum: looking up a member takes as long as reading a tensor's strides.
_TENSOR, _MAPPING, _SEQUENCE, _NAMED, _DATACLASS, _OTHER = range(6)


def read_layout(batch: object) -> Layout:
    """Return the tensors of the batch, in order. A batch that is one tensor has the name `batch`."""
    found: list[TensorLayout] = []
    _gather(batch, "", 0, MOST_THINGS, found)
    return tuple(found)


def count_tensors(batch: object) -> int:
    """Return how many tensors the batch has, beyond `MOST_TENSORS` too, of the first `MOST_COUNTED` things in it."""
    waiting: list[tuple[Any, int]] = [(batch, 0)]
    looked = found = 0
    while waiting and looked < MOST_COUNTED:
        thing, depth = waiting.pop()
        looked += 1
        kind = _KINDS[type(thing)]
        if kind == _TENSOR:
            found += 1
        elif kind != _OTHER and depth < DEEPEST:
            members = thing if kind == _SEQUENCE else (value for _, value in _iterate_members(thing, kind))
            waiting += [(value, depth + 1) for value in islice(members, MOST_COUNTED - looked)]
    return found


def describe(name: str, tensor: Any) -> TensorLayout | None:
    """Return the layout of a tensor; None if it has no shape to read, as a nested one."""
    try:
        strides = tensor.stride()
        if strides and not strides[-1] and "strided" not in str(tensor.layout):
            # Sparse tensors say that they have strides of zero.
            strides = None
        return name, tensor.shape, strides, tensor.dtype
    except Exception:  # noqa: BLE001 - unknown tensor subclasses may raise anything
        try:
            return name, tensor.shape, None, tensor.dtype
        except Exception:  # noqa: BLE001
            return None


def _gather(thing: Any, name: str, depth: int, left: int, found: list[TensorLayout]) -> int:
    """Add the tensors in `thing` to `found`, and return how many more things may be looked at."""
    kind = _KINDS[type(thing)]
    if kind == _TENSOR:
        layout = describe(name or "batch", thing)
        if layout is not None:
            found.append(layout)
        return left - 1
    if kind == _OTHER or depth >= DEEPEST or (kind == _SEQUENCE and len(thing) > _LONG and _is_plain(thing)):
        return left - 1
    # Without `strict`, which takes as long as reading a tensor.
    for key, value in zip(_INDICES, thing) if kind == _SEQUENCE else _iterate_members(thing, kind):  # noqa: B905
        if name:
            key = f"{name}.{key}"[:_LONGEST_NAME]
        value_kind = _KINDS[type(value)]
        if value_kind == _TENSOR:
            # As `describe`, without the call: most tensors have strides, and the last is not zero.
            try:
                strides = value.stride()
                plain = not strides or strides[-1]
                layout = (key, value.shape, strides, value.dtype) if plain else describe(key, value)
            except Exception:  # noqa: BLE001 - as in `describe`
                layout = describe(key, value)
            if layout is not None:
                found.append(layout)
            left -= 1
        elif value_kind == _OTHER:
            left -= 1
        else:
            left = _gather(value, key, depth + 1, left, found)
        if left <= 0 or len(found) >= MOST_TENSORS:
            break
    return left - 1


def _is_plain(things: Any) -> bool:
    """Return True for a long list of texts or numbers, which would take longer to walk through than all else."""
    return _KINDS[type(things[0])] == _OTHER and _KINDS[type(things[-1])] == _OTHER


def _iterate_members(thing: Any, kind: int) -> Iterable[tuple[str, Any]]:
    if kind == _MAPPING:
        return ((key if type(key) is str else str(key), value) for key, value in thing.items())
    if kind == _NAMED:
        return zip(type(thing)._fields, thing, strict=False)
    return ((field.name, getattr(thing, field.name, None)) for field in dataclasses.fields(thing))


class _KindCache(dict[type, int]):
    """Kind by type; a dictionary's own look-up is twice as fast as a function with a cache."""

    def __missing__(self, of: type) -> int:
        torch = sys.modules.get("torch")
        kind = _OTHER
        if torch is not None and issubclass(of, torch.Tensor):
            kind = _TENSOR
        elif issubclass(of, Mapping):
            kind = _MAPPING
        elif issubclass(of, (tuple, list)):
            kind = _NAMED if issubclass(of, tuple) and hasattr(of, "_fields") else _SEQUENCE
        elif dataclasses.is_dataclass(of):
            kind = _DATACLASS
        if len(self) < _MOST_TYPES:
            self[of] = kind
        return kind


_KINDS = _KindCache()
