"""The class of the advised model: where its `forward` is written."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import libcst as cst
import libcst.matchers as m

from frx_graph.capture.call_site import CallSite, is_foreign
from frx_graph.fix.source_file import CannotFixError


def find_forward(model: Callable[..., Any]) -> CallSite | None:
    """Return the place of the model's own `forward`; None for a model without one, or of a class of torch."""
    forward = inspect.unwrap(getattr(type(model), "forward", model))
    code = getattr(forward, "__code__", None)
    if code is None or code.co_name != "forward" or is_foreign(code.co_filename):
        return None
    return CallSite(code.co_filename, code.co_firstlineno, code.co_name)


def find_method(owner: cst.ClassDef, name: str) -> cst.FunctionDef | None:
    """Return the class's own method of that name."""
    for statement in owner.body.body:
        if isinstance(statement, cst.FunctionDef) and statement.name.value == name:
            return statement
    return None


def list_parameters(function: cst.FunctionDef) -> Iterator[str]:
    """Yield the names of a method's parameters, without `self`."""
    every = (*function.params.posonly_params, *function.params.params, *function.params.kwonly_params)
    yield from (parameter.name.value for parameter in every[1:])


def get_first_statement(function: cst.FunctionDef) -> cst.CSTNode:
    """Return the first statement behind the docstring. Raises `CannotFixError` for a body on the line of the head."""
    if not isinstance(function.body, cst.IndentedBlock):
        raise CannotFixError("the body stands on the line of the head")
    statements = list(function.body.body)
    text = m.SimpleStatementLine(body=[m.Expr(value=m.SimpleString() | m.ConcatenatedString())])
    if m.matches(statements[0], text) and len(statements) > 1:
        del statements[0]
    return statements[0]
