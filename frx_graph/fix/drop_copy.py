"""Drop a copy that the program asks for, if everything behind it takes the source as it is (FRX002).

`x.contiguous()`, `x.clone()`, `torch.clone(x)` and `x.to(memory_format=...)` become `x`. The graph has shown that no
operator of this call needs the copy, and that the caller does not see its strides. The source has to show the same for
other sizes and branches: what reads the copy only computes, and the function writes nothing in place.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
import libcst.matchers as m

from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.facts.operator_families import LAYOUT_COPIES
from frx_graph.fix.copy_calls import is_copy_call, is_function_clone
from frx_graph.fix.fixer import Fixer, FixSubject, OtherFixerError
from frx_graph.fix.local_names import check_no_module_writes, check_nothing_is_written, check_simple_use
from frx_graph.fix.source_file import CannotFixError, SourceFile
from frx_graph.passes.copies.copy_necessity import Necessity, Verdict
from frx_graph.passes.copies.view_chain import is_view
from frx_graph.records import CopyKind, SourceEdit

DROPPED = frozenset({Necessity.UNUSED, Necessity.SAME_LAYOUT, Necessity.UNNEEDED, Necessity.UNDONE})
_KEPT = {
    Necessity.CONSTANT: "what is copied would have to be stored in another order, also in saved states",
    Necessity.LOOP: "the copy would have to move out of the loop",
}


def propose(subject: FixSubject) -> Sequence[SourceEdit]:
    """Return the removal of the copies of a line, if none of them is needed."""
    verdicts = subject.judge_copies()
    if not any(verdict.necessity in DROPPED for verdict in verdicts):
        if any(verdict.necessity is Necessity.REPEATED for verdict in verdicts):
            raise OtherFixerError
        raise CannotFixError(_explain_kept(verdicts))
    for verdict in verdicts:
        _check_verdict(subject, verdict)
    source, site = subject.source, subject.finding.site
    function = source.find_function(site)
    calls = [call for call in source.list_calls(function, site.line) if is_copy_call(call)]
    if not calls:
        raise CannotFixError("the line has no `.contiguous()`, `.clone()` or `.to(memory_format=...)`")
    if len(calls) > 1 and len(calls) * max(1, len(subject.finding.modules)) != len(verdicts):
        raise CannotFixError(f"the line has {len(calls)} such calls, and not all of them copy")
    check_nothing_is_written(source, function)
    check_no_module_writes(source)
    for call in calls:
        check_simple_use(source, function, call)
    return [drop_call(source, call) for call in calls]


def _explain_kept(verdicts: Sequence[Verdict]) -> str:
    if not verdicts:
        return "it lists no copies"
    main = max(verdicts, key=lambda verdict: verdict.copy.bytes)
    return _KEPT.get(main.necessity, "the copy is needed as the program is written")


def _check_verdict(subject: FixSubject, verdict: Verdict) -> None:
    """Raise `CannotFixError` if the graph shows that the line's copy has to stay."""
    facts, copy = subject.analysis.facts, verdict.copy
    if copy.phase is Phase.BACKWARD:
        raise CannotFixError("autograd makes the copy, not the line")
    if copy.kind is CopyKind.RESHAPE:
        raise CannotFixError("a reshape makes the copy, and its result would have to be a view")
    if verdict.necessity not in DROPPED:
        raise CannotFixError("the line also makes a copy that is needed, or that another fix is for")
    if verdict.necessity is Necessity.UNDONE and _is_later(facts, verdict):
        raise CannotFixError("it copies nothing once the copy before it is dropped")
    if verdict.plain_weights:
        raise CannotFixError("the weight of the convolution behind it would have to be in channels-last, too")
    (result,) = facts.op_by_node[copy.node].outputs
    if 1 in facts.values[result].shape:
        raise CannotFixError("a size is 1, which hides strides: advise on larger inputs")
    if _reaches_caller(facts, result):
        raise CannotFixError("the caller sees what is made of the copy, and its strides for other sizes are not known")
    if _follows_copy(facts, copy.value):
        raise CannotFixError("another copy stands before it: fix that one first")


def _is_later(facts: GraphFacts, verdict: Verdict) -> bool:
    """Return True for the second of two copies that undo each other: it copies nothing once the first is gone."""
    partner = facts.op_by_node.get(verdict.partner or "")
    return partner is not None and facts.ops.index(partner) < facts.ops.index(facts.op_by_node[verdict.copy.node])


def _reaches_caller(facts: GraphFacts, value: str) -> bool:
    """Return True if a value is returned, or what views and pointwise operators make of it."""
    pending = [value]
    while pending:
        name = pending.pop()
        if facts.values[name].user_visible:
            return True
        for user in facts.get_users(name):
            if user.phase is Phase.FORWARD and (is_view(user) or user.pointwise):
                pending.extend(user.outputs)
    return False


def _follows_copy(facts: GraphFacts, value: str) -> bool:
    """Return True if views and pointwise operators lead back to another copy."""
    pending = [value]
    while pending:
        producer = facts.get_producer(pending.pop())
        if producer is None:
            continue
        if producer.operator in LAYOUT_COPIES:
            return True
        if is_view(producer) or producer.pointwise:
            pending.extend(producer.inputs)
    return False


def drop_call(source: SourceFile, call: cst.Call) -> SourceEdit:
    """Return the edit that leaves only what the call copies; `x = x.contiguous()` goes as a whole."""
    if is_function_clone(call):
        argument = call.args[0].value
        if source.get_start_line(argument) != source.get_start_line(call):
            raise CannotFixError("the call goes over several lines")
        return source.replace_node(call, source.get_operand(argument))
    assert isinstance(call.func, cst.Attribute)
    statement = source.parents.get(call)
    if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
        target = statement.targets[0].target
        if isinstance(target, cst.Name) and m.matches(call.func.value, m.Name(target.value)):
            return source.remove_statement(statement)
    return source.replace_methods(call, call, "")


FIXER = Fixer("FRX002", "drop_copy", propose)
