"""Give a convolution the zeros that `F.pad` writes around its image (FRX016).

`self.conv(F.pad(x, (1, 1, 1, 1)))` becomes `self.conv(x)`, and `nn.Conv2d(...)` gets `padding=1`. The padding may also
stand in the statement before. Only numbers that stand in the source are moved, and the module must have no other use.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from frx_graph.fix.calls import list_made_kinds
from frx_graph.fix.fixer import Fixer, FixSubject
from frx_graph.fix.local_names import find_assigned_name, is_in_loop, list_occurrences
from frx_graph.fix.source_file import CannotFixError, SourceFile
from frx_graph.records import SourceEdit

_PAD = m.Call(func=m.Attribute(attr=m.Name("pad")) | m.Name("pad"))
_MODULE_CALL = m.Call(func=m.Attribute(value=m.Name("self"), attr=m.Name()), args=[m.Arg(keyword=None, star="")])
_RANKS = {"Conv1d": 1, "Conv2d": 2, "Conv3d": 3}
_PADDING_POSITION = 4


@dataclass(frozen=True, slots=True)
class _Padding:
    """A call of `F.pad`: the image as source, and the zeros on each side of each dimension, the first one first."""

    call: cst.Call
    image: cst.BaseExpression
    zeros: tuple[int, ...]


def propose(subject: FixSubject) -> Sequence[SourceEdit]:
    """Return two edits or more: of the call of `F.pad`, and of the convolution's arguments."""
    source = subject.source
    function = source.find_function(subject.finding.site)
    calls = [call for call in source.list_calls(function, subject.finding.site.line) if m.matches(call, _PAD)]
    if len(calls) != 1:
        raise CannotFixError("the line does not have one call of `F.pad`")
    padding = _read_padding(source, calls[0])
    reader, edits = _find_reader(source, function, padding)
    return [*edits, _add_zeros(source, _find_construction(source, function, reader), padding.zeros)]


def _read_padding(source: SourceFile, call: cst.Call) -> _Padding:
    given = dict(_name_arguments(call, ("input", "pad", "mode", "value")))
    image, numbers = given.get("input"), given.get("pad")
    if image is None or numbers is None:
        raise CannotFixError("the arguments of `F.pad` are not all there")
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


def _find_reader(
    source: SourceFile, function: cst.FunctionDef, padding: _Padding
) -> tuple[cst.Call, Sequence[SourceEdit]]:
    """Return the call of the convolution, and the edits that remove the padding in front of it."""
    if is_in_loop(source, padding.call, function):
        raise CannotFixError("it stands in a loop, or in a function within")
    above = source.parents[padding.call]
    if isinstance(above, cst.Arg):
        reader = source.parents[above]
        if isinstance(reader, cst.Call) and m.matches(reader, _MODULE_CALL):
            return reader, [source.replace_outer(padding.call, source.get_operand(padding.image))]
        raise CannotFixError("what reads the padded image is not a module of `self`")
    name = find_assigned_name(source, padding.call)
    statement = source.parents[padding.call]
    if name is None or not isinstance(statement, cst.Assign):
        raise CannotFixError("the padded image is neither passed to a convolution nor assigned to a name")
    reader, read = _find_next_reader(source, function, statement, name)
    image = source.get_text(padding.image)
    moved = [] if image == name else [source.replace_node(read, source.get_operand(padding.image))]
    return reader, [source.remove_statement(statement), *moved]


def _find_next_reader(
    source: SourceFile, function: cst.FunctionDef, statement: cst.Assign, name: str
) -> tuple[cst.Call, cst.Name]:
    """Return the call in the next statement that alone reads `name`, and where it does."""
    following = source.get_next_statement(statement)
    start, end = source.spans[following]
    later = [node for node in list_occurrences(source, function, name) if source.spans[node][0] >= start]
    reads = [node for node in later if source.spans[node][0] < end and source.is_read(node)]
    reader = source.parents.get(source.parents[reads[0]]) if len(reads) == 1 else None
    if not isinstance(reader, cst.Call) or not m.matches(reader, _MODULE_CALL):
        raise CannotFixError(f"the next statement does not pass `{name}` to a module of `self` alone")
    small = following.body[0]
    if not (isinstance(small, cst.Assign) and find_assigned_name(source, small.value) == name) and len(later) > 1:
        raise CannotFixError(f"something else reads the padded `{name}`, too")
    return reader, reads[0]


def _find_construction(source: SourceFile, function: cst.FunctionDef, reader: cst.Call) -> cst.Call:
    """Return the `nn.Conv2d(...)` that makes the module which `reader` calls, and nothing else calls."""
    assert isinstance(reader.func, cst.Attribute)
    name = reader.func.attr.value
    owner = source.find_owner(function)
    named = m.findall(source.module, m.Attribute(attr=m.Name(name)))
    stored = [node for node in named if isinstance(source.parents.get(node), cst.AssignTarget)]
    texts = m.findall(source.module, m.SimpleString(value=m.MatchIfTrue(lambda text: text.strip("'\"") == name)))
    if len(stored) != 1 or len(named) != 2 or texts:
        raise CannotFixError(f"`{name}` is used in more places than where it is made and called")
    assign = source.parents[source.parents[stored[0]]]
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1 or not source.is_inside(assign, owner):
        raise CannotFixError(f"`self.{name}` is made outside of the class, or has a second name")
    if not isinstance(assign.value, cst.Call) or not list_made_kinds(source, name) <= _RANKS.keys():
        raise CannotFixError(f"`self.{name}` is not made by a call of nn.Conv1d, nn.Conv2d or nn.Conv3d")
    return assign.value


def _add_zeros(source: SourceFile, made: cst.Call, zeros: tuple[int, ...]) -> SourceEdit:
    assert isinstance(made.func, cst.Attribute)
    rank = _RANKS[made.func.attr.value]
    if any(zeros[:-rank]):
        raise CannotFixError("`F.pad` also pads channels or the batch")
    zeros = (*((0,) * (rank - len(zeros))), *zeros[-rank:])
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
