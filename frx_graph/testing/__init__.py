"""Layout checks in tests: `assert_no_layout_copies`, and the pytest plugin with `pytest --frx`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["assert_no_layout_copies"]

if TYPE_CHECKING:
    from frx_graph.testing.layout_assertion import assert_no_layout_copies


def __getattr__(name: str) -> Any:
    # pytest imports this package with the plugin, and torch takes seconds.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("frx_graph.testing.layout_assertion"), name)
