"""What Python itself keeps of a program: attributes of objects and modules, contents of lists, dictionaries, sets."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn

from frx_graph.capture.reachable_state import TORCHS_OWN, Container, Reachable, own_attributes


class PythonState:
    """Remembers which objects the reached containers and attributes hold; the objects themselves are not copied."""

    def __init__(self, reached: Reachable) -> None:
        registries = (registry for owner in reached.owners for registry in _registries(owner))
        self._containers = [(container, copy.copy(container)) for container in (*reached.containers, *registries)]
        self._attributes = [(owner, own_attributes(owner)) for owner in reached.owners]

    def put_back(self) -> None:
        """What was added since goes, what was taken away or replaced comes back."""
        for container, before in self._containers:
            if _held(container) != _held(before):
                _refill(container, before)
        for owner, attributes in self._attributes:
            now = own_attributes(owner)
            if _held(now) != _held(attributes):
                for name in now.keys() - attributes.keys():
                    del owner.__dict__[name]
                owner.__dict__.update(attributes)


def _registries(owner: object) -> list[Container]:
    """Where a module keeps hooks and submodules. Parameters and buffers are replaced while a program is looked at, and
    put back by who does that."""
    if not isinstance(owner, nn.Module):
        return []
    own = TORCHS_OWN - {"_parameters", "_buffers"}
    return [held for name, held in vars(owner).items() if name in own and isinstance(held, (dict, set))]


def _held(container: Container) -> Sequence[Any]:
    """Equal where the same objects are held in the same places."""
    if isinstance(container, dict):
        return [(id(key), id(value)) for key, value in container.items()]
    # A set has no order.
    identities = map(id, container)
    return sorted(identities) if isinstance(container, set) else list(identities)


def _refill(container: Container, before: Any) -> None:
    container.clear()
    if isinstance(container, (dict, set)):
        container.update(before)
    else:
        container.extend(before)
