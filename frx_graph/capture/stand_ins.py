"""Stand-ins for what operators that are not torch's would return, where a graph runs that is not the program's own run.

Nobody knows what such an operator does besides computing: count, draw from another library's generator, talk to other
processes. So it does not run. What stands in has the shape and strides that its fake has, and always the same values:
who compares two runs has to compare what the operator is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

TORCHS_NAMESPACES = frozenset({"aten", "prims", "prim"})


class StandIns(TorchDispatchMode):
    """Torch's own operators run as they are. Raises what fakes raise, as for sizes that depend on values."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run `func`, or make what stands in for its result."""
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload) or func.namespace in TORCHS_NAMESPACES:
            return func(*args, **kwargs)
        with _disable_current_modes():
            mode = FakeTensorMode()
            fakes, named = pytree.tree_map_only(Tensor, mode.from_tensor, (args, dict(kwargs)))
            with mode:
                result = func(*fakes, **named)
            return pytree.tree_map_only(Tensor, _of_its_kind, result)


def _of_its_kind(fake: Tensor) -> Tensor:
    value = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
    if not (value.is_floating_point() or value.is_complex()):
        # May be an index.
        return value.zero_()
    return value.copy_(ramp(value))


def ramp(value: Tensor) -> Tensor:
    """Values of either sign, the same for each element in whatever order it lies."""
    steps = torch.arange(value.numel(), dtype=torch.float32, device=value.device).reshape(value.shape)
    return (steps * 0.7 + 0.3).cos().to(value.dtype)
