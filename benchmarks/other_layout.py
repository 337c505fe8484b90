"""Eager whose convolutions and normalisations run on channels-last images, with results where they would lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_IMAGES = {4: torch.channels_last, 5: torch.channels_last_3d}
_OPERATORS = frozenset(
    {
        "aten.convolution",
        "aten.convolution_backward",
        "aten.native_batch_norm",
        "aten.native_batch_norm_backward",
    }
)


class OtherLayout(TorchDispatchMode):
    """What torch's own kernels round in the other layout. Batch normalisation on the CPU, say, adds in double precision
    on plain images and in single precision on channels-last ones (torch 2.15,
    `aten/src/ATen/native/cpu/batch_norm_kernel.cpp`); a gradient that is all that is left of large numbers shows it."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if str(func.overloadpacket) not in _OPERATORS:
            return func(*args, **(kwargs or {}))
        there = func(*pytree.tree_map_only(Tensor, _channels_last, args), **(kwargs or {}))
        return pytree.tree_map_only(Tensor, Tensor.contiguous, there)


def _channels_last(tensor: Tensor) -> Tensor:
    order = _IMAGES.get(tensor.ndim)
    return tensor if order is None else tensor.contiguous(memory_format=order)
