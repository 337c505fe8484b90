"""Where torch's own kernels compute something else for the same numbers on other strides.

A program that runs into one of them has no right answer in eager that a rewritten one could be compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_DOUBTED = frozenset({"aten.native_batch_norm_backward", "aten.convolution_backward"})
"""The first reads a gradient by the wrong strides where it is channels-last but for the stride of a batch of one, as
gradients of convolutions are, beside a plain input: so instance normalisation of one image. The other gives a grouped
convolution in float64 another gradient for a channels-last weight than for a plain one, where the image is one column
wide and permuted (torch 2.15, CPU)."""
_TOLERANCE = 1e-6
"""Absolute and relative, in fp64, where rounding makes 1e-12."""
_TOLERANCE_ELSEWHERE = 1e-2


class TorchFaults(TorchDispatchMode):
    """Gives doubtful operators the results that they have on plain strides. `found` names those that, in fp64, have
    others on the strides that they are given."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if str(func.overloadpacket) not in _DOUBTED:
            return func(*args, **(kwargs or {}))
        plain_args, plain_kwargs = pytree.tree_map_only(Tensor, Tensor.contiguous, (args, dict(kwargs or {})))
        plain = func(*plain_args, **plain_kwargs)
        given = func(*args, **(kwargs or {}))
        exact = args[0].dtype is torch.float64
        if _alike(given, plain, _TOLERANCE if exact else _TOLERANCE_ELSEWHERE):
            # As it is, for what its strides make of operators behind it.
            return given
        if exact:
            self.found.append(str(func.overloadpacket))
        return plain


def _alike(one: Any, other: Any, tolerance: float) -> bool:
    pairs = zip(pytree.tree_leaves(one), pytree.tree_leaves(other), strict=True)
    return all(
        torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True) for a, b in pairs if isinstance(a, Tensor)
    )
