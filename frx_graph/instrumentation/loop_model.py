"""Which model a loop trains, by its name."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst
import libcst.matchers as m

from frx_graph.instrumentation.training_step import name_parts, target_names

_USUAL_NAMES = frozenset({"model", "net", "network"})
_METHODS_OF_MODELS = frozenset({"parameters", "named_parameters", "train", "eval", "modules"})


def model_of(loop: cst.For, module: cst.Module) -> str | None:
    """The dotted name of the one model that the loop's body calls or hands on in every turn; None where there is none,
    or several and none of them is called `model`. Not one that the loop itself makes: at its beginning it is not there.
    """
    body = _Body()
    loop.body.visit(body)
    assigned = body.assigned | target_names(loop.target)
    models = _USUAL_NAMES | _with_methods_of_models(module)
    found = {".".join(name) for name in body.used if name[0] not in assigned and ({".".join(name), name[-1]} & models)}
    if len(found) > 1:
        found = {name for name in found if name.rpartition(".")[2] == "model"}
    return found.pop() if len(found) == 1 else None


def _with_methods_of_models(module: cst.Module) -> frozenset[str]:
    """Dotted names of which the script asks what only models have."""
    calls = m.findall(module, m.Call(func=m.Attribute()))
    parts = [name_parts(call.func) for call in calls if isinstance(call, cst.Call)]
    return frozenset(".".join(name[:-1]) for name in parts if len(name) > 1 and name[-1] in _METHODS_OF_MODELS)


@dataclass(slots=True)
class _Body(cst.CSTVisitor):
    """What is called, or an argument, on every way through; and what is assigned to. A function that is made there, as
    for LBFGS, is taken for one that is called."""

    used: set[tuple[str, ...]] = field(default_factory=set)
    assigned: set[str] = field(default_factory=set)
    branches: int = 0

    def visit_Call(self, node: cst.Call) -> None:  # noqa: N802
        if self.branches:
            return
        for each in (node.func, *(argument.value for argument in node.args)):
            if m.matches(each, m.Name() | m.Attribute(value=m.Name())):
                self.used.add(name_parts(each))

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:  # noqa: N802
        self.assigned |= target_names(node.target)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:  # noqa: N802
        self.assigned |= target_names(node.target)

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:  # noqa: N802
        self.assigned |= target_names(node.target)

    def visit_AsName(self, node: cst.AsName) -> None:  # noqa: N802
        self.assigned |= target_names(node.name)

    def visit_Del(self, node: cst.Del) -> None:  # noqa: N802
        self.assigned |= target_names(node.target)

    def visit_For(self, node: cst.For) -> None:  # noqa: N802
        self.assigned |= target_names(node.target)

    def visit_CompFor(self, node: cst.CompFor) -> None:  # noqa: N802
        self.assigned |= target_names(node.target)

    def visit_ImportAlias(self, node: cst.ImportAlias) -> None:  # noqa: N802
        if node.asname is None:
            self.assigned.add(name_parts(node.name)[0])

    def visit_MatchAs(self, node: cst.MatchAs) -> None:  # noqa: N802
        self._binds(node.name)

    def visit_MatchStar(self, node: cst.MatchStar) -> None:  # noqa: N802
        self._binds(node.name)

    def visit_MatchMapping(self, node: cst.MatchMapping) -> None:  # noqa: N802
        self._binds(node.rest)

    def visit_ClassDef(self, node: cst.ClassDef) -> None:  # noqa: N802
        self._binds(node.name)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:  # noqa: N802
        self._binds(node.name)

    def visit_Param(self, node: cst.Param) -> None:  # noqa: N802
        self._binds(node.name)

    def visit_If(self, node: cst.If) -> None:  # noqa: ARG002, N802
        self.branches += 1

    def leave_If(self, original_node: cst.If) -> None:  # noqa: ARG002, N802
        self.branches -= 1

    def visit_IfExp(self, node: cst.IfExp) -> None:  # noqa: ARG002, N802
        self.branches += 1

    def leave_IfExp(self, original_node: cst.IfExp) -> None:  # noqa: ARG002, N802
        self.branches -= 1

    def _binds(self, name: cst.Name | None) -> None:
        if name is not None:
            self.assigned.add(name.value)
