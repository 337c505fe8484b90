"""frx-graph: finds where a PyTorch model fights its own memory layout.

`advise` advises on one call of a model, `report` on all that the process has compiled with `backend="frx"`. Both are
loaded on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from frx_graph.version import __version__

__all__ = ["__version__", "advise", "clear", "report"]

if TYPE_CHECKING:
    from frx_graph.advisor import advise
    from frx_graph.backend import clear, report


def __getattr__(name: str) -> Any:
    if name == "advise":
        from frx_graph.advisor import advise

        return advise
    if name in ("clear", "report"):
        from frx_graph import backend

        return getattr(backend, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
