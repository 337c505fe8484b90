"""Recognise the calls that copy a tensor into another layout."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

_METHOD_CALL = m.Call(func=m.Attribute(attr=m.Name("contiguous") | m.Name("clone") | m.Name("to")))
_FUNCTION_CALL = m.Call(
    func=m.Attribute(value=m.Name("torch"), attr=m.Name("clone")), args=[m.Arg(keyword=None, star="")]
)


def is_function_clone(call: cst.Call) -> bool:
    """Return True for `torch.clone(x)`."""
    return m.matches(call, _FUNCTION_CALL)


def is_copy_call(call: cst.Call) -> bool:
    """Return True for `x.contiguous()`, `x.clone()`, `torch.clone(x)` and `x.to(memory_format=...)`."""
    if is_function_clone(call):
        return True
    if not m.matches(call, _METHOD_CALL) or m.matches(call.func, m.Attribute(value=m.Name("torch"))):
        return False
    named = [argument.keyword.value for argument in call.args if argument.keyword is not None]
    if m.matches(call.func, m.Attribute(attr=m.Name("to"))):
        return named == ["memory_format"] and len(call.args) == 1
    return len(named) == len(call.args) and set(named) <= {"memory_format"}
