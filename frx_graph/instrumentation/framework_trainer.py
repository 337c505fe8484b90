"""Scripts whose loop over the steps is a framework's: its `Trainer` takes callbacks, and there is nothing to wrap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import libcst as cst
import libcst.matchers as m

from frx_graph.instrumentation.training_step import name_parts

CALLBACKS: Final = {
    "transformers": "frx_graph.callbacks.huggingface",
    "trl": "frx_graph.callbacks.huggingface",
    "lightning": "frx_graph.callbacks.lightning",
    "pytorch_lightning": "frx_graph.callbacks.lightning",
}
"""For each framework, the module whose `FrxCallback` records its steps."""


def framework_of(module: cst.Module) -> str | None:
    """Whose `Trainer` a script makes; None if it makes none."""
    made = [name_parts(node.func) for node in m.findall(module, m.Call()) if isinstance(node, cst.Call)]
    if not any(name and name[-1].endswith("Trainer") for name in made):
        return None
    return next((name for name in _imported(module) if name in CALLBACKS), None)


def _imported(module: cst.Module) -> Iterator[str]:
    """The packages that it imports from, anywhere."""
    for node in m.findall(module, m.Import() | m.ImportFrom()):
        if isinstance(node, cst.Import):
            names: list[cst.BaseExpression] = [alias.name for alias in node.names]
        else:
            names = [node.module] if isinstance(node, cst.ImportFrom) and node.module is not None else []
        yield from (parts[0] for parts in map(name_parts, names) if parts)
