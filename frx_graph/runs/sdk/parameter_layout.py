"""Watch the layouts of a model's parameters while it trains: all in the first step, then a group at a time, in turn.

A parameter can change its strides (`model.to(memory_format=...)`) or its dtype between steps, or be replaced. Every
`EACH` steps, `EACH` parameters are checked, so a network of 160 is covered in 160 steps. One check takes 0.5 µs, and
ten times that on a cold processor cache, so parameters are checked in groups. The list of modules is also refreshed,
since modules come and go.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from frx_graph.runs.sdk.batch_layout import Layout, TensorLayout, describe

EACH = 8
MOST_PARAMETERS = 4096
MOST_MODELS = 16
_LISTED_EVERY = 512
"""Checks of a group before modules are listed again. Listing a ResNet-50 takes 0.5 ms, 0.125 µs a step."""


class ParameterWatch:
    """The parameters of one model, which is not kept alive. `countdown` is the number of steps until the next call of
    `changed`."""

    def __init__(self, model: weakref.ref[Any], name: str) -> None:
        self.name = name
        self.countdown = 1
        self._model = model
        self._seen: dict[str, TensorLayout] = {}
        self._places: list[tuple[str, weakref.ref[Any], str]] = []
        self._next = 0
        self._times = 0

    def find_changed(self) -> Layout:
        """Check the next group of parameters, or all in the first call, and return those that have changed."""
        if self._times % _LISTED_EVERY == 0:
            model = self._model()
            self._places, self._next = ([] if model is None else list(_iterate_places(model))), 0
        places = self._places
        if self._times:
            turn = places[self._next : self._next + EACH]
            self._next = self._next + EACH if self._next + EACH < len(places) else 0
        else:
            turn = places
        self._times += 1
        self.countdown = EACH
        changed = []
        for name, owner, own_name in turn:
            module = owner()
            parameter = None if module is None else module._parameters.get(own_name)
            found = None if parameter is None else describe(name, parameter)
            if found is not None and found != self._seen.get(name):
                self._seen[name] = found
                changed.append(found)
        return tuple(changed)


def _iterate_places(model: Any) -> Iterator[tuple[str, weakref.ref[Any], str]]:
    """Yield the place of each parameter once: its full name, the module, the name within it."""
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is None or id(parameter) in seen:
                continue
            if len(seen) == MOST_PARAMETERS:
                return
            seen.add(id(parameter))
            yield f"{prefix}.{name}" if prefix else name, weakref.ref(module), name


class WatchedModels:
    """The models that a program has given its steps, by their `id` while they live."""

    def __init__(self) -> None:
        self._watches: dict[int, ParameterWatch] = {}

    def get_due_watch(self, model: Any) -> ParameterWatch | None:
        """Return the model's watch; None if no check is due in this step, for an object that is not a module, and
        beyond `MOST_MODELS`. Raises `TypeError` for objects without weak references."""
        watch = self._watches.get(id(model)) or self._begin_watch(model)
        if watch is None:
            return None
        watch.countdown -= 1
        return watch if watch.countdown <= 0 else None

    def _begin_watch(self, model: Any) -> ParameterWatch | None:
        if not hasattr(model, "named_modules") or len(self._watches) >= MOST_MODELS:
            return None
        kind = type(model).__name__
        names = {watch.name for watch in self._watches.values()}
        name = next(name for i in range(MOST_MODELS + 1) if (name := f"{kind}#{i + 1}" if i else kind) not in names)
        watches, key = self._watches, id(model)
        watch = watches[key] = ParameterWatch(weakref.ref(model, lambda _: watches.pop(key, None)), name)
        return watch
