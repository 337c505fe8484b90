"""Name what a call calls: a function of torch, a method, or a module of `self`, and by what that is made."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from frx_graph.fix.source_file import SourceFile

_NN = m.Name("nn") | m.Attribute(value=m.Name("torch"), attr=m.Name("nn"))


def get_called_name(call: cst.Call) -> str:
    """Return the last part of what is called: `softmax` of `torch.softmax(x)` and of `x.softmax()`."""
    if isinstance(call.func, cst.Attribute):
        return call.func.attr.value
    return call.func.value if isinstance(call.func, cst.Name) else ""


def is_torch_function(call: cst.Call) -> bool:
    """Return True for `torch.f(x)`, `F.f(x)` and the like, False for the method `x.f()`."""
    if not isinstance(call.func, cst.Attribute):
        return False
    owner = call.func.value
    return m.matches(owner, m.Name("torch") | m.Name("F") | m.Name("functional")) or m.matches(
        owner, m.Attribute(attr=m.Name("functional"))
    )


def list_made_kinds(source: SourceFile, name: str) -> set[str]:
    """Return what `self.name` is made by, wherever the file assigns it: `Dropout` for `nn.Dropout(0.1)`. Other kinds
    than those of `nn` are named with a question mark."""
    made = m.AssignTarget(target=m.Attribute(value=m.Name("self"), attr=m.Name(name)))
    kinds = set()
    for one in m.findall(source.module, m.Assign(targets=[m.ZeroOrMore(), made, m.ZeroOrMore()])):
        value = one.value if isinstance(one, cst.Assign) else None
        own = isinstance(value, cst.Call) and m.matches(value.func, m.Attribute(value=_NN))
        kinds.add(get_called_name(value) if isinstance(value, cst.Call) and own else "?")
    return kinds


def is_own_module(call: cst.Call) -> bool:
    """Return True for `self.module(x)`."""
    return m.matches(call.func, m.Attribute(value=m.Name("self")))
