"""Read layout work from Inductor's generated code: loops that only copy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from frx_graph.analyzers.observations.observation import COPIES, Observation, ObservedCall, RunFile, RunSetting, Work
from frx_graph.evidence.inductor_code import GeneratedCode, GeneratedCopy
from frx_graph.evidence.trace.events import Operand


def observe_generated_code(code: GeneratedCode, source: str) -> RunFile:
    """Observe all copies. Conversions inside libraries are not in the code, and fused copies do not count."""
    alike: dict[object, list[GeneratedCopy]] = defaultdict(list)
    for copy in code.copies:
        target = copy.target
        alike[target.shape, target.strides, target.dtype, target.device].append(copy)
    device = code.copies[0].target.device if code.copies else "cpu"
    observations = tuple(_observe_copies(copies, source) for copies in alike.values())
    return RunFile(source, RunSetting(device, compiled=True), observations)


def _observe_copies(copies: Sequence[GeneratedCopy], source: str) -> Observation:
    first = copies[0]
    target, size = first.target, first.target.bytes
    return Observation(
        work=Work.COPY,
        kernels=tuple(dict.fromkeys(copy.kernel for copy in copies)),
        where=f"line {first.line}",
        count=len(copies),
        calls=(ObservedCall("aten::clone"),),
        # Its strides are those after the copy; a clone has the shape of what it copies.
        copied=Operand(target.shape, target.dtype),
        kinds=COPIES,
        bytes=None if size is None else 2 * size * len(copies),
        measurements=tuple(fact for copy in copies for fact in copy.list_measurements(source)),
        detail=f"into strides {target.strides}",
    )
