"""Find what a function does with one of its names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from frx_graph.fix.source_file import SourceFile


@dataclass(frozen=True, slots=True)
class NameUse:
    """A place where a name is read or written. `method` is what is called or read of it, `view` of `x.view(...)`;
    `assigns` is True where the name gets another value, `writes` where its value is changed in place."""

    node: cst.Name
    method: str = ""
    assigns: bool = False
    writes: bool = False


def list_uses(source: SourceFile, function: cst.FunctionDef, name: str) -> Iterator[NameUse]:
    """Yield the uses of `name` in a function's body, also in functions within, in no certain order."""
    for node in m.findall(function.body, m.Name(name)):
        assert isinstance(node, cst.Name)
        use = _describe_use(source, node)
        if use is not None:
            yield use


def find_assigned_name(source: SourceFile, value: cst.CSTNode) -> str | None:
    """Return the name that an expression is assigned to as it is; None if it is part of another expression."""
    parent = source.parents.get(value)
    if isinstance(parent, cst.Assign) and len(parent.targets) == 1:
        target: cst.CSTNode = parent.targets[0].target
    elif isinstance(parent, (cst.AnnAssign, cst.NamedExpr)) and parent.value is value:
        target = parent.target
    else:
        return None
    return target.value if isinstance(target, cst.Name) else None


def _describe_use(source: SourceFile, node: cst.Name) -> NameUse | None:
    parent = source.parents.get(node)
    if isinstance(parent, cst.Attribute):
        if parent.value is not node:
            # The attribute of something else.
            return None
        method = parent.attr.value
        stored = isinstance(source.parents.get(parent), cst.AssignTarget)
        called = isinstance(source.parents.get(parent), cst.Call)
        return NameUse(node, method, writes=stored or (called and method.endswith("_") and not method.endswith("__")))
    if isinstance(parent, (cst.Arg, cst.Param)) and getattr(parent, "keyword", getattr(parent, "name", None)) is node:
        # The keyword of an argument, or a parameter of a function within.
        out = isinstance(parent, cst.Arg) and node.value == "out"
        return NameUse(node, writes=True) if out else None
    if isinstance(parent, cst.Arg) and parent.keyword is not None and parent.keyword.value == "out":
        return NameUse(node, writes=True)
    if isinstance(parent, cst.AugAssign) and parent.target is node:
        return NameUse(node, writes=True)
    if isinstance(parent, cst.Subscript) and parent.value is node:
        above = source.parents.get(parent)
        stored = isinstance(above, cst.AssignTarget) or (isinstance(above, cst.AugAssign) and above.target is parent)
        return NameUse(node, writes=stored)
    assigned = isinstance(parent, (cst.AssignTarget, cst.NamedExpr, cst.For, cst.CompFor, cst.AsName, cst.AnnAssign))
    return NameUse(node, assigns=assigned and getattr(parent, "target", getattr(parent, "name", None)) is node)
