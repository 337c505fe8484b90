"""Compile the `forward` that has memory-bound operators, so that they run as one kernel (FRX005).

Compiled arithmetic rounds fewer intermediate results, and the first call and other shapes take time: the change needs
`--unsafe-fixes`. The trial runs the program as it is written, before and after.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from frx_graph.fix.fixer import Fixer, FixSubject, OtherFixerError
from frx_graph.fix.imports import name_torch
from frx_graph.fix.source_file import CannotFixError
from frx_graph.passes.detectors.memory_bound_region import FUSION_FIX
from frx_graph.records import SourceEdit


def propose(subject: FixSubject) -> Sequence[SourceEdit]:
    """Return the insertion of the decorator."""
    finding, analysis = subject.finding, subject.analysis
    if finding.fix != FUSION_FIX or analysis.inner != "eager":
        raise OtherFixerError
    source = subject.source
    function = source.find_function(finding.site)
    block = source.parents.get(function)
    if function.name.value != "forward" or not isinstance(source.parents.get(block or function), cst.ClassDef):
        raise CannotFixError("its lines are not in the `forward` of a module")
    if [parameter.name.value for parameter in function.params.params][:1] != ["self"]:
        raise CannotFixError("its `forward` is not that of a module")
    if function.decorators:
        raise CannotFixError("its `forward` is decorated already")
    start, end = (source.get_line(offset) for offset in source.spans[function])
    for one in analysis.events.breaks:
        if one.site.file == finding.site.file and start <= one.site.line <= end:
            raise CannotFixError(f"Dynamo breaks the graph on line {one.site.line}")
    ops = [analysis.facts.op_by_node[node] for node in finding.nodes if node in analysis.facts.op_by_node]
    if any(op.site.file != finding.site.file or not start <= op.site.line <= end for op in ops):
        raise CannotFixError("the group also has operators of other functions")
    torch, imported = name_torch(source)
    return [*imported, source.insert_before(function, [f"@{torch}.compile"])]


FIXER = Fixer("FRX005", "compile_region", propose, unsafe=True)
