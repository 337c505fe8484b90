"""Operators that mean something else, or may fail, on other strides than those that they were traced with."""

from __future__ import annotations

import torch
from torch import fx
from torch._ops import OpOverload

_TOLD_STRIDES = frozenset(
    {
        "aten.as_strided",
        "aten.as_strided_",
        "aten.as_strided_scatter",
        "aten.as_strided_copy",
        "aten.resize",
        "aten.resize_",
        "aten.set_",
        "aten.view_as_real",
        "aten.view_as_complex",
    }
)


def takes_no_other_strides(node: fx.Node) -> bool:
    """True for operators that are told strides or storage, that are not torch's own, or that draw random numbers in
    the order of memory."""
    target = node.target
    if not isinstance(target, OpOverload):
        return getattr(target, "__module__", "") != "_operator"
    if target.namespace not in ("aten", "prims") or str(target.overloadpacket) in _TOLD_STRIDES:
        return True
    if str(target) == "aten.view.dtype" or torch.Tag.nondeterministic_seeded in target.tags:
        return True
    return target._schema.is_mutable and target is not torch.ops.aten.copy_.default
