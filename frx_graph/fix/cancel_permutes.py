"""Write a chain of permutes and transposes as one, or leave it out if it changes nothing (FRX003).

The calls must follow each other in one expression: `x.permute(0, 2, 1).transpose(1, 2)`. Their arguments must be
numbers, and one of the calls a `permute`, which settles the rank: then the chain is the same in every call.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import libcst as cst

from frx_graph.fix.calls import get_called_name
from frx_graph.fix.fixer import Fixer, FixSubject
from frx_graph.fix.source_file import CannotFixError, SourceFile
from frx_graph.passes.detectors.permute_storm import PROJECTION_TITLE
from frx_graph.records import SourceEdit

_REORDERING = frozenset({"permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis"})


def propose(subject: FixSubject) -> Sequence[SourceEdit]:
    """Return the edit of the one chain that begins on the finding's line."""
    finding, facts = subject.finding, subject.analysis.facts
    if finding.title == PROJECTION_TITLE:
        raise CannotFixError("weights would have to be stored in another order, also in saved states")
    source = subject.source
    function = source.find_function(finding.site)
    ops = [facts.op_by_node[node] for node in finding.nodes if node in facts.op_by_node]
    ends = dict.fromkeys(_find_end(source, call) for call in source.list_calls(function, finding.site.line))
    chains = [chain for end in ends if len(chain := _unwind(end)) > 1]
    if len(chains) != 1:
        raise CannotFixError("the calls do not follow each other in one expression")
    (chain,) = chains
    lines = {line for call in chain for line in source.list_lines(call)}
    if any((op.site.file, op.site.function) != (finding.site.file, finding.site.function) for op in ops):
        raise CannotFixError("the chain goes on in another function")
    if not {op.site.line for op in ops} <= lines:
        raise CannotFixError("the chain goes on outside of the expression")
    return [_rewrite(source, chain)]


def _find_end(source: SourceFile, call: cst.Call) -> cst.Call:
    """Return the last call of the chain that `call` is part of."""
    while True:
        attribute = source.parents.get(call)
        above = source.parents.get(attribute) if isinstance(attribute, cst.Attribute) else None
        if not isinstance(above, cst.Call) or above.func is not attribute or not _is_link(above):
            return call
        call = above


def _is_link(call: cst.Call) -> bool:
    return isinstance(call.func, cst.Attribute) and call.func.attr.value in _REORDERING


def _unwind(call: cst.Call) -> list[cst.Call]:
    """Return the calls of a chain that ends with `call`, the last first."""
    chain: list[cst.Call] = []
    node: cst.BaseExpression = call
    while isinstance(node, cst.Call) and _is_link(node):
        assert isinstance(node.func, cst.Attribute)
        chain.append(node)
        node = node.func.value
    return chain


def _rewrite(source: SourceFile, chain: Sequence[cst.Call]) -> SourceEdit:
    first, last = chain[-1], chain[0]
    ranks = {len(list(_read_numbers(source, call))) for call in chain if get_called_name(call) == "permute"}
    if len(ranks) != 1:
        raise CannotFixError("no `permute` settles how many dimensions there are")
    (rank,) = ranks
    order = list(range(rank))
    for call in reversed(chain):
        order = [order[index] for index in _read_order(source, call, rank)]
    identity = order == list(range(rank))
    if identity and isinstance(source.parents.get(last), cst.Return):
        raise CannotFixError("the value itself would be returned, and not a view of it")
    text = "" if identity else f".permute({', '.join(map(str, order))})"
    return source.replace_methods(first, last, text)


def _read_order(source: SourceFile, call: cst.Call, rank: int) -> list[int]:
    """Return the order of dimensions that a call gives: entry `i` is where dimension `i` comes from."""
    name, order = get_called_name(call), list(range(rank))
    numbers = list(_read_numbers(source, call))
    if not all(-rank <= number < rank for number in numbers):
        raise CannotFixError(f"a number of `{name}` names a dimension that is not there")
    if name == "permute":
        if sorted(number % rank for number in numbers) != order:
            raise CannotFixError("the arguments of `permute` are not a number for each dimension")
        return [number % rank for number in numbers]
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
