"""From the name of an operator to the operator."""

from __future__ import annotations

import functools

import torch
from torch._ops import OpOverload


@functools.cache
def find_overload(target: str) -> OpOverload | None:
    """The operator that `OpFacts.target` names, `aten.sum.dim_IntList`; None for a higher-order operator and for one
    that is not registered."""
    namespace, _, rest = target.partition(".")
    packet, _, name = rest.rpartition(".")
    found = getattr(getattr(getattr(torch.ops, namespace, None), packet, None), name, None)
    return found if isinstance(found, OpOverload) else None
