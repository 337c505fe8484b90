"""Take channels-last out again where convolutions are faster in plain layout (FRX015).

What goes is `self.to(memory_format=...)` in the model's class, `x = x.to(memory_format=...)` in its `forward`, and the
same in the function that builds it. Images that are returned are then plain: the change needs `--unsafe-fixes`.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
import libcst.matchers as m

from frx_graph.fix.drop_copy import drop_call
from frx_graph.fix.fixer import Fixer, FixSubject
from frx_graph.fix.local_names import check_nothing_is_written, find_assigned_name
from frx_graph.fix.model_class import check_no_stride_readers
from frx_graph.fix.source_file import CannotFixError, SourceFile
from frx_graph.records import Effort, SourceEdit

_CHANNELS_LAST = m.Attribute(attr=m.Name("channels_last") | m.Name("channels_last_3d"))
_CONVERSION = m.Call(
    func=m.Attribute(attr=m.Name("to") | m.Name("contiguous")),
    args=[m.Arg(keyword=m.Name("memory_format"), value=_CHANNELS_LAST)],
)


def propose(subject: FixSubject) -> Sequence[SourceEdit]:
    """Return the removal of each conversion to channels-last."""
    if subject.finding.effort is not Effort.ONE_LINE:
        raise CannotFixError("only a part of the model gains")
    if subject.root is None:
        raise CannotFixError("the model is of a class of torch: what puts it in channels-last is not known")
    source = subject.files.get(subject.root.file)
    forward = source.find_function(subject.root)
    owner = source.find_owner(forward)
    calls = [call for call in m.findall(source.module, _CONVERSION) if isinstance(call, cst.Call)]
    if not calls:
        raise CannotFixError("the file of the model's class puts nothing in channels-last")
    if len(m.findall(source.module, m.Name("memory_format"))) != len(calls):
        raise CannotFixError("the file also uses memory formats in another way")
    check_nothing_is_written(source, forward)
    check_no_stride_readers(source)
    known = subject.builder is not None and subject.builder.file == subject.root.file
    builder = source.find_function(subject.builder) if known and subject.builder is not None else None
    return [_remove(source, call, owner, builder) for call in calls]


def _remove(source: SourceFile, call: cst.Call, owner: cst.ClassDef, builder: cst.FunctionDef | None) -> SourceEdit:
    """Return the removal of a conversion. Raises `CannotFixError` for one whose result is used in another way."""
    assert isinstance(call.func, cst.Attribute)
    statement, receiver = source.parents.get(call), call.func.value
    if builder is not None and source.is_inside(call, builder):
        if isinstance(statement, cst.Expr) and isinstance(receiver, cst.Name):
            return source.remove_statement(statement)
        return drop_call(source, call)
    if source.is_inside(call, owner):
        if isinstance(statement, cst.Expr) and m.matches(receiver, m.Name("self")):
            return source.remove_statement(statement)
        if isinstance(receiver, cst.Name) and find_assigned_name(source, call) == receiver.value:
            return drop_call(source, call)
    raise CannotFixError(f"line {source.get_start_line(call)} converts what may not be the model's own")


FIXER = Fixer("FRX015", "plain_layout", propose, unsafe=True)
