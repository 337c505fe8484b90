"""Drop a copy that the program asks for, if everything behind it takes the source as it is (FRX002).

`x.contiguous()`, `x.clone()`, `torch.clone(x)` and `x.to(memory_format=...)` become `x`. The graph has shown that no
operator needs the copy. The source must not show one that this call did not run: code that reads strides, views that
other sizes may not allow, writes into the copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst
import libcst.matchers as m

from frx_graph.capture.captured_graph import Phase
from frx_graph.fix.fixer import Fixer, FixSubject
from frx_graph.fix.local_names import find_assigned_name, list_uses
from frx_graph.fix.source_file import CannotFixError, SourceFile
from frx_graph.passes.copies.copy_necessity import Necessity, Verdict, judge_copies
from frx_graph.passes.copies.view_chain import is_view
from frx_graph.records import CopyKind, SourceEdit

_DROPPED = frozenset({Necessity.UNUSED, Necessity.SAME_LAYOUT, Necessity.UNNEEDED, Necessity.UNDONE})
_KEPT = {
    Necessity.CONSTANT: "what is copied would have to be stored in another order, also in saved states",
    Necessity.REPEATED: "the copy that is made first would have to be kept under a name",
    Necessity.LOOP: "the copy would have to move out of the loop",
}
_METHODS = {"contiguous": "aten.clone", "clone": "aten.clone", "to": "aten._to_copy"}
_JOINING_VIEWS = frozenset({"aten.view", "aten._unsafe_view", "aten.flatten"})
READS_STRIDES = frozenset(
    {"view", "view_as", "as_strided", "stride", "is_contiguous", "data_ptr", "storage", "untyped_storage", "numpy"}
)
"""Methods whose result, or error, depends on strides."""
_METHOD_CALL = m.Call(func=m.Attribute(attr=m.OneOf(*(m.Name(name) for name in _METHODS))))
_FUNCTION_CALL = m.Call(func=m.Attribute(value=m.Name("torch"), attr=m.Name("clone")), args=[m.Arg(keyword=None)])


def propose(subject: FixSubject) -> Sequence[SourceEdit] | None:
    """Return the removal of the copies of a line, if none of them is needed."""
    verdicts = judge_copies(subject.analysis, subject.finding.copies)
    if not any(verdict.necessity in _DROPPED for verdict in verdicts):
        raise CannotFixError(_explain_kept(verdicts))
    for verdict in verdicts:
        if verdict.copy.phase is Phase.BACKWARD:
            raise CannotFixError("autograd makes the copy, not the line")
        if verdict.copy.kind is CopyKind.RESHAPE:
            raise CannotFixError("a reshape makes the copy, and its result would have to be a view")
        if verdict.necessity not in _DROPPED:
            raise CannotFixError("the line also makes a copy that is needed, or that another fix is for")
        if verdict.necessity is Necessity.UNDONE and _is_later(subject, verdict):
            raise CannotFixError("it is no copy any more once the one before it is dropped")
        if verdict.plain_weights:
            raise CannotFixError("the weight of the convolution behind it would have to be in channels-last, too")
    source, site = subject.source, subject.finding.site
    function = source.find_function(site)
    calls = [call for call in source.list_calls(function, site.line) if _is_copy(call)]
    if not calls:
        raise CannotFixError("the line has no `.contiguous()`, `.clone()` or `.to(memory_format=...)`")
    if len(calls) > 1 and len(calls) * _count_modules(subject) != len(verdicts):
        raise CannotFixError(f"the line has {len(calls)} such calls, and not all of them copy")
    for call in calls:
        _check_clone(source, function, call)
        check_uses(source, function, call)
    _check_sizes(subject)
    return [drop_call(source, call) for call in calls]


def _explain_kept(verdicts: Sequence[Verdict]) -> str:
    if not verdicts:
        return "it lists no copies"
    main = max(verdicts, key=lambda verdict: verdict.copy.bytes)
    return _KEPT.get(main.necessity, "the copy is needed as the program is written")


def _is_later(subject: FixSubject, verdict: Verdict) -> bool:
    """Return True for the second of two copies that undo each other: it copies nothing once the first is gone."""
    nodes = [op.node for op in subject.analysis.facts.ops]
    return verdict.partner in nodes and nodes.index(str(verdict.partner)) < nodes.index(verdict.copy.node)


def _count_modules(subject: FixSubject) -> int:
    """Return how many calls of the line's function the graph has, as far as modules tell them apart."""
    return max(1, len(subject.finding.modules))


def _is_copy(call: cst.Call) -> bool:
    if m.matches(call, _FUNCTION_CALL):
        return True
    if not m.matches(call, _METHOD_CALL) or m.matches(call.func, m.Attribute(value=m.Name("torch"))):
        return False
    named = [argument.keyword.value for argument in call.args if argument.keyword is not None]
    if m.matches(call.func, m.Attribute(attr=m.Name("to"))):
        return named == ["memory_format"] and len(call.args) == 1
    return len(named) == len(call.args) and set(named) <= {"memory_format"}


def _check_clone(source: SourceFile, function: cst.FunctionDef, call: cst.Call) -> None:
    """Raise `CannotFixError` if a clone may keep a value apart from what is written into its source."""
    if m.matches(call, _FUNCTION_CALL):
        copied = call.args[0].value
    elif m.matches(call.func, m.Attribute(attr=m.Name("clone"))) and isinstance(call.func, cst.Attribute):
        copied = call.func.value
    else:
        return
    if isinstance(copied, (cst.Attribute, cst.Subscript)):
        raise CannotFixError("the clone is of a stored value, which other code may write into")
    if isinstance(copied, cst.Name):
        for use in list_uses(source, function, copied.value):
            if use.writes:
                where = source.get_start_line(use.node)
                raise CannotFixError(f"line {where} writes into `{copied.value}`, and the clone is apart from it")


def _check_sizes(subject: FixSubject) -> None:
    """Raise `CannotFixError` if a view takes the source only because a size is 1: it may not for other sizes."""
    facts = subject.analysis.facts
    for copy in subject.finding.copies:
        pending = list(facts.op_by_node[copy.node].outputs)
        while pending:
            value = facts.values[pending.pop()]
            for user in facts.get_users(value.name):
                if user.operator in _JOINING_VIEWS and 1 in value.shape:
                    raise CannotFixError(f"the view on line {user.site.line} may need the copy for other sizes")
                if is_view(user) or user.pointwise:
                    pending.extend(user.outputs)


def check_uses(source: SourceFile, function: cst.FunctionDef, call: cst.Call) -> None:
    """Raise `CannotFixError` if code around the call, which makes a copy, may need it in a case that was not seen."""
    target = source.parents.get(call)
    if isinstance(target, cst.Assign) and not all(
        isinstance(one.target, (cst.Name, cst.Tuple)) for one in target.targets
    ):
        raise CannotFixError("the copy is stored, and other code may read it")
    for method in _list_methods_behind(source, call):
        if method in READS_STRIDES or method.endswith("_"):
            raise CannotFixError(f"`.{method}` behind it may need the copy for other sizes")
    name = find_assigned_name(source, call)
    if name is None:
        return
    for use in list_uses(source, function, name):
        if use.method in READS_STRIDES:
            where = source.get_start_line(use.node)
            raise CannotFixError(f"`{name}.{use.method}` on line {where} may need the copy for other sizes")
        if use.writes:
            where = source.get_start_line(use.node)
            raise CannotFixError(f"line {where} writes into the copy `{name}`")


def _list_methods_behind(source: SourceFile, call: cst.Call) -> Iterator[str]:
    """Yield the methods that are called on the result: `view` for `x.contiguous().view(...)`."""
    node: cst.CSTNode = call
    while isinstance(parent := source.parents.get(node), cst.Attribute) and parent.value is node:
        yield parent.attr.value
        node = parent
        if isinstance(outer := source.parents.get(node), cst.Call) and outer.func is node:
            node = outer


def drop_call(source: SourceFile, call: cst.Call) -> SourceEdit:
    """Return the edit that leaves only what the call copies; `x = x.contiguous()` goes as a whole."""
    if m.matches(call, _FUNCTION_CALL):
        argument = call.args[0].value
        if source.get_start_line(argument) != source.get_start_line(call):
            raise CannotFixError("the call goes over several lines")
        return source.replace_node(call, source.get_text(argument))
    assert isinstance(call.func, cst.Attribute)
    statement = source.parents.get(call)
    if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
        target = statement.targets[0].target
        if isinstance(target, cst.Name) and m.matches(call.func.value, m.Name(target.value)):
            return remove_statement(source, statement)
    return source.remove_method_call(call)


def remove_statement(source: SourceFile, statement: cst.BaseSmallStatement) -> SourceEdit:
    """Return the removal of the line of a statement; `pass` replaces it where a block would be empty."""
    line = source.parents[statement]
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        raise CannotFixError("the line has several statements")
    block = source.parents[line]
    start, end = source.spans[statement]
    if not isinstance(block, (cst.IndentedBlock, cst.Module)):
        raise CannotFixError("the line is the body of a compound statement")
    if len(block.body) == 1:
        return source.make_edit(start, end, "pass")
    if line.trailing_whitespace.comment is not None:
        raise CannotFixError("a comment stands on the line that would go")
    return source.make_edit(*source.get_whole_lines(start, end), "")


FIXER = Fixer("FRX002", "drop_copy", propose)
