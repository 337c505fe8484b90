"""Answer of `POST /cuda/static-inspect`: findings in several files, by subject."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from pydantic import Field

from frx_graph.evidence.cuda.source import Space, StrideKind, Use
from frx_graph.reports.kernels.cuda_document import (
    AccessPart,
    CudaResult,
    FindingPart,
    KernelPart,
    LaunchPart,
    ResidencyPart,
    RulePart,
)
from frx_graph.reports.render.document import Part, read_from

_Inspected = TypeVar("_Inspected", bound=Part)


class FileCoverage(Part):
    """One file."""

    filename: str = read_from("source")
    bytes: int
    parse_coverage: float = Field(description="share of the bytes that the parser understood, 0..1")
    unread_kernels: tuple[str, ...] = Field(description="names of kernels of which only the name could be read")


class InspectedKernel(KernelPart):
    """A kernel and its file."""

    filename: str


class InspectedLaunch(LaunchPart):
    """A launch and its file."""

    filename: str


class InspectedFinding(FindingPart):
    """A finding and its file."""

    filename: str


class InspectedAccess(AccessPart):
    """An access and its location."""

    filename: str
    kernel: str


class MemoryTag(Part):
    """Use of one kind of memory by one kernel."""

    filename: str
    kernel: str
    space: Space
    stride_kind: StrideKind
    accesses: int


class SuggestedLaunch(Part):
    """A launch that could be configured better."""

    filename: str
    kernel: str
    line: int
    suggestion: str


class Occupancy(ResidencyPart):
    """Occupancy of a launch on the named GPU, estimated from the source, without registers."""

    filename: str
    kernel: str
    line: int


class StaticInspection(Part):
    """CUDA source, inspected without compiling it: estimates, not measurements."""

    gpu_model: str | None = Field(description="the GPU assumed for the findings; null: any")
    files: tuple[FileCoverage, ...]
    kernels: tuple[InspectedKernel, ...]
    launch_configs: tuple[InspectedLaunch, ...]
    indexing_patterns: tuple[InspectedAccess, ...]
    memory_tags: tuple[MemoryTag, ...]
    atomics: tuple[InspectedAccess, ...]
    shared_memory_warnings: tuple[InspectedFinding, ...] = Field(description="the `findings` on shared memory")
    launch_advice: tuple[SuggestedLaunch, ...]
    occupancy: tuple[Occupancy, ...] = Field(description="empty unless gpu_model is given")
    findings: tuple[InspectedFinding, ...]
    rules: tuple[RulePart, ...]


def build_inspection(results: Sequence[CudaResult]) -> StaticInspection:
    """Return the inspection of several files; `results` holds one result per file, at least one."""
    accesses = [
        InspectedAccess.from_record(access, filename=result.source, kernel=kernel.name)
        for result in results
        for kernel in result.kernels
        for access in kernel.accesses
    ]
    findings = _add_file(InspectedFinding, [(result.source, result.findings) for result in results])
    launches = _add_file(InspectedLaunch, [(result.source, result.launches) for result in results])
    named = results[0].gpu_model
    tags = Counter((one.filename, one.kernel, one.space, one.stride_kind) for one in accesses)
    return StaticInspection(
        gpu_model=named,
        files=tuple(FileCoverage.from_record(result) for result in results),
        kernels=_add_file(InspectedKernel, [(result.source, result.kernels) for result in results]),
        launch_configs=launches,
        indexing_patterns=tuple(accesses),
        memory_tags=tuple(
            MemoryTag(filename=filename, kernel=kernel, space=space, stride_kind=kind, accesses=count)
            for (filename, kernel, space, kind), count in tags.items()
        ),
        atomics=tuple(access for access in accesses if access.use is Use.ATOMIC),
        shared_memory_warnings=tuple(
            finding for finding in findings if finding.access is not None and finding.access.space is Space.SHARED
        ),
        launch_advice=tuple(SuggestedLaunch.from_record(one) for one in launches if one.suggestion is not None),
        occupancy=tuple(
            Occupancy.from_record(residency, filename=launch.filename, kernel=launch.kernel, line=launch.line)
            for launch in launches
            if named is not None
            for residency in launch.residency
        ),
        findings=findings,
        rules=tuple({rule.id: rule for result in results for rule in result.rules}.values()),
    )


def _add_file(inspected: type[_Inspected], parts: Iterable[tuple[str, Iterable[Part]]]) -> tuple[_Inspected, ...]:
    return tuple(inspected.from_record(part, filename=file) for file, found in parts for part in found)
