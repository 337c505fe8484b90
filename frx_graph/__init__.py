"""frx-graph: finds where a PyTorch model fights its own memory layout.

`advise` advises on one call of a model, `report` on all that the process has compiled with `backend="frx"`; `compile`
is that backend with the weights prepared, which `prepare` does by itself; `rewritten` tells what was done to each
graph, and what was refused, with the reason. All are loaded on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from frx_graph.version import __version__

__all__ = ["__version__", "advise", "clear", "compile", "prepare", "report", "rewritten"]

if TYPE_CHECKING:
    from frx_graph.advisor import advise
    from frx_graph.backend import clear, report, rewritten
    from frx_graph.compiled_model import compile
    from frx_graph.weight_preparation import prepare


_HOMES = {
    "advise": "frx_graph.advisor",
    "clear": "frx_graph.backend",
    "compile": "frx_graph.compiled_model",
    "prepare": "frx_graph.weight_preparation",
    "report": "frx_graph.backend",
    "rewritten": "frx_graph.backend",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
