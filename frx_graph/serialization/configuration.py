"""How torch's compilers are configured, to be had again later in the same process."""

from __future__ import annotations

import contextlib
import copy
import importlib
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

CONFIGURATIONS = ("torch._dynamo.config", "torch._functorch.config", "torch._inductor.config")

_DYNAMOS_OWN = frozenset({("torch._functorch.config", "fake_tensor_allow_unsafe_data_ptr_access")})
"""Dynamo changes it while it compiles, and back (`_dynamo/output_graph.py`, torch 2.15 and 2.13)."""

Configuration = Mapping[str, Mapping[str, Any]]
"""What differs from torch's defaults, by module."""


def configuration_here() -> Configuration:
    """The present one of this thread, its values as they are. All modules are named."""
    return {name: _changed(importlib.import_module(name)) for name in CONFIGURATIONS}


@contextlib.contextmanager
def configured(then: Configuration) -> Iterator[None]:
    """Inside, all is as `configuration_here` has found it: what was changed since is the default again."""
    with contextlib.ExitStack() as stack:
        for name, changes in then.items():
            module = importlib.import_module(name)
            defaults = {key: copy.deepcopy(module._config[key].default) for key in _changed(module)}
            stack.enter_context(module.patch({**defaults, **changes}))
        yield


def _changed(module: ModuleType) -> dict[str, Any]:
    changes = {}
    for name, setting in module._config.items():
        if module._is_default(name) or (module.__name__, name) in _DYNAMOS_OWN:
            continue
        value = getattr(module, name)
        if value != setting.default:
            changes[name] = value
    return changes
