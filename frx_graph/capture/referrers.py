"""Whether a program has kept a tensor that it was given, told by what refers to it."""

from __future__ import annotations

import gc
import types
from typing import Any

from torch import Tensor


def referrers(tensor: Tensor) -> list[tuple[Any, int]]:
    """What refers to `tensor`, with how often it does. Takes some ten milliseconds; frames do not count."""
    holders = [holder for holder in gc.get_referrers(tensor) if not isinstance(holder, types.FrameType)]
    # By numbers: a comprehension that names the tensor would itself refer to it.
    identity = id(tensor)
    return [(holder, list(map(id, gc.get_referents(holder))).count(identity)) for holder in holders]


def is_kept(tensor: Tensor, before: list[tuple[Any, int]]) -> bool:
    """True if something refers to `tensor` now, or more often, that did not before."""
    known = {id(holder): times for holder, times in before}
    return any(times > known.get(id(holder), 0) for holder, times in referrers(tensor))
