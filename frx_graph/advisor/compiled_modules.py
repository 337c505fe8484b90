"""Find the modules that a program compiles by itself: their operators run as few kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from frx_graph.capture.call_site import MODEL_PATH
from frx_graph.support.torch_internals import is_compiled_function, is_compiled_module


def find_compiled_modules(model: Callable[..., Any]) -> frozenset[str]:
    """Return the paths, as in call sites, of modules after `compile()` and of those with a compiled `forward`."""
    if not isinstance(model, nn.Module):
        return frozenset()
    return frozenset(
        f"{MODEL_PATH}.{name}" if name else MODEL_PATH
        for name, module in model.named_modules(remove_duplicate=False)
        if is_compiled_module(module) or is_compiled_function(module.forward)
    )
