"""Find calls of `backward` and of an optimizer's `step`, and the loops around them."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import libcst as cst
import libcst.matchers as m

_OPTIMIZER = re.compile(r"opt|scaler|adam|sgd|engine", re.IGNORECASE)
"""Parts of names whose `step` changes weights: `optimizer`, `self.opt`, `scaler`, DeepSpeed's `engine`."""
_OTHERS_WITH_STEPS = re.compile(r"sched|prof|env|lr", re.IGNORECASE)
_BACKWARD = frozenset({"backward", "manual_backward"})


class Evidence(enum.IntEnum):
    """A kind of call that shows that the loop around it trains."""

    BACKWARD = 1
    STEP = 2


Loop = cst.For | cst.While

_TRAINING = _BACKWARD | {"step"}
_BEFORE_BACKWARD = frozenset({"scale", "mean", "sum"})
"""Calls that a statement of the backward pass may make besides: `scaler.scale(loss).backward()`."""
_LATER = m.Lambda() | m.GeneratorExp() | m.Yield() | m.Await()
"""Expressions that run elsewhere, or let other code run meanwhile."""


@dataclass(slots=True)
class _CallSite:
    """A call, with the loops around it in the same function, outermost first."""

    name: str
    base: str
    """The first name of the object whose method it is, as `owner` is its last; for a function, its own and None."""
    owner: str | None
    loops: tuple[Loop, ...]
    function: str | None


@dataclass(slots=True)
class _CallCollector(cst.CSTVisitor):
    """All calls of a script."""

    found: list[_CallSite] = field(default_factory=list)
    loops: list[tuple[Loop, ...]] = field(default_factory=lambda: [()])
    functions: list[str | None] = field(default_factory=lambda: [None])

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:  # noqa: N802
        self.loops.append(())
        self.functions.append(node.name.value)

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:  # noqa: ARG002, N802
        self.loops.pop()
        self.functions.pop()

    def visit_For_body(self, node: Loop) -> None:  # noqa: N802
        self.loops[-1] += (node,)

    def leave_For_body(self, node: Loop) -> None:  # noqa: ARG002, N802
        self.loops[-1] = self.loops[-1][:-1]

    visit_While_body = visit_For_body  # noqa: N815
    leave_While_body = leave_For_body  # noqa: N815

    def visit_Call(self, node: cst.Call) -> None:  # noqa: N802
        parts = name_parts(node.func)
        if parts:
            owner = parts[-2] if len(parts) > 1 else None
            self.found.append(_CallSite(parts[-1], parts[0], owner, self.loops[-1], self.functions[-1]))


def name_parts(node: cst.BaseExpression) -> tuple[str, ...]:
    """Return the parts of a dotted name: `self.model` has two, and so have `optimizers[0].step` and `loss().backward`.
    The first is empty if it has no name, as in `(a + b).backward`. Other expressions have no parts."""
    if isinstance(node, cst.Name):
        return (node.value,)
    if isinstance(node, cst.Attribute):
        inner = node.value
        while isinstance(inner, (cst.Subscript, cst.Call)):
            inner = inner.value if isinstance(inner, cst.Subscript) else inner.func
        return (*(name_parts(inner) or ("",)), node.attr.value)
    return ()


def find_training_evidence(module: cst.Module) -> dict[Loop, Evidence]:
    """Return the loops in which a call trains, with the strongest kind of call in each. Loops that only contain such a
    loop are left out. A function that trains without a loop, such as `train_step`, counts at its call."""
    calls = _CallCollector()
    module.visit(calls)
    trains: dict[str, Evidence] = {}
    while True:
        more = dict(trains)
        for call in calls.found:
            shown = _get_evidence(call, trains)
            if shown is not None and call.function is not None and _get_enclosing_loop(call) is None:
                more[call.function] = max(shown, more.get(call.function, shown))
        if more == trains:
            break
        trains = more
    found: dict[Loop, Evidence] = {}
    for call in calls.found:
        shown, loop = _get_evidence(call, trains), _get_enclosing_loop(call)
        if shown is not None and loop is not None:
            found[loop] = max(shown, found.get(loop, shown))
    return found


def _get_evidence(call: _CallSite, trains: dict[str, Evidence]) -> Evidence | None:
    if call.name in _BACKWARD and call.owner is not None:
        return Evidence.BACKWARD
    if call.name == "step" and _OPTIMIZER.search(call.owner or ""):
        return Evidence.STEP
    return None if _OTHERS_WITH_STEPS.search(call.owner or "") else trains.get(call.name)


def _get_enclosing_loop(call: _CallSite) -> Loop | None:
    """Return the innermost loop that does not iterate over the object whose method is called."""
    for loop in reversed(call.loops):
        if not (isinstance(loop, cst.For) and call.base in collect_target_names(loop.target)):
            return loop
    return None


def collect_target_names(target: cst.BaseExpression) -> frozenset[str]:
    """Return the assigned names."""
    if isinstance(target, cst.Name):
        return frozenset({target.value})
    elements = target.elements if isinstance(target, (cst.Tuple, cst.List)) else ()
    return frozenset(name for element in elements for name in collect_target_names(element.value))


def find_inner_loops(loop: Loop) -> Sequence[Loop]:
    """Return the loops in the body."""
    return [node for node in m.findall(loop.body, m.For() | m.While()) if isinstance(node, (cst.For, cst.While))]


def name_phase(statement: cst.SimpleStatementLine, model: str | None) -> str | None:
    """Return `forward`, `backward` or `optimizer` if the statement is that part of a step and nothing else, or None.

    `model` is the dotted name of the model. A forward pass is an assignment that calls it. An optimizer's step with a
    closure is also a forward and a backward pass.
    """
    if len(statement.body) != 1 or m.findall(statement, _LATER):
        return None
    calls = [each for each in m.findall(statement, m.Call()) if isinstance(each, cst.Call)]
    names = [name_parts(call.func) for call in calls]
    match statement.body[0]:
        case cst.Assign() | cst.AnnAssign():
            computes = model is not None and tuple(model.split(".")) in names
            trains = any(name and name[-1] in _TRAINING for name in names)
            return "forward" if computes and not trains else None
        case cst.Expr(value=cst.Call(func=cst.Attribute(), args=arguments) as call):
            *owner, name = name_parts(call.func)
            inner = {each[-1] if each else "" for each, one in zip(names, calls, strict=True) if one is not call}
            if name in _BACKWARD and inner <= _BEFORE_BACKWARD:
                return "backward"
            of = owner[-1] if owner else ""
            if name != "step" or inner or not _OPTIMIZER.search(of) or _OTHERS_WITH_STEPS.search(of):
                return None
            return "optimizer" if not arguments or "scaler" in of.lower() else None
    return None
