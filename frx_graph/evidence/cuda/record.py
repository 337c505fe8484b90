"""Records that are made by the hundred thousand: frozen for the type checker, which reads every file, and not when they
run. A frozen dataclass of 12 fields takes five times as long to make (2.4 µs and 0.47 µs, Python 3.11)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True)
def record(cls: type[_T]) -> type[_T]:
    """A dataclass with slots, compared and hashed by its values, none of which ever changes."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
