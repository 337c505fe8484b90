"""Convert a gradient once, where the backward loses channels-last (FRX008).

`y.flatten(1)` hands a plain gradient to all that made `y`. A hook on `y` converts it for all of them. Values stay. The
hook takes tensors of as many dimensions as this call has, so the change needs `--unsafe-fixes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import GraphFacts, ValueFacts
from frx_graph.facts.layout import name_channels_last
from frx_graph.fix.calls import get_called_name, is_own_module, is_torch_function, list_made_kinds
from frx_graph.fix.fixer import Fixer, FixSubject
from frx_graph.fix.imports import name_torch
from frx_graph.fix.local_names import check_nothing_is_written, is_in_loop, list_occurrences
from frx_graph.fix.model_class import list_parameters
from frx_graph.fix.source_file import CannotFixError, SourceFile
from frx_graph.passes.detectors.backward_layout_lost import find_lost_layouts
from frx_graph.records import SourceEdit

_FUNCTIONS = frozenset({"adaptive_avg_pool2d", "adaptive_avg_pool3d", "flatten", "mean", "reshape", "sum", "view"})
_MODULES = frozenset({"AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "Flatten"})


def propose(subject: FixSubject) -> Sequence[SourceEdit]:
    """Return the insertion of the hook in front of the statement that loses the layout."""
    finding, facts = subject.finding, subject.analysis.facts
    losses = [loss for loss in find_lost_layouts(subject.analysis) if loss.reader.node in finding.nodes]
    if not losses or any(loss.origin is None for loss in losses):
        raise CannotFixError("the gradient comes into the graph in that layout")
    if not all(_is_read_on_line(facts, loss.first, finding.site.location) for loss in losses):
        raise CannotFixError("no operator of the line reads a tensor of the gradient's shape")
    ranks = {len(loss.first.shape) for loss in losses}
    source = subject.source
    function = source.find_function(finding.site)
    names = {name.value: name for name in _list_operands(source, function, finding.site.line)}
    if len(names) != 1 or len(ranks) != 1:
        raise CannotFixError("the line does not read one tensor that has a local name")
    ((name, node),) = names.items()
    if is_in_loop(source, node, function):
        raise CannotFixError("it stands in a loop, or in a function within")
    check_nothing_is_written(source, function)
    assigned = [one for one in list_occurrences(source, function, name) if not source.is_read(one)]
    if name in list_parameters(function) or not assigned:
        raise CannotFixError(f"`{name}` comes from the caller, and a hook on it would stay")
    statement = source.get_statement(node)
    if len(statement.body) != 1 or any(source.is_inside(one, statement) for one in assigned):
        raise CannotFixError(f"the line of `{name}` has several statements, or assigns it")
    torch, imported = name_torch(source)
    memory_format = name_channels_last(ranks.pop()).replace("torch", torch)
    hook = f"{name}.register_hook(lambda gradient: gradient.contiguous(memory_format={memory_format}))"
    return [*imported, source.insert_before(statement, [f"if {name}.requires_grad:", f"    {hook}"])]


def _is_read_on_line(facts: GraphFacts, gradient: ValueFacts, location: tuple[str, int]) -> bool:
    """Return True if an operator of the line's forward reads a value of the gradient's shape."""
    return any(
        facts.values[name].shape == gradient.shape
        for op in facts.ops
        if op.phase is Phase.FORWARD and op.site.location == location
        for name in op.inputs
    )


def _list_operands(source: SourceFile, function: cst.FunctionDef, line: int) -> Iterator[cst.Name]:
    """Yield the local names that the calls of a line read whose backward loses a layout."""
    for call in source.list_calls(function, line):
        operand: cst.BaseExpression | None = call.args[0].value if call.args else None
        if is_own_module(call):
            loses = list_made_kinds(source, get_called_name(call)) & _MODULES
        else:
            loses = {get_called_name(call)} & _FUNCTIONS
            if not is_torch_function(call) and isinstance(call.func, cst.Attribute):
                operand = call.func.value
        if loses and isinstance(operand, cst.Name):
            yield operand


FIXER = Fixer("FRX008", "gradient_layout", propose, unsafe=True)
