"""What a model's parameters look like, watched while it trains: a few in each step, all in the first.

A parameter can change its strides between steps (`model.to(memory_format=...)`), its dtype, or be another one. Each
step looks at `EACH_STEP` of them, in turn, so that a network of 160 parameters is looked through every 40 steps, for
two microseconds a step. The modules are listed anew now and then, since modules come and go, too.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from frx_graph.runs.batch_layout import Layout, TensorLayout, describe

EACH_STEP = 4
MOST_PARAMETERS = 4096
MOST_MODELS = 16
LISTED_EVERY = 2048
"""Steps. Listing a ResNet-50 takes half a millisecond, so a quarter of a microsecond a step."""


class ParameterWatch:
    """The parameters of one model, which is not kept alive. Raises `TypeError` for what cannot be referred to weakly."""

    def __init__(self, model: Any, name: str) -> None:
        self.name = name
        self._model = weakref.ref(model)
        self._seen: dict[str, TensorLayout] = {}
        self._places: list[tuple[str, weakref.ref[Any], str]] = []
        self._turn = 0
        self._steps = 0

    def watches(self, model: object) -> bool:
        """False for another model, such as one that lies where this one lay."""
        return self._model() is model

    def gone(self) -> bool:
        """True when nobody has the model any more."""
        return self._model() is None

    def changed(self) -> Layout:
        """Look at the next parameters, at all of them in the first step; those that have changed since they were seen
        last, so in the first step all."""
        if self._steps % LISTED_EVERY == 0:
            self._list()
        first = self._steps == 0
        self._steps += 1
        places = self._places
        if not places:
            return ()
        if first:
            turn = places
        else:
            start = self._turn
            turn = places[start : start + EACH_STEP]
            self._turn = start + EACH_STEP if start + EACH_STEP < len(places) else 0
        changed = []
        seen = self._seen
        for name, owner, own_name in turn:
            module = owner()
            parameter = None if module is None else module._parameters.get(own_name)
            if parameter is None:
                continue
            found = describe(name, parameter)
            if found is not None and seen.get(name) != found:
                seen[name] = found
                changed.append(found)
        return tuple(changed)

    def _list(self) -> None:
        model = self._model()
        self._places = [] if model is None else list(_places(model))
        self._turn = 0


def _places(model: Any) -> Iterator[tuple[str, weakref.ref[Any], str]]:
    """Where parameters are kept: the full name, the module, the name within it; each parameter once."""
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
    """The models that a program has given its steps."""

    def __init__(self) -> None:
        self._watches: dict[int, ParameterWatch] = {}

    def watch(self, model: Any) -> ParameterWatch | None:
        """None for what is no module, and for models beyond `MOST_MODELS`."""
        found = self._watches.get(id(model))
        if found is not None and found.watches(model):
            return found
        if not hasattr(model, "named_modules"):
            return None
        self._watches = {key: watch for key, watch in self._watches.items() if not watch.gone()}
        if len(self._watches) >= MOST_MODELS:
            return None
        kind = type(model).__name__
        names = {watch.name for watch in self._watches.values()}
        name = next(name for i in range(MOST_MODELS + 1) if (name := f"{kind}#{i + 1}" if i else kind) not in names)
        watch = self._watches[id(model)] = ParameterWatch(model, name)
        return watch
