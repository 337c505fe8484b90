"""Find where a function reads its names, whether a read only computes, and what it writes in place."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
import libcst.matchers as m

from frx_graph.fix.calls import get_called_name, is_own_module, is_torch_function, list_made_kinds
from frx_graph.fix.source_file import CannotFixError, SourceFile

_METHODS = frozenset(
    {"abs", "add", "amax", "amin", "argmax", "bmm", "dim", "div", "exp", "matmul", "mean", "mm", "mul", "norm", "numel"}
    | {"pow", "relu", "sigmoid", "size", "softmax", "sqrt", "square", "std", "sub", "sum", "tanh", "var"}
)
"""Methods whose result is new memory, or no tensor, whatever the strides."""
_ATTRIBUTES = frozenset({"device", "dtype", "ndim", "shape"})
_FUNCTIONS = (
    _METHODS
    | {"baddbmm", "cat", "conv1d", "conv2d", "conv3d", "einsum", "gelu", "group_norm", "layer_norm", "linear"}
    | {"scaled_dot_product_attention", "silu", "stack", "where"}
)
_MODULES = frozenset({"Conv1d", "Conv2d", "Conv3d", "GELU", "GroupNorm", "LayerNorm", "Linear", "Softmax"})
_IN_PLACE_FIRST = frozenset({"Hardsigmoid", "Hardswish", "Mish", "ReLU", "ReLU6", "SELU", "SiLU"})
_IN_PLACE_SECOND = frozenset({"CELU", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "ELU", "LeakyReLU"})
"""Modules of `nn` whose first or second argument is `inplace`."""


def _match_made(kinds: frozenset[str], arguments: int) -> m.Call:
    """Return the matcher of a call that makes one of these modules with so many positional arguments."""
    name = m.Name(value=m.MatchIfTrue(kinds.__contains__))
    return m.Call(func=m.Attribute(attr=name) | name, args=[m.AtLeastN(m.Arg(keyword=None), n=arguments)])


_MADE_IN_PLACE = (
    _match_made(_IN_PLACE_FIRST, 1)
    | _match_made(_IN_PLACE_SECOND, 2)
    | m.Arg(keyword=m.Name("inplace"), value=m.DoesNotMatch(m.Name("False")))
)
_LOOPS = (cst.For, cst.While, cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp)


def list_occurrences(source: SourceFile, function: cst.FunctionDef, name: str) -> list[cst.Name]:
    """Return the places in a function's body where `name` is read or assigned, in their order; also in functions
    within."""
    found = [node for node in m.findall(function.body, m.Name(name)) if isinstance(node, cst.Name)]
    return sorted((node for node in found if source.is_variable(node)), key=lambda node: source.spans[node][0])


def find_assigned_name(source: SourceFile, value: cst.CSTNode) -> str | None:
    """Return the one name that a statement assigns an expression to, as it is; None if it does not."""
    parent = source.parents.get(value)
    if not isinstance(parent, cst.Assign) or len(parent.targets) != 1 or parent.value is not value:
        return None
    target = parent.targets[0].target
    return target.value if isinstance(target, cst.Name) else None


def is_computing_read(source: SourceFile, node: cst.BaseExpression) -> bool:
    """Return True where an expression is an operand of something that computes: it keeps no view of it, writes nothing
    into it, and takes any strides, whatever the sizes."""
    parent = source.parents.get(node)
    if isinstance(parent, (cst.BinaryOperation, cst.UnaryOperation, cst.ComparisonTarget)):
        return True
    if isinstance(parent, cst.Attribute) and parent.value is node:
        if parent.attr.value in _ATTRIBUTES:
            return True
        call = source.parents.get(parent)
        return isinstance(call, cst.Call) and call.func is parent and parent.attr.value in _METHODS
    call = source.parents.get(parent) if isinstance(parent, cst.Arg) else None
    if isinstance(parent, cst.Arg) and isinstance(call, cst.Call):
        return not parent.star and _computes(source, call)
    # In a list of tensors: `torch.cat([x, y])`.
    if isinstance(parent, cst.Element) and isinstance(outer := source.parents.get(parent), (cst.List, cst.Tuple)):
        return is_computing_read(source, outer)
    return False


def _computes(source: SourceFile, call: cst.Call) -> bool:
    if any(one.keyword is not None and one.keyword.value in ("out", "inplace") for one in call.args):
        return False
    if is_torch_function(call):
        name, positional = get_called_name(call), sum(one.keyword is None for one in call.args)
        # The second argument of these is `inplace`.
        return name in _FUNCTIONS and not (name in ("relu", "silu") and positional > 1)
    if is_own_module(call):
        kinds = list_made_kinds(source, get_called_name(call))
        return bool(kinds) and kinds <= _MODULES
    # An operand of a method: `x.matmul(y)`.
    return isinstance(call.func, cst.Attribute) and call.func.attr.value in _METHODS


def check_nothing_is_written(source: SourceFile, function: cst.FunctionDef) -> None:
    """Raise `CannotFixError` if a function writes into values: into whose memory, the source does not show."""
    if (node := next(_list_writes(function), None)) is not None:
        raise CannotFixError(f"line {source.get_start_line(node)} writes in place, perhaps into the same memory")


def check_no_module_writes(source: SourceFile) -> None:
    """Raise `CannotFixError` if the file makes modules that write into their inputs."""
    for made in m.findall(source.module, _MADE_IN_PLACE):
        raise CannotFixError(f"line {source.get_start_line(made)} makes what may write in place")


def _list_writes(function: cst.FunctionDef) -> Iterator[cst.CSTNode]:
    yield from m.findall(function.body, m.AugAssign() | m.Del())
    stored = m.Subscript() | m.Attribute(value=m.Attribute() | m.Subscript() | m.Call())
    yield from m.findall(function.body, m.AssignTarget(target=stored))
    yield from m.findall(function.body, m.Arg(keyword=m.Name("out") | m.Name("inplace")))
    for call in m.findall(function.body, m.Call()):
        name = get_called_name(call) if isinstance(call, cst.Call) else ""
        if name.endswith("_") and not name.endswith("__"):
            yield call


def is_in_loop(source: SourceFile, node: cst.CSTNode, function: cst.FunctionDef) -> bool:
    """Return True for code that runs several times in one call of the function, or in a function within."""
    while (parent := source.parents.get(node)) is not None and parent is not function:
        if isinstance(parent, (*_LOOPS, cst.FunctionDef, cst.Lambda, cst.ClassDef)):
            return True
        node = parent
    return False


def check_simple_use(source: SourceFile, function: cst.FunctionDef, value: cst.BaseExpression) -> None:
    """Raise `CannotFixError` unless an expression is read once by something that computes, or assigned to a name that
    only such reads follow."""
    if is_in_loop(source, value, function):
        raise CannotFixError("it stands in a loop, or in a function within")
    name = find_assigned_name(source, value)
    if name is None:
        if not is_computing_read(source, value):
            raise CannotFixError("what reads it may need its strides, or keep it, for other sizes or in other branches")
        return
    end = source.spans[source.get_statement(value)][1]
    for node in list_occurrences(source, function, name):
        if source.spans[node][0] < end or (not source.is_read(node) and not is_in_loop(source, node, function)):
            continue
        if is_in_loop(source, node, function) or not is_computing_read(source, node):
            where = source.get_start_line(node)
            raise CannotFixError(f"what reads `{name}` on line {where} may need its strides, or keep it")
