"""Compile the `forward` that has memory-bound operators, so that they run as one kernel (FRX005).

Compiled arithmetic rounds fewer intermediate results, and the first call and other shapes take time: the change needs
`--unsafe-fixes`. The trial runs the program as it is written, before and after.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from frx_graph.fix.fixer import Fixer, FixSubject, OtherFixerError
from frx_graph.fix.imports import name_torch
from frx_graph.fix.source_file import CannotFixError, SourceFile
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
    """Return the smallest `forward` whose modules, with their parts, run all operators of the finding. Raises
    `CannotFixError` without one."""
    facts = subject.analysis.facts
    sites = [facts.op_by_node[node].site for node in subject.finding.nodes if node in facts.op_by_node]
    paths: dict[tuple[str, cst.FunctionDef], set[str]] = {}
    for site in sites:
        if site.function == "forward":
            function = subject.files.get(site.file).find_function(site)
            paths.setdefault((site.file, function), set()).add(site.module_path)
    for (file, function), own in sorted(paths.items(), key=lambda item: -min(map(len, item[1]))):
        if all(any(f"{site.module_path}.".startswith(f"{path}.") for path in own) for site in sites):
            return subject.files.get(file), function
    raise CannotFixError("its lines are not in the `forward` of a module, or in parts of one")


FIXER = Fixer("FRX005", "compile_region", propose, unsafe=True)
