"""Give a convolution the zeros that `F.pad` writes around its image (FRX016).

`self.conv(F.pad(x, (1, 1, 1, 1)))` becomes `self.conv(x)`, and `nn.Conv2d(...)` in `__init__` gets `padding=1`. Only
numbers that stand in the source are moved.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from frx_graph.fix.drop_copy import remove_statement
from frx_graph.fix.fixer import Fixer, FixSubject
from frx_graph.fix.local_names import find_assigned_name, list_uses
from frx_graph.fix.source_file import CannotFixError, SourceFile
from frx_graph.records import SourceEdit

_PAD = m.Call(func=m.Attribute(attr=m.Name("pad")) | m.Name("pad"))
_MODULE_CALL = m.Call(func=m.Attribute(value=m.Name("self"), attr=m.Name()))
_CONVOLUTIONS = {"Conv1d": 1, "Conv2d": 2, "Conv3d": 3}
_PADDING_POSITION = 4


@dataclass(frozen=True, slots=True)
class _Padding:
    """A call of `F.pad`: the image as source, and the zeros on each side of each dimension, the first one first."""

    call: cst.Call
    image: cst.BaseExpression
    zeros: tuple[int, ...]


def propose(subject: FixSubject) -> Sequence[SourceEdit] | None:
    """Return two edits: of the call of `F.pad`, and of the convolution's arguments."""
    source = subject.source
    function = source.find_function(subject.finding.site)
    calls = [call for call in source.list_calls(function, subject.finding.site.line) if m.matches(call, _PAD)]
    if len(calls) != 1:
        raise CannotFixError("the line does not have one call of `F.pad`")
    padding = _read_padding(source, calls[0])
    reader, removal = _find_reader(source, function, padding)
    made = _find_construction(source, function, reader)
    return [removal, _add_zeros(source, made, padding.zeros)]


def _read_padding(source: SourceFile, call: cst.Call) -> _Padding:
    names = ("input", "pad", "mode", "value")
    given = dict(_name_arguments(call, names))
    image, numbers = given.get("input"), given.get("pad")
    if image is None or numbers is None:
        raise CannotFixError("the arguments of `F.pad` cannot be told apart")
    if "mode" in given and _read_literal(source, given["mode"]) != "constant":
        raise CannotFixError("`F.pad` does not pad with a constant")
    if "value" in given and _read_literal(source, given["value"]) not in (0, None):
        raise CannotFixError("`F.pad` does not pad with zeros")
    pads = _read_literal(source, numbers)
    if not isinstance(pads, (tuple, list)) or not all(isinstance(one, int) for one in pads) or len(pads) % 2:
        raise CannotFixError("the numbers of `F.pad` do not stand in the source")
    if any(pads[index] != pads[index + 1] for index in range(0, len(pads), 2)):
        raise CannotFixError("`F.pad` adds more on one side than on the other")
    return _Padding(call, image, tuple(pads[-2::-2]))


def _name_arguments(call: cst.Call, names: Sequence[str]) -> Iterator[tuple[str, cst.BaseExpression]]:
    for position, argument in enumerate(call.args):
        if argument.star or (argument.keyword is None and position >= len(names)):
            raise CannotFixError("arguments are passed with stars, or there are too many")
        yield (names[position] if argument.keyword is None else argument.keyword.value), argument.value


def _read_literal(source: SourceFile, node: cst.BaseExpression) -> object:
    try:
        return ast.literal_eval(source.get_text(node))
    except (ValueError, SyntaxError) as error:
        raise CannotFixError(f"`{source.get_text(node)}` is not a number that stands in the source") from error


def _find_reader(source: SourceFile, function: cst.FunctionDef, padding: _Padding) -> tuple[cst.Call, SourceEdit]:
    """Return the call of the convolution, and the removal of the padding in front of it."""
    above = source.parents[padding.call]
    if isinstance(above, cst.Arg):
        reader = source.parents[above]
        if isinstance(reader, cst.Call) and m.matches(reader, _MODULE_CALL) and len(reader.args) == 1:
            return reader, source.replace_outer(padding.call, source.get_text(padding.image))
        raise CannotFixError("what reads the padded image is not a module of `self`")
    name = find_assigned_name(source, padding.call)
    statement = source.parents[padding.call]
    if name is None or not isinstance(statement, cst.Assign):
        raise CannotFixError("the padded image is neither passed to a convolution nor assigned to a name")
    if not m.matches(padding.image, m.Name()):
        removal = source.replace_outer(padding.call, source.get_text(padding.image))
    elif source.get_text(padding.image) == name:
        removal = remove_statement(source, statement)
    else:
        removal = source.replace_outer(padding.call, source.get_text(padding.image))
    reader = _find_next_reader(source, function, statement, name)
    return reader, removal


def _find_next_reader(source: SourceFile, function: cst.FunctionDef, statement: cst.Assign, name: str) -> cst.Call:
    """Return the only call that reads `name` before it gets another value."""
    end = source.spans[statement][1]
    line = source.parents[statement]
    uses = sorted(list_uses(source, function, name), key=lambda use: source.spans[use.node][0])
    later = [use for use in uses if source.spans[use.node][0] >= end]
    if source.parents.get(line) is not function.body or not later or (later[0].assigns and len(later) < 2):
        raise CannotFixError(f"`{name}` is padded in a branch or loop, or not read behind it")
    # `x = self.conv(x)`: the name that is assigned stands in front of the one that is read.
    first = later[1] if later[0].assigns else later[0]
    above = source.parents[first.node]
    reader = source.parents.get(above)
    if not isinstance(above, cst.Arg) or not isinstance(reader, cst.Call) or not m.matches(reader, _MODULE_CALL):
        raise CannotFixError(f"`{name}` is not read by a module of `self` first")
    if len(reader.args) != 1:
        raise CannotFixError("the convolution gets several arguments")
    if source.parents.get(source.get_statement(reader)) is not function.body:
        raise CannotFixError(f"`{name}` is read in a branch or loop")
    own = source.get_statement(reader)
    rest = [use for use in later if source.spans[use.node][0] >= source.spans[own][1]]
    reassigned = any(use.assigns for use in later if use not in rest)
    if rest and not reassigned and not _is_assigned_first(source, rest[0].node):
        raise CannotFixError(f"something else reads the padded `{name}`, too")
    inside = [use for use in later if use not in rest and not use.assigns]
    if len(inside) != 1:
        raise CannotFixError(f"something else reads the padded `{name}`, too")
    return reader


def _is_assigned_first(source: SourceFile, node: cst.Name) -> bool:
    """Return True if the statement of `node` gives the name another value without reading it."""
    above = source.parents[node]
    statement = source.get_statement(node)
    return isinstance(above, cst.AssignTarget) and len(m.findall(statement, m.Name(node.value))) == 1


def _find_construction(source: SourceFile, function: cst.FunctionDef, reader: cst.Call) -> cst.Call:
    """Return the `nn.Conv2d(...)` that makes the module which `reader` calls, and nothing else calls."""
    assert isinstance(reader.func, cst.Attribute)
    name = reader.func.attr.value
    owner: cst.CSTNode | None = function
    while owner is not None and not isinstance(owner, cst.ClassDef):
        owner = source.parents.get(owner)
    if owner is None:
        raise CannotFixError("the padding is in no class")
    named = m.findall(source.module, m.Attribute(attr=m.Name(name)))
    stored = [node for node in named if isinstance(source.parents.get(node), cst.AssignTarget)]
    if len(stored) != 1 or len(named) != 2:
        raise CannotFixError(f"`{name}` is used in more places than where it is made and called")
    assign = source.parents[source.parents[stored[0]]]
    if not isinstance(assign, cst.Assign) or not _is_inside(source, assign, owner):
        raise CannotFixError(f"`self.{name}` is made outside of the class")
    value = assign.value
    kind = value.func.attr.value if isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) else None
    kind = value.func.value if isinstance(value, cst.Call) and isinstance(value.func, cst.Name) else kind
    if not isinstance(value, cst.Call) or kind not in _CONVOLUTIONS:
        raise CannotFixError(f"`self.{name}` is not made by a call of nn.Conv1d, nn.Conv2d or nn.Conv3d")
    return value


def _is_inside(source: SourceFile, node: cst.CSTNode, owner: cst.CSTNode) -> bool:
    start, end = source.spans[owner]
    return start <= source.spans[node][0] < end


def _add_zeros(source: SourceFile, made: cst.Call, zeros: tuple[int, ...]) -> SourceEdit:
    kind = made.func.attr.value if isinstance(made.func, cst.Attribute) else source.get_text(made.func)
    rank = _CONVOLUTIONS[kind]
    if len(zeros) > rank:
        if any(zeros[:-rank]):
            raise CannotFixError("`F.pad` also pads channels or the batch")
        zeros = zeros[-rank:]
    zeros = (*((0,) * (rank - len(zeros))), *zeros)
    own: cst.BaseExpression | None = None
    for position, argument in enumerate(made.args):
        if argument.star:
            raise CannotFixError("the convolution's arguments are passed with stars")
        keyword = argument.keyword.value if argument.keyword is not None else ""
        if keyword == "padding_mode":
            raise CannotFixError("the convolution has a padding_mode")
        if keyword == "padding" or (not keyword and position == _PADDING_POSITION):
            own = argument.value
    if own is None:
        return _insert_argument(source, made, f"padding={_format(zeros)}")
    numbers = _read_literal(source, own)
    before = (numbers,) * rank if isinstance(numbers, int) else numbers
    if not isinstance(before, (tuple, list)) or len(before) != rank or not all(isinstance(one, int) for one in before):
        raise CannotFixError("the padding of the convolution does not stand in the source as numbers")
    return source.replace_outer(own, _format(tuple(one + more for one, more in zip(before, zeros, strict=True))))


def _insert_argument(source: SourceFile, call: cst.Call, text: str) -> SourceEdit:
    """Return the insertion of an argument behind the last."""
    if not call.args:
        raise CannotFixError("the convolution has no arguments")
    end = source.get_outer_span(call.args[-1].value)[1]
    return source.make_edit(end, end, f", {text}")


def _format(numbers: tuple[int, ...]) -> str:
    return str(numbers[0]) if len(set(numbers)) == 1 else str(numbers)


FIXER = Fixer("FRX016", "convolution_padding", propose)
