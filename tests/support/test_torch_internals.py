"""Private APIs of torch are named in one file, and importing it costs nothing beyond torch."""

from __future__ import annotations

import ast
import re
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


PUBLIC = {"_getframe", "_exit", "_fields", "_parameters", "_buffers"}
"""Names of Python, and the tables of `nn.Module`, which have not changed since torch 0.1."""
OPERATORS = ("torch.ops.", "_aten.")


def is_stored_in_self(node: ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store) and dotted(node).startswith("self.")


def foreign_attributes(source: str) -> Iterator[str]:
    """Yield each private attribute that a module reads of something that it does not define."""
    nodes = list(ast.walk(ast.parse(source)))
    own = {n.name for n in nodes if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}
    own |= {n.attr for n in nodes if isinstance(n, ast.Attribute) and is_stored_in_self(n)}
    own |= {n.target.id for n in nodes if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    for node in nodes:
        for of, name in named_attributes(node):
            is_private_name = name.startswith("_") and not name.startswith("__")
            if is_private_name and name not in own | PUBLIC and not f"{of}.".startswith(OPERATORS):
                yield name


def named_attributes(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the attributes that a node names, each behind what it is of."""
    match node:
        case ast.Attribute(attr=name, value=ast.Name("self" | "cls")):
            pass
        case ast.Attribute(attr=name, value=of):
            yield dotted(of), name
        case ast.Call(
            func=ast.Name("getattr" | "hasattr" | "setattr" | "delattr"), args=[of, ast.Constant(str(name)), *_]
        ):
            yield dotted(of), name
        case ast.Call(func=called, args=args, keywords=keywords):
            if dotted(called).endswith(("attrgetter", "methodcaller")):
                yield from (("", arg.value) for arg in args if isinstance(arg, ast.Constant) and type(arg.value) is str)
            if isinstance(called, ast.Attribute) and called.attr == "patch":
                yield from (("", keyword.arg) for keyword in keywords if keyword.arg is not None)


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


@pytest.mark.parametrize(
    "source",
    [
        "storage._cdata",
        "tensor.untyped_storage()._cdata",
        'getattr(node, "_dynamo_source", None)',
        'hasattr(config, "_post_fusion_custom_pass")',
        'delattr(module, "_x")',
        'operator.attrgetter("_version")',
        "config.patch(_post_fusion_custom_pass=run)",
        "self.tensor._version",
    ],
)
def test_private_attributes_of_others_are_recognised(source: str) -> None:
    assert list(foreign_attributes(source))


@pytest.mark.parametrize(
    "source",
    ["self._x", "torch.ops.aten._unsafe_view", "module._parameters", "node.__dict__", "other._x\ndef _x(self): ..."],
)
def test_own_and_public_attributes_are_not(source: str) -> None:
    assert not list(foreign_attributes(source))


def list_product_sources() -> dict[Path, str]:
    files = (file for folder in ("frx_graph", "passes", "trials", "rules") for file in (ROOT / folder).rglob("*.py"))
    return {file: file.read_text() for file in files}


def test_only_one_product_file_names_private_torch() -> None:
    sources = list_product_sources()
    assert {file for file, source in sources.items() if any(map(is_private, named_paths(source)))} == {INTERNALS}


def test_only_one_product_file_reads_private_attributes_of_others() -> None:
    suspects = {
        f: s
        for f, s in list_product_sources().items()
        if f != INTERNALS and re.search(r"\._[a-z]|attr\(|attrgetter|patch\(", s)
    }
    foreign = {str(file): set(foreign_attributes(source)) for file, source in suspects.items()}
    assert {file: names for file, names in foreign.items() if names} == {}


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
