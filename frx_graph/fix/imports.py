"""Name modules as a file's own imports do."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import libcst as cst
import libcst.matchers as m

from frx_graph.fix.local_names import list_occurrences
from frx_graph.fix.source_file import CannotFixError, SourceFile
from frx_graph.records import SourceEdit

_SUBMODULE = m.Attribute(value=m.Name("torch") | m.Attribute(value=m.Name("torch")))
_PART_OF_TORCH = m.ImportFrom(module=m.Name("torch") | _SUBMODULE, relative=[]) | m.Import(
    names=[m.ImportAlias(name=_SUBMODULE), m.ZeroOrMore()]
)


def name_torch(source: SourceFile) -> tuple[str, Sequence[SourceEdit]]:
    """Return the file's name of `torch`; if there is none, `torch` and an edit that imports it, above the imports from
    torch. Raises `CannotFixError` if the file has another use for that name, or first imports it below a class."""
    for module, name, alias in _list_imports(source, _list_head(source)):
        whole = module == "torch" or (module.startswith("torch.") and not alias)
        if whole and not name:
            found = alias or "torch"
            if any(_is_given_value(source, node) for node in m.findall(source.module, m.Name(found))):
                raise CannotFixError(f"the file has another use for the name `{found}`")
            return found, ()
    if any(not _is_in_import(source, node) for node in m.findall(source.module, m.Name("torch"))):
        raise CannotFixError("the file does not import torch by itself, and has another use for its name")
    for line in _list_head(source):
        for statement in line.body:
            if m.matches(statement, _PART_OF_TORCH):
                return "torch", (source.insert_before(line, ["import torch"]),)
    raise CannotFixError("the file does not import torch by itself")


def name_functional(source: SourceFile, function: cst.FunctionDef) -> str:
    """Return the name of `torch.nn.functional` in a function. Raises `CannotFixError` if it has none, or gives the name
    another value."""
    best = ""
    for module, name, alias in _list_imports(source, source.module.body):
        whole = f"{module}.{name}" if name else module
        if whole == "torch.nn.functional":
            best = alias or name or whole
            break
        if whole == "torch" or (whole.startswith("torch.") and not name and not alias):
            best = best or f"{alias or 'torch'}.nn.functional"
        elif whole == "torch.nn":
            best = best or f"{alias or name}.functional"
    first = best.partition(".")[0]
    every = (*function.params.posonly_params, *function.params.params, *function.params.kwonly_params)
    hidden = any(not source.is_read(node) for node in list_occurrences(source, function, first))
    if not best or hidden or first in {parameter.name.value for parameter in every}:
        raise CannotFixError("the function has no name of torch.nn.functional")
    return best


def _is_in_import(source: SourceFile, node: cst.CSTNode | None) -> bool:
    while node is not None and not isinstance(node, (cst.Import, cst.ImportFrom)):
        node = source.parents.get(node)
    return node is not None


def _list_head(source: SourceFile) -> Sequence[cst.SimpleStatementLine]:
    """Return the simple statements of a file above its first class or function."""
    every = itertools.takewhile(lambda one: not isinstance(one, (cst.ClassDef, cst.FunctionDef)), source.module.body)
    return [one for one in every if isinstance(one, cst.SimpleStatementLine)]


def _is_given_value(source: SourceFile, node: cst.CSTNode) -> bool:
    """Return True where a name is assigned, or is a parameter."""
    assigned = isinstance(node, cst.Name) and source.is_variable(node) and not source.is_read(node)
    return (assigned or isinstance(source.parents.get(node), cst.Param)) and not _is_in_import(source, node)


def _list_imports(source: SourceFile, statements: Sequence[cst.CSTNode]) -> Iterator[tuple[str, str, str]]:
    """Yield module, name and alias of the imports that the whole file sees; what is missing is empty."""
    for line in statements:
        for statement in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(statement, cst.Import):
                for alias in statement.names:
                    yield source.get_text(alias.name), "", _get_alias(alias)
            elif isinstance(statement, cst.ImportFrom) and not isinstance(statement.names, cst.ImportStar):
                module = "" if statement.module is None else source.get_text(statement.module)
                for alias in statement.names:
                    yield module, source.get_text(alias.name), _get_alias(alias)


def _get_alias(alias: cst.ImportAlias) -> str:
    if alias.asname is None:
        return ""
    return alias.asname.name.value if isinstance(alias.asname.name, cst.Name) else ""
