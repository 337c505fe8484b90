"""Copy a value once, and read that copy where the program copies it again (FRX002).

Of `f(x.contiguous())` and `g(x.contiguous())`, the first copy gets a name, and `g` reads it, too. The value may not be
assigned again between them, the function writes nothing in place, and what reads the copies only computes.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
import libcst.matchers as m

from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import OpFacts
from frx_graph.fix.copy_calls import is_copy_call, is_function_clone
from frx_graph.fix.drop_copy import DROPPED
from frx_graph.fix.fixer import Fixer, FixSubject, OtherFixerError
from frx_graph.fix.local_names import (
    check_no_module_writes,
    check_nothing_is_written,
    check_simple_use,
    find_assigned_name,
    is_computing_read,
    list_occurrences,
)
from frx_graph.fix.source_file import CannotFixError, SourceFile
from frx_graph.passes.copies.copy_necessity import Necessity
from frx_graph.records import SourceEdit

_GRADIENT_MODES = frozenset({"enable_grad", "inference_mode", "no_grad", "set_grad_enabled"})
"""A copy that is made under one of these has no gradient."""

_HIDDEN_ASSIGNMENTS = m.FunctionDef() | m.Lambda() | m.Match() | m.Nonlocal() | m.Global()
_FORMAT = m.Arg(value=m.Attribute(value=m.Name("torch")))


def propose(subject: FixSubject) -> Sequence[SourceEdit]:
    """Return the edits that keep the first copy under a name, and read it at all places that repeat it."""
    verdicts = subject.judge_copies()
    repeated = [one for one in verdicts if one.necessity is Necessity.REPEATED]
    if not repeated or any(one.necessity in DROPPED for one in verdicts):
        raise OtherFixerError
    if any(one.copy.phase is Phase.BACKWARD for one in repeated):
        raise CannotFixError("autograd makes the copy, not the line")
    source = subject.source
    function = source.find_function(subject.finding.site)
    partners = dict.fromkeys(one.partner or "" for one in repeated)
    found = [_list_calls(subject, function, partner) for partner in partners]
    if any(calls != found[0] for calls in found):
        raise CannotFixError("not every call of the line repeats the same copies")
    first, *repeats = found[0]
    name = _check_value(source, function, first, repeats)
    check_nothing_is_written(source, function)
    check_no_module_writes(source)
    if m.findall(function, m.Name(value=m.MatchIfTrue(_GRADIENT_MODES.__contains__))):
        raise CannotFixError("the function switches gradients on or off")
    if m.findall(function.body, _HIDDEN_ASSIGNMENTS):
        raise CannotFixError("names may get values in functions within, or by matching")
    _check_evaluated(source, first)
    _check_only_computed_with(source, function, name, found[0])
    for call in found[0]:
        check_simple_use(source, function, call)
    kept = find_assigned_name(source, first)
    if kept is not None:
        _check_unchanged(source, function, kept, source.spans[source.get_statement(first)][1], repeats[-1])
        return [source.replace_outer(call, kept) for call in repeats]
    kept = _choose_name(source, function, name)
    return [
        source.insert_before(source.get_statement(first), [f"{kept} = {_get_compact_text(source, first)}"]),
        *(source.replace_outer(call, kept) for call in found[0]),
    ]


def _list_calls(subject: FixSubject, function: cst.FunctionDef, partner: str) -> list[cst.Call]:
    """Return the calls that make a first copy and all its repetitions, in the order of the source."""
    facts = subject.analysis.facts
    judged = subject.judge_graph().items()
    nodes = [partner, *(copy.node for copy, one in judged if one.partner == partner)]
    ops = [facts.op_by_node[node] for node in nodes if node in facts.op_by_node]
    if len(ops) != len(nodes) or any(not _is_same_place(op, subject) for op in ops):
        raise CannotFixError("the value is copied in another function, or another call of it, before")
    source = subject.source
    lines = dict.fromkeys(op.site.line for op in ops)
    calls = [call for line in lines for call in source.list_calls(function, line) if is_copy_call(call)]
    found = sorted(dict.fromkeys(calls), key=lambda call: source.spans[call][0])
    if len(found) != len(ops):
        raise CannotFixError("the lines also have other copies")
    return found


def _is_same_place(op: OpFacts, subject: FixSubject) -> bool:
    site, own = op.site, subject.finding.site
    return (site.file, site.function) == (own.file, own.function)


def _check_value(source: SourceFile, function: cst.FunctionDef, first: cst.Call, repeats: Sequence[cst.Call]) -> str:
    """Return the name of the value. Raises `CannotFixError` unless the first call always runs before the others, and
    they copy the same."""
    value = _get_copied(first)
    if not isinstance(value, cst.Name):
        raise CannotFixError("what is copied is not a local name")
    if not is_function_clone(first) and not all(m.matches(argument, _FORMAT) for argument in first.args):
        raise CannotFixError("the memory format is not a constant of torch")
    statement = source.get_statement(first)
    block = source.parents[statement]
    for call in repeats:
        if _get_compact_text(source, call) != _get_compact_text(source, first):
            raise CannotFixError("the value is copied again by another call")
        if not source.is_inside(call, block):
            raise CannotFixError("the first copy stands in a branch that need not run")
    _check_unchanged(source, function, value.value, source.spans[statement][0], repeats[-1])
    return value.value


def _get_compact_text(source: SourceFile, call: cst.Call) -> str:
    """Return the source of a call without white space."""
    return "".join(source.get_text(call).split())


def _check_evaluated(source: SourceFile, call: cst.Call) -> None:
    """Raise `CannotFixError` if the statement need not evaluate a call."""
    node: cst.CSTNode = call
    while not isinstance(node, cst.SimpleStatementLine):
        if isinstance(node, (cst.IfExp, cst.BooleanOperation, cst.Assert)):
            raise CannotFixError("the first copy is not made whenever its statement runs")
        node = source.parents[node]


def _check_only_computed_with(
    source: SourceFile, function: cst.FunctionDef, name: str, calls: Sequence[cst.Call]
) -> None:
    """Raise `CannotFixError` if anything between the first and the last copy may write into the value."""
    start, end = source.spans[source.get_statement(calls[0])][0], source.get_outer_span(calls[-1])[1]
    for node in list_occurrences(source, function, name):
        if not start <= source.spans[node][0] < end or any(source.is_inside(node, call) for call in calls):
            continue
        if source.is_read(node) and not is_computing_read(source, node):
            raise CannotFixError(f"what reads `{name}` on line {source.get_start_line(node)} may write into it")


def _get_copied(call: cst.Call) -> cst.BaseExpression:
    if is_function_clone(call):
        return call.args[0].value
    assert isinstance(call.func, cst.Attribute)
    return call.func.value


def _check_unchanged(source: SourceFile, function: cst.FunctionDef, name: str, start: int, last: cst.Call) -> None:
    """Raise `CannotFixError` if a name gets another value between a byte and the end of a call."""
    end = source.get_outer_span(last)[1]
    for node in list_occurrences(source, function, name):
        if start <= source.spans[node][0] < end and not source.is_read(node):
            raise CannotFixError(f"`{name}` is assigned again between the copies")


def _choose_name(source: SourceFile, function: cst.FunctionDef, value: str) -> str:
    """Return a name for the copy that the function does not have yet."""
    name = f"{value}_copy"
    while list_occurrences(source, function, name):
        name += "_"
    return name


FIXER = Fixer("FRX002", "share_copy", propose)
