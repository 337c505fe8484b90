"""The classes of the advised model: where `forward` is written, and what `__init__` ends with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import libcst as cst
import libcst.matchers as m
from torch import nn

from frx_graph.capture.call_site import MODEL_PATH, CallSite, is_foreign
from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.facts.layout import name_channels_last
from frx_graph.fix.imports import name_torch
from frx_graph.fix.local_names import check_nothing_is_written
from frx_graph.fix.source_file import CannotFixError, SourceFile
from frx_graph.records import SourceEdit

_READS_STRIDES = frozenset({"view", "view_as", "as_strided", "stride", "is_contiguous", "data_ptr", "numpy"})
"""Methods whose result, or error, depends on strides."""


def find_forwards(model: Callable[..., Any]) -> Mapping[str, CallSite]:
    """Return the places of the `forward` of all modules, by their paths in call sites, but for classes of torch."""
    if not isinstance(model, nn.Module):
        return {}
    found = {}
    for name, module in model.named_modules(remove_duplicate=False):
        code = getattr(inspect.unwrap(getattr(type(module), "forward", module)), "__code__", None)
        if code is not None and code.co_name == "forward" and not is_foreign(code.co_filename):
            path = f"{MODEL_PATH}.{name}" if name else MODEL_PATH
            found[path] = CallSite(code.co_filename, code.co_firstlineno, code.co_name)
    return found


def convert_weights(source: SourceFile, forward: cst.FunctionDef, facts: GraphFacts, rank: int) -> Sequence[SourceEdit]:
    """Return the edits that end the class's `__init__` with its weights in channels-last, of so many dimensions.

    Raises `CannotFixError` if it would not convert them, or code of the class may need plain images.
    """
    owner = source.find_owner(forward)
    made = _find_method(owner, "__init__")
    if made is None:
        raise CannotFixError("the class does not define `__init__`")
    check_no_stride_readers(source)
    check_nothing_is_written(source, forward)
    if m.findall(made.body, m.Return()):
        raise CannotFixError("its `__init__` returns early")
    check_ranks(facts, rank)
    torch, imported = name_torch(source)
    memory_format = name_channels_last(rank).replace("torch", torch)
    return [*imported, source.insert_behind(made, f"self.to(memory_format={memory_format})")]


def check_no_stride_readers(source: SourceFile) -> None:
    """Raise `CannotFixError` if a call in the file may need plain images. Other files are left to the trial."""
    for node in m.findall(source.module, m.Call(func=m.Attribute(attr=m.MatchIfTrue(_is_reader)))):
        raise CannotFixError(f"line {source.get_start_line(node)} may need plain images")


def check_ranks(facts: GraphFacts, rank: int) -> None:
    """Raise `CannotFixError` if a weight has more than three dimensions, and not those of the memory format."""
    if any(len(value.shape) not in (rank, 0, 1, 2, 3) for value in facts.values.values() if value.is_parameter):
        raise CannotFixError("the model also has weights of other dimensions")


def _is_reader(name: cst.Name) -> bool:
    return name.value in _READS_STRIDES


def _find_method(owner: cst.ClassDef, name: str) -> cst.FunctionDef | None:
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
