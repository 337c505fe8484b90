"""What the tensors of a batch look like: names, shapes, strides and dtypes, read in the program's own time.

A batch may be a tensor, or any nesting of mappings (also Hugging Face's `BatchEncoding`), lists, tuples, named tuples
and dataclasses; other things in it are passed over. It is never held, written to or iterated where that could use it
up, and only so much of it is looked at: `MOST_TENSORS`, `MOST_THINGS`, `DEEPEST`. Reading a tensor takes 0.4
microseconds, so two are less than one.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

MOST_TENSORS = 64
MOST_THINGS = 256
DEEPEST = 8
MOST_LAYOUTS = 256
"""How many different layouts of batches are told apart; a loader that pads to the longest text has a few dozen."""
_LONGEST_NAME = 200
_LONG = 16
_INDICES = tuple(map(str, range(MOST_THINGS)))


class TensorLayout(NamedTuple):
    """One tensor. `dtype` is torch's own object, which is made text where it is written. Strides are in elements; None:
    the tensor has none, as sparse ones."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: object


Layout: TypeAlias = tuple[TensorLayout, ...]


class _Kind(enum.Enum):
    TENSOR = enum.auto()
    MAPPING = enum.auto()
    SEQUENCE = enum.auto()
    NAMED = enum.auto()
    DATACLASS = enum.auto()
    OTHER = enum.auto()


class BatchLayouts:
    """Numbers what batches have looked like, in order of appearance."""

    def __init__(self) -> None:
        self._numbers: dict[Layout, int] = {}
        self._overflowed = False

    def known(self, layout: Layout) -> int | None:
        """The number of a layout that was there before; None for a new one, and those beyond `MOST_LAYOUTS`."""
        return self._numbers.get(layout)

    def number(self, layout: Layout) -> tuple[int | None, bool]:
        """The layout's number, and whether it is new. None for those beyond `MOST_LAYOUTS`, the first of which is
        new."""
        number = self._numbers.get(layout)
        if number is not None:
            return number, False
        if len(self._numbers) == MOST_LAYOUTS:
            first, self._overflowed = not self._overflowed, True
            return None, first
        number = self._numbers[layout] = len(self._numbers)
        return number, True


def layout_of(batch: object) -> Layout:
    """The tensors of the batch, in their order in it. A batch that is one tensor has the name `batch`."""
    found: list[TensorLayout] = []
    _gather(batch, "", 0, MOST_THINGS, found)
    return tuple(found)


def describe(name: str, tensor: Any) -> TensorLayout | None:
    """None for a tensor that has no shape to read, such as a nested one."""
    try:
        shape = tensor.shape
    except Exception:  # noqa: BLE001 - tensors of a stranger's kind raise what they like
        return None
    try:
        strides = tensor.stride()
    except Exception:  # noqa: BLE001 - sparse tensors have no strides
        strides = None
    return TensorLayout(name, shape, strides, tensor.dtype)


def _gather(thing: Any, name: str, depth: int, left: int, found: list[TensorLayout]) -> int:
    """Adds the tensors in `thing` to `found`; how many more things may be looked at."""
    kind = _kind(type(thing))
    if kind is _Kind.TENSOR:
        layout = describe(name or "batch", thing)
        if layout is not None:
            found.append(layout)
        return left - 1
    if kind is _Kind.OTHER or depth >= DEEPEST or (kind is _Kind.SEQUENCE and _is_plain(thing)):
        return left - 1
    prefix = f"{name}." if name else ""
    for key, value in _members(thing, kind):
        left = _gather(value, prefix + key if prefix else key, depth + 1, left, found)
        if left <= 0 or len(found) >= MOST_TENSORS:
            break
    return left - 1


def _is_plain(things: Any) -> bool:
    """A long list of texts or numbers, which is not walked through: looking at each would take longer than all else."""
    return len(things) > _LONG and _kind(type(things[0])) is _Kind.OTHER and _kind(type(things[-1])) is _Kind.OTHER


def _members(thing: Any, kind: _Kind) -> Iterable[tuple[str, Any]]:
    if kind is _Kind.SEQUENCE:
        return zip(_INDICES, thing, strict=False)
    if kind is _Kind.MAPPING:
        return ((_key(key), value) for key, value in thing.items())
    if kind is _Kind.NAMED:
        return zip(type(thing)._fields, thing, strict=False)
    return ((field.name, getattr(thing, field.name, None)) for field in dataclasses.fields(thing))


def _key(key: object) -> str:
    return key[:_LONGEST_NAME] if isinstance(key, str) else str(key)[:_LONGEST_NAME]


@lru_cache(maxsize=1024)
def _kind(of: type) -> _Kind:
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(of, torch.Tensor):
        return _Kind.TENSOR
    if issubclass(of, Mapping):
        return _Kind.MAPPING
    if issubclass(of, tuple):
        return _Kind.NAMED if hasattr(of, "_fields") else _Kind.SEQUENCE
    if issubclass(of, list):
        return _Kind.SEQUENCE
    return _Kind.DATACLASS if dataclasses.is_dataclass(of) else _Kind.OTHER
