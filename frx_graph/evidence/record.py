"""Records for objects that are created by the hundred thousand. They are frozen for the type checker, which reads every
file, but not at run time. A frozen dataclass of 12 fields takes five times as long to create (2.4 µs and 0.47 µs,
Python 3.11)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True)
def record(cls: type[_T]) -> type[_T]:
    """Make a dataclass with slots, compared and hashed by its values, which must never change."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
