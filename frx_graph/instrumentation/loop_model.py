"""Find the name of the model that a loop trains."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst
import libcst.matchers as m

from frx_graph.instrumentation.training_step import collect_target_names, name_parts

_USUAL_NAMES = frozenset({"model", "net", "network"})
_METHODS_OF_MODELS = frozenset({"parameters", "named_parameters", "train", "eval", "modules"})
_TARGETS = m.AssignTarget() | m.AnnAssign() | m.NamedExpr() | m.Del() | m.For() | m.CompFor()
_DEFINITIONS = m.ClassDef() | m.FunctionDef() | m.Param() | m.AsName()
_ASSIGNING = _TARGETS | _DEFINITIONS | m.MatchAs() | m.MatchStar() | m.MatchMapping()
"""Nodes that assign to their `target`, `name` or `rest`."""


def find_model(loop: cst.For, module: cst.Module) -> str | None:
    """Return the dotted name of the one model, or the one called `model`, that the loop's body calls or passes on in
    every iteration; None if there is none, or the loop itself creates it."""
    body = _UsedNames()
    loop.body.visit(body)
    assigned = _collect_assigned_names(loop.body) | collect_target_names(loop.target)
    calls = m.findall(module, m.Call(func=m.Attribute()))
    names = [name_parts(call.func) for call in calls if isinstance(call, cst.Call)]
    models = _USUAL_NAMES | {".".join(name[:-1]) for name in names if name[1:] and name[-1] in _METHODS_OF_MODELS}
    found = {".".join(name) for name in body.used if name[0] not in assigned and ({".".join(name), name[-1]} & models)}
    if len(found) > 1:
        found = {name for name in found if name.rpartition(".")[2] == "model"}
    return found.pop() if len(found) == 1 else None


@dataclass(slots=True)
class _UsedNames(cst.CSTVisitor):
    """Collects calls and arguments on every path. A function defined there, as for LBFGS, counts as called."""

    used: set[tuple[str, ...]] = field(default_factory=set)
    branches: int = 0

    def visit_Call(self, node: cst.Call) -> None:  # noqa: N802
        if self.branches:
            return
        for each in (node.func, *(argument.value for argument in node.args)):
            if m.matches(each, m.Name() | m.Attribute(value=m.Name())):
                self.used.add(name_parts(each))

    def visit_If(self, node: cst.If | cst.IfExp) -> None:  # noqa: ARG002, N802
        self.branches += 1

    def leave_If(self, original_node: cst.If | cst.IfExp) -> None:  # noqa: ARG002, N802
        self.branches -= 1

    visit_IfExp = visit_If  # noqa: N815
    leave_IfExp = leave_If  # noqa: N815


def _collect_assigned_names(body: cst.CSTNode) -> frozenset[str]:
    """Return the names that are assigned anywhere in the body."""
    found: set[str] = set()
    for node in m.findall(body, _ASSIGNING):
        for attribute in ("target", "name", "rest"):
            bound = getattr(node, attribute, None)
            if isinstance(bound, cst.BaseExpression):
                found |= collect_target_names(bound)
    imported = m.findall(body, m.ImportAlias(asname=None))
    return frozenset(found | {name_parts(node.name)[0] for node in imported if isinstance(node, cst.ImportAlias)})
