"""Measure the effect of rounding on a program: run it with every result moved by a few units in the last place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from frx_graph.support.torch_internals import OpOverload, TorchDispatchMode, get_schema, pytree

_UNITS = 8.0
"""Units in the last place of a sum of products. Five runs with this explain what channels-last does to the gradients of
networks of 6 to 20 convolutions with batch norms and ReLUs (48 draws of 16 networks); with half of it they do not in
some. A first layer that is off by 1 % is found in all of them (torch 2.15, oneDNN)."""
_HALF_UNITS = 1.0
"""Units in half precision, where sums are made in single precision and rounded once."""
_MOVED = {
    torch.float32: _UNITS,
    torch.float64: _UNITS,
    torch.float16: _HALF_UNITS,
    torch.bfloat16: _HALF_UNITS,
}


class RoundingNoise(TorchDispatchMode):
    """Moves each floating-point element that an operator makes, and does not write in place, by up to some units in the
    last place, by separate generators."""

    supports_higher_order_operators = True

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run `func`, and move its results."""
        result = func(*args, **(kwargs or {}))
        if not isinstance(func, OpOverload) or any(made.alias_info is not None for made in get_schema(func).returns):
            return result
        for value in pytree.tree_leaves(result):
            if isinstance(value, Tensor) and value.dtype in _MOVED and value.layout is torch.strided:
                value.mul_(1 + self._draw_factors(value))
        return result

    def _draw_factors(self, value: Tensor) -> Tensor:
        generator = self._generators.get(value.device)
        if generator is None:
            generator = torch.Generator(value.device).manual_seed(self._seed)
            self._generators[value.device] = generator
        units = _MOVED[value.dtype] * torch.finfo(value.dtype).eps
        drawn = torch.rand(value.shape, generator=generator, device=value.device, dtype=torch.float32)
        drawn = drawn.mul_(2 * units).sub_(units)
        # A factor in half precision would almost always be 1.
        return drawn.to(value.dtype) if value.dtype is torch.float64 else drawn
