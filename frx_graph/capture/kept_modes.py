"""Puts back the modes that a graph switches while it runs.

Graphs of Dynamo's switch gradients, autocast and transforms of `torch.func` on and off by calls between operators; one
that raises in between would leave the program in the wrong mode.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from frx_graph.support.torch_internals import get_functorch_depth, pop_functorch_layers

_DEVICES = ("cpu", "cuda")
"""Autocast has a mode for each type of device."""


@contextlib.contextmanager
def modes_put_back() -> Iterator[None]:
    """On leaving, also by an exception, gradients, autocast and transforms are as they were."""
    gradients = torch.is_grad_enabled()
    autocast = [(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _DEVICES]
    cached, nesting = torch.is_autocast_cache_enabled(), _autocast_nesting()
    # Private: Dynamo itself cleans up so behind each compiled call (`_TorchDynamoContext`, torch 2.15 and 2.13).
    transforms = get_functorch_depth()
    try:
        yield
    finally:
        pop_functorch_layers(transforms)
        while _autocast_nesting() > nesting:
            torch.autocast_decrement_nesting()
        torch.set_autocast_cache_enabled(cached)
        for device, enabled, dtype in autocast:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_grad_enabled(gradients)


def _autocast_nesting() -> int:
    """How many regions of autocast are entered: as long as there are any, converted weights are kept."""
    nesting: int = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return nesting
