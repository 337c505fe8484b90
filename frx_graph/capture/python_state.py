"""What Python itself keeps of a program: attributes of objects and modules, contents of lists, dictionaries, sets and
arrays, variables of closures and modules, random generators."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from frx_graph.capture.kinds_of_state import Container, container_type, way_back
from frx_graph.capture.reachable_state import TORCHS_OWN, Reachable, own_attributes, slot_values


class PythonState:
    """Remembers which objects the reached containers, attributes and variables hold; of objects only arrays and states
    of random generators are copied."""

    def __init__(self, reached: Reachable) -> None:
        registries = (registry for owner in reached.owners for registry in _registries(owner))
        self._containers = [(container, _contents(container)) for container in (*reached.containers, *registries)]
        self._attributes = [(owner, own_attributes(owner), slot_values(owner)) for owner in reached.owners]
        self._variables = [(space, name, name in space, space.get(name)) for space, name in reached.variables]
        self._ways_back: list[Callable[[], object]] = [way_back(value) for value in reached.with_way_back]

    def put_back(self) -> None:
        """What was added since goes, what was taken away or replaced comes back."""
        # What cannot be put back keeps nothing else from being put back.
        with contextlib.ExitStack() as last:
            for way in self._ways_back:
                last.callback(way)
            for container, before in self._containers:
                if _held(_contents(container)) != _held(before):
                    last.callback(_refill, container, before)
            for owner, attributes, in_slots in self._attributes:
                last.callback(_put_attributes_back, owner, attributes, in_slots)
            for space, name, was_there, value in self._variables:
                if was_there:
                    space[name] = value
                else:
                    space.pop(name, None)


def _registries(owner: object) -> list[Container]:
    """Where a module keeps hooks and submodules. Parameters and buffers are replaced while a program is looked at, and
    put back by who does that."""
    if not isinstance(owner, nn.Module):
        return []
    own = TORCHS_OWN - {"_parameters", "_buffers"}
    return [held for name, held in vars(owner).items() if name in own and isinstance(held, (dict, set))]


def _contents(container: Any) -> Any:
    """A plain container of the same contents, in their order, however a subclass tells them."""
    kind = container_type(container)
    if isinstance(container, dict):
        return dict(kind.items(container))
    return set(container) if isinstance(container, set) else list(kind.__iter__(container))


def _held(contents: Any) -> Sequence[Any]:
    """Equal where the same objects are held in the same places."""
    if isinstance(contents, dict):
        return [(id(key), id(value)) for key, value in contents.items()]
    # A set has no order.
    identities = map(id, contents)
    return sorted(identities) if isinstance(contents, set) else list(identities)


def _refill(container: Any, before: Any) -> None:
    kind = container_type(container)
    kind.clear(container)
    if isinstance(container, dict):
        for key, value in before.items():
            kind.__setitem__(container, key, value)
    elif isinstance(container, set):
        kind.update(container, before)
    else:
        kind.extend(container, before)


def _put_attributes_back(owner: Any, attributes: Mapping[str, Any], in_slots: Mapping[Any, Any]) -> None:
    now = own_attributes(owner)
    if _held(now) != _held(attributes):
        for name in now.keys() - attributes.keys():
            del owner.__dict__[name]
        owner.__dict__.update(attributes)
    slots_now = slot_values(owner)
    for slot in slots_now.keys() - in_slots.keys():
        slot.__delete__(owner)
    for slot, value in in_slots.items():
        if slot not in slots_now or slots_now[slot] is not value:
            slot.__set__(owner, value)
