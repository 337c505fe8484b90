"""Compile the `forward` that has memory-bound operators, so that they run as one kernel (FRX005).

Compiled arithmetic rounds fewer intermediate results, and the first call and other shapes take time: the change needs
`--unsafe-fixes`. The trial runs the program as it is written, before and after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import libcst as cst

from frx_graph.capture.call_site import CallSite
from frx_graph.fix.fixer import Fixer, FixSubject, OtherFixerError
from frx_graph.fix.imports import name_torch
from frx_graph.fix.source_file import CannotFixError, SourceFile, is_installed
from frx_graph.passes.detectors.memory_bound_region import FUSION_FIX
from frx_graph.records import SourceEdit


def propose(subject: FixSubject) -> Sequence[SourceEdit]:
    """Return the insertion of the decorator."""
    finding, analysis = subject.finding, subject.analysis
    if finding.fix != FUSION_FIX or analysis.inner != "eager":
        raise OtherFixerError
    source, function = _find_common_forward(subject)
    block = source.parents.get(function)
    own = [parameter.name.value for parameter in function.params.params][:1] == ["self"]
    if not own or not isinstance(source.parents.get(block or function), cst.ClassDef):
        raise CannotFixError("its `forward` is not that of a module")
    if function.decorators:
        raise CannotFixError("its `forward` is decorated already")
    start, end = (source.get_line(offset) for offset in source.spans[function])
    for one in analysis.events.breaks:
        if one.site.file == str(source.path) and start <= one.site.line <= end:
            raise CannotFixError(f"Dynamo breaks the graph on line {one.site.line}")
    torch, imported = name_torch(source)
    return [*imported, source.insert_before(function, [f"@{torch}.compile"])]


def _find_common_forward(subject: FixSubject) -> tuple[SourceFile, cst.FunctionDef]:
    """Return the smallest `forward` of the user whose modules, with their parts, run all operators of the finding.
    Raises `CannotFixError` without one."""
    facts = subject.analysis.facts
    paths = {facts.op_by_node[node].site.module_path for node in subject.finding.nodes if node in facts.op_by_node}
    around = [_list_forwards(subject, path) for path in paths]
    common = [forward for forward in around[0] if all(forward in of_path for of_path in around)] if around else []
    if not common:
        raise CannotFixError("no module in your source runs all its operators")
    smallest = max(common, key=lambda forward: min(of_path[forward] for of_path in around))
    source = subject.files.get(smallest.file)
    return source, source.find_function(smallest)


def _list_forwards(subject: FixSubject, path: str) -> Mapping[CallSite, int]:
    """Return each `forward` of the user that runs the module, with the length of the longest path it has."""
    parts = path.split(".")
    around = {}
    for length in range(1, len(parts) + 1):
        forward = subject.forwards.get(".".join(parts[:length]))
        if forward is not None and not is_installed(forward.file):
            around[forward] = length
    return around


FIXER = Fixer("FRX005", "compile_region", propose, unsafe=True)
