"""Sample calls of the operators in the table, over which what its rows say is held against torch.

Tensors are contiguous float32 on `device`; whoever runs a call lays out anew those whose layout counts. Sizes differ
between dimensions, so that a swapped dimension shows, and some are 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from frx_graph.facts.operator_overload import find_overload


@dataclass(frozen=True, eq=False)
class OperatorSample:
    """One call of an overload. With `only_strides` its values are not looked at: they are drawn anew each time, left
    unset, depend on what was written before, or are found by where the operand lies."""

    target: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    only_strides: bool = False

    @property
    def operator(self) -> str:
        """The packet: `aten.cat`."""
        return self.target.rpartition(".")[0]

    def run(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The results of the overload on `args`, always as a tuple. Raises what the operator raises."""
        overload = find_overload(self.target)
        if overload is None:
            raise LookupError(f"this torch has no {self.target}")
        results = overload(*args, **self.kwargs)
        return tuple(results) if isinstance(results, (tuple, list)) else (results,)


class SampleTensors:
    """Makes tensors on one device, the same ones every time."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._generator = torch.Generator().manual_seed(0)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal float32."""
        return torch.randn(*shape, generator=self._generator).to(self.device)

    def positive(self, *shape: int) -> Tensor:
        """Between 1 and 2: variances, scales."""
        return (1.0 + torch.rand(*shape, generator=self._generator)).to(self.device)

    def mask(self, *shape: int) -> Tensor:
        """Booleans."""
        return self.normal(*shape) > 0

    def indices(self, high: int, *shape: int) -> Tensor:
        """int64 below `high`."""
        return torch.randint(high, shape, generator=self._generator).to(self.device)


def call(target: str, *args: Any, only_strides: bool = False, **kwargs: Any) -> OperatorSample:
    """A sample; `target` is without `aten.`, and `.default` may be left out."""
    name = target if "." in target else f"{target}.default"
    return OperatorSample(f"aten.{name}", args, kwargs, only_strides)
