"""Private APIs of torch are named in one file, and importing it costs nothing beyond torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from frx_graph.support import torch_internals

ROOT = Path(__file__).parents[2]
INTERNALS = ROOT / "frx_graph" / "support" / "torch_internals.py"


def is_private(path: str) -> bool:
    """Return True for a path in torch with a private part. Names of operators and `__x__` are public."""
    root, *parts = path.split(".")
    return root == "torch" and parts[:1] != ["ops"] and any(p.startswith("_") and not p.startswith("__") for p in parts)


def dotted(node: ast.AST) -> str:
    """Return `a.b.c` for a chain of attributes of a name, else an empty string."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def named_paths(source: str) -> Iterator[str]:
    """Yield each dotted path that a module imports or reads."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield dotted(node)


def imported_for_type_checkers() -> set[str]:
    block = next(node for node in ast.parse(INTERNALS.read_text()).body if isinstance(node, ast.If))
    return {a.asname or a.name for node in block.body if isinstance(node, ast.ImportFrom) for a in node.names}


@pytest.mark.parametrize(
    "source",
    [
        "import torch._dynamo",
        "from torch._inductor import config",
        "from torch.utils import _pytree as pytree",
        "x = torch._C._has_mkldnn",
    ],
)
def test_private_paths_are_recognised(source: str) -> None:
    assert any(map(is_private, named_paths(source)))


@pytest.mark.parametrize("source", ["import torch.fx", "torch.__version__", "torch.ops.mkl._mkl_linear"])
def test_public_paths_are_not(source: str) -> None:
    assert not any(map(is_private, named_paths(source)))


def test_only_one_product_file_names_private_torch() -> None:
    files = [file for folder in ("frx_graph", "passes", "trials", "rules") for file in (ROOT / folder).rglob("*.py")]
    naming = {file for file in files if any(map(is_private, named_paths(file.read_text())))}
    assert naming == {INTERNALS}


def test_late_names_are_those_that_type_checkers_see_and_exist() -> None:
    late = {*torch_internals._LATE_MODULES, *" ".join(torch_internals._LATE.values()).split()}
    assert imported_for_type_checkers() == late
    assert all(getattr(torch_internals, name) is not None for name in late)


def test_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        torch_internals.no_such_name  # noqa: B018


@pytest.mark.integration
def test_importing_it_loads_neither_dynamo_nor_inductor() -> None:
    code = "import sys, frx_graph.support.torch_internals; print({'torch._dynamo', 'torch._inductor'} & {*sys.modules})"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
