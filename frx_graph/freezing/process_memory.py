"""Many small reads of this process's memory at once: the processor then waits for many of them together."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

Addresses: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

_UNSIGNED = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}


def gather(addresses: Sequence[int] | Addresses, unit: int) -> Callable[[], bytes]:
    """Reads `unit` bytes (1, 2, 4 or 8) at each of the addresses, which are multiples of it. Whoever calls the result
    has to know that there is memory there."""
    places = np.asarray(addresses, dtype=np.int64)
    if places.size == 0:
        return bytes
    first = int(places.min())
    offsets = (places - first) // unit
    memory = np.ctypeslib.as_array((_UNSIGNED[unit] * (int(offsets.max()) + 1)).from_address(first))
    return lambda: memory.take(offsets).tobytes()


def word_at(address: int) -> int:
    """The eight bytes there, as a number."""
    return ctypes.c_uint64.from_address(address).value
