"""frx-graph: find where a PyTorch model fights its own memory layout.

`advise` advises on one call of a model, `report` on all that the process has compiled with `backend="frx"`. `compile`
is that backend with options that act before tracing. `prepare` stores weights in channels-last if that is faster.
`rewritten` returns the rewrites of each graph, and the refusals with their reasons. A training script describes its run
with `init`, `step_context`, `span`, `AutopilotSession`, `instrument_dataloader` and `profile_kernels`. All are imported
on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from frx_graph.version import __version__

__all__ = [
    "AutopilotSession",
    "__version__",
    "advise",
    "clear",
    "compile",
    "init",
    "instrument_dataloader",
    "prepare",
    "profile_kernels",
    "report",
    "rewritten",
    "span",
    "step_context",
]

if TYPE_CHECKING:
    from frx_graph.advisor.advisor import advise
    from frx_graph.backend import clear, report, rewritten
    from frx_graph.prepack.prepare import prepare
    from frx_graph.runs.sdk.kernel_windows import profile_kernels
    from frx_graph.runs.sdk.session import AutopilotSession, init, instrument_dataloader, span, step_context
    from frx_graph.wrapper.compile import compile


_HOMES = {
    "AutopilotSession": "frx_graph.runs.sdk.session",
    "advise": "frx_graph.advisor.advisor",
    "clear": "frx_graph.backend",
    "compile": "frx_graph.wrapper.compile",
    "init": "frx_graph.runs.sdk.session",
    "instrument_dataloader": "frx_graph.runs.sdk.session",
    "prepare": "frx_graph.prepack.prepare",
    "profile_kernels": "frx_graph.runs.sdk.kernel_windows",
    "report": "frx_graph.backend",
    "rewritten": "frx_graph.backend",
    "span": "frx_graph.runs.sdk.session",
    "step_context": "frx_graph.runs.sdk.session",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
