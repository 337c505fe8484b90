"""Write a chain of permutes and transposes as one, or leave it out if it changes nothing (FRX003).

The calls must follow each other in one expression: `x.transpose(1, 2).transpose(1, 2)`. Their arguments must be
numbers, so that the chain is the same in every call.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import libcst as cst

from frx_graph.fix.changed_strides import explain_obstacle
from frx_graph.fix.drop_copy import check_uses
from frx_graph.fix.fixer import Fixer, FixSubject
from frx_graph.fix.source_file import CannotFixError, SourceFile
from frx_graph.passes.copies.view_chain import find_readers
from frx_graph.passes.detectors.permute_storm import PROJECTION_TITLE
from frx_graph.records import SourceEdit

_COPIES = frozenset({"contiguous", "clone"})
_REORDERING = frozenset({"permute", "transpose", "swapaxes", "swapdims", "t", "movedim", "moveaxis"})


def propose(subject: FixSubject) -> Sequence[SourceEdit] | None:
    """Return the edit of the one chain that begins on the finding's line."""
    finding, facts = subject.finding, subject.analysis.facts
    if finding.title == PROJECTION_TITLE:
        raise CannotFixError("weights would have to be stored in another order, also in saved states")
    source = subject.source
    function = source.find_function(finding.site)
    ops = [facts.op_by_node[node] for node in finding.nodes if node in facts.op_by_node]
    lines = {op.site.line for op in ops}
    ends = dict.fromkeys(_find_end(source, call) for call in source.list_calls(function, finding.site.line))
    chains = [chain for end in ends if len(chain := _unwind(end)) > 1]
    if len(chains) != 1:
        raise CannotFixError("the calls do not follow each other in one expression")
    (chain,) = chains
    if not lines <= {line for call in chain for line in source.list_lines(call)}:
        raise CannotFixError("the chain goes on outside of the expression")
    return [_rewrite(subject, source, function, chain, len(facts.values[ops[0].inputs[0]].shape))]


def _find_end(source: SourceFile, call: cst.Call) -> cst.Call:
    """Return the last call of the chain that `call` is part of."""
    while True:
        attribute = source.parents.get(call)
        above = source.parents.get(attribute) if isinstance(attribute, cst.Attribute) else None
        if not isinstance(above, cst.Call) or above.func is not attribute or not _is_link(above):
            return call
        call = above


def _is_link(call: cst.Call) -> bool:
    """Return True for reorderings, and for copies between them."""
    name = _get_name(call) if isinstance(call.func, cst.Attribute) else ""
    return name in _REORDERING or (name in _COPIES and not call.args)


def _unwind(call: cst.Call) -> list[cst.Call]:
    """Return the calls of a chain that ends with `call`, the last first."""
    chain: list[cst.Call] = []
    node: cst.BaseExpression = call
    while isinstance(node, cst.Call) and _is_link(node):
        assert isinstance(node.func, cst.Attribute)
        chain.append(node)
        node = node.func.value
    while chain and _get_name(chain[0]) in _COPIES:
        # A copy behind the last reordering is not between two.
        del chain[0]
    return chain


def _rewrite(
    subject: FixSubject, source: SourceFile, function: cst.FunctionDef, chain: Sequence[cst.Call], rank: int
) -> SourceEdit:
    first, last = chain[-1], chain[0]
    assert isinstance(first.func, cst.Attribute)
    order = list(range(rank))
    copies = [call for call in chain if _get_name(call) in _COPIES]
    for call in reversed(chain):
        if call not in copies:
            moved = _read_order(source, call, rank)
            order = [order[index] for index in moved]
    identity = order == list(range(rank))
    if copies and not identity:
        raise CannotFixError("copies stand between the calls, and the whole is not the value itself")
    if copies:
        _check_copies(subject)
        check_uses(source, function, last)
    start = source.spans[first.func.dot][0]
    text = "" if identity else f".permute({', '.join(map(str, order))})"
    return source.make_edit(start, source.spans[last][1], text)


def _check_copies(subject: FixSubject) -> None:
    """Raise `CannotFixError` if something behind the chain may change the value, which would then be the source's own
    memory, or if the caller sees its strides."""
    facts = subject.analysis.facts
    for node in subject.finding.nodes:
        op = facts.op_by_node.get(node)
        if op is None:
            continue
        for name in op.outputs:
            if any(name in reader.mutates for reader in find_readers(facts, name)):
                raise CannotFixError("the copy between the calls is written to")
    first, last = (facts.op_by_node[subject.finding.nodes[at]] for at in (0, -1))
    source = facts.values[first.inputs[0]]
    for name in last.outputs:
        if facts.values[name].shape != source.shape:
            raise CannotFixError("the finding goes on behind the expression")
        if obstacle := explain_obstacle(facts, name, source.strides):
            raise CannotFixError(obstacle)


def _get_name(call: cst.Call) -> str:
    assert isinstance(call.func, cst.Attribute)
    return call.func.attr.value


def _read_order(source: SourceFile, call: cst.Call, rank: int) -> list[int]:
    """Return the order of dimensions that a call gives: entry `i` is where dimension `i` comes from."""
    name, order = _get_name(call), list(range(rank))
    numbers = list(_read_numbers(source, call))
    if name == "permute":
        if sorted(number % rank for number in numbers) != order:
            raise CannotFixError("the arguments of `permute` are not a number for each dimension")
        return [number % rank for number in numbers]
    if name == "t":
        return order[::-1]
    if len(numbers) != 2:
        raise CannotFixError(f"the arguments of `{name}` are not two numbers")
    first, second = (number % rank for number in numbers)
    if name in ("movedim", "moveaxis"):
        order.insert(second, order.pop(first))
    else:
        order[first], order[second] = order[second], order[first]
    return order


def _read_numbers(source: SourceFile, call: cst.Call) -> Iterator[int]:
    for argument in call.args:
        if argument.keyword is not None or argument.star:
            raise CannotFixError("an argument is not a plain number")
        try:
            number = ast.literal_eval(source.get_text(argument.value))
        except (ValueError, SyntaxError) as error:
            raise CannotFixError("an argument is not a plain number") from error
        if isinstance(number, int):
            yield number
        elif isinstance(number, (tuple, list)) and all(isinstance(one, int) for one in number):
            yield from number
        else:
            raise CannotFixError("an argument is not a plain number")


FIXER = Fixer("FRX003", "cancel_permutes", propose)
