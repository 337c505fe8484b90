"""Take channels-last out again where convolutions are faster in plain layout (FRX015).

All `.to(memory_format=...)` and `.contiguous(memory_format=...)` of the model's class and the function that builds it
go. Images that the program returns are then plain, so the change needs `--unsafe-fixes`. Values stay.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
import libcst.matchers as m

from frx_graph.fix.drop_copy import drop_call
from frx_graph.fix.fixer import Fixer, FixSubject
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
    calls = [call for call in m.findall(source.module, _CONVERSION) if isinstance(call, cst.Call)]
    if not calls:
        raise CannotFixError("the file of the model's class puts nothing in channels-last")
    own: list[cst.CSTNode] = [source.find_owner(source.find_function(subject.root))]
    if subject.builder is not None and subject.builder.file == subject.root.file:
        own.append(source.find_function(subject.builder))
    if any(not any(source.is_inside(call, place) for place in own) for call in calls):
        raise CannotFixError("the file also converts outside of the model's class and the function that builds it")
    if len(m.findall(source.module, m.Name("memory_format"))) != len(calls):
        raise CannotFixError("the file also uses memory formats in another way")
    return [_remove(source, call) for call in calls]


def _remove(source: SourceFile, call: cst.Call) -> SourceEdit:
    statement = source.parents.get(call)
    return source.remove_statement(statement) if isinstance(statement, cst.Expr) else drop_call(source, call)


FIXER = Fixer("FRX015", "plain_layout", propose, unsafe=True)
