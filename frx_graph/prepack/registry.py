"""Weights that `frx_graph.compile` has stored anew: what programs return goes by the strides that they had before,
whichever program of the process has stored them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary


@dataclass(frozen=True, slots=True)
class StoredAnew:
    """The strides of a parameter before and after it was stored anew."""

    before: tuple[int, ...]
    after: tuple[int, ...]


Stored = Mapping[int, StoredAnew]
"""Parameters by their `id`."""

_stored = WeakTensorKeyDictionary()
_lock = threading.RLock()
"""One that is taken again in the same thread: where memory is freed meanwhile, other code runs."""


def stored_anew() -> Stored:
    """Those that are alive and lie as they were stored: somebody may have stored one anew since."""
    with _lock:
        noted = list(_stored.items())
    return {id(parameter): strides for parameter, strides in noted if parameter.stride() == strides.after}


def strides_before(parameter: Tensor) -> tuple[int, ...]:
    """The strides that a parameter has, or had before it was stored anew."""
    with _lock:
        strides = _stored.get(parameter)
    now = parameter.stride()
    return strides.before if strides is not None and strides.after == now else now


def note_stored(parameters: Iterable[tuple[Tensor, tuple[int, ...]]]) -> None:
    """Note parameters as they lie now, each with its strides from before."""
    with _lock:
        for parameter, before in parameters:
            if parameter.stride() == before:
                _stored.pop(parameter, None)
            else:
                _stored[parameter] = StoredAnew(before, parameter.stride())
