"""What `POST /cuda/static-inspect` answers: what was found in several files, sorted by what it is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

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


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FileCoverage(_Part):
    """One file."""

    filename: str
    bytes: int
    parse_coverage: float = Field(description="share of the bytes that the parser understood, 0..1")
    unread_kernels: tuple[str, ...] = Field(description="names of kernels of which no more could be read")


class InspectedKernel(KernelPart):
    """A kernel, and the file that it is in."""

    filename: str


class InspectedLaunch(LaunchPart):
    """A launch, and the file that it is in."""

    filename: str


class InspectedFinding(FindingPart):
    """A finding, and the file that it is in."""

    filename: str


class InspectedAccess(AccessPart):
    """An access, and where it is."""

    filename: str
    kernel: str


class MemoryTag(_Part):
    """How one kernel uses one kind of memory."""

    filename: str
    kernel: str
    space: Space
    stride_kind: StrideKind
    accesses: int


class SuggestedLaunch(_Part):
    """A launch that could be configured better."""

    filename: str
    kernel: str
    line: int
    suggestion: str


class Occupancy(ResidencyPart):
    """Of a launch on the GPU that was named: estimated from the source, without registers."""

    filename: str
    kernel: str
    line: int


class StaticInspection(_Part):
    """CUDA source, inspected without compiling it: estimates, and no measurement."""

    gpu_model: str | None = Field(description="the GPU that it is judged by; null: any")
    files: tuple[FileCoverage, ...]
    kernels: tuple[InspectedKernel, ...]
    launch_configs: tuple[InspectedLaunch, ...]
    indexing_patterns: tuple[InspectedAccess, ...]
    memory_tags: tuple[MemoryTag, ...]
    atomics: tuple[InspectedAccess, ...]
    shared_memory_warnings: tuple[InspectedFinding, ...] = Field(description="those of `findings` on shared memory")
    launch_advice: tuple[SuggestedLaunch, ...]
    occupancy: tuple[Occupancy, ...] = Field(description="empty unless gpu_model is given")
    findings: tuple[InspectedFinding, ...]
    rules: tuple[RulePart, ...]


def inspection_of(results: Sequence[CudaResult]) -> StaticInspection:
    """What is in `results`, one of each file, at least one."""
    accesses = [
        InspectedAccess(filename=result.source, kernel=kernel.name, **_fields(access))
        for result in results
        for kernel in result.kernels
        for access in kernel.accesses
    ]
    findings = [
        InspectedFinding(filename=result.source, **_fields(finding))
        for result in results
        for finding in result.findings
    ]
    launches = [
        InspectedLaunch(filename=result.source, **_fields(launch)) for result in results for launch in result.launches
    ]
    named = results[0].gpu_model
    return StaticInspection(
        gpu_model=named,
        files=tuple(
            FileCoverage(
                filename=result.source,
                bytes=result.bytes,
                parse_coverage=result.parse_coverage,
                unread_kernels=result.unread_kernels,
            )
            for result in results
        ),
        kernels=tuple(
            InspectedKernel(filename=result.source, **_fields(kernel))
            for result in results
            for kernel in result.kernels
        ),
        launch_configs=tuple(launches),
        indexing_patterns=tuple(accesses),
        memory_tags=_tags(accesses),
        atomics=tuple(access for access in accesses if access.use is Use.ATOMIC),
        shared_memory_warnings=tuple(
            finding for finding in findings if finding.access is not None and finding.access.space is Space.SHARED
        ),
        launch_advice=tuple(
            SuggestedLaunch(
                filename=launch.filename, kernel=launch.kernel, line=launch.line, suggestion=launch.suggestion
            )
            for launch in launches
            if launch.suggestion is not None
        ),
        occupancy=tuple(
            Occupancy(filename=launch.filename, kernel=launch.kernel, line=launch.line, **_fields(residency))
            for launch in launches
            if named is not None
            for residency in launch.residency
        ),
        findings=tuple(findings),
        rules=tuple({rule.id: rule for result in results for rule in result.rules}.values()),
    )


def _tags(accesses: Sequence[InspectedAccess]) -> tuple[MemoryTag, ...]:
    counts: dict[tuple[str, str, Space, StrideKind], int] = {}
    for access in accesses:
        key = access.filename, access.kernel, access.space, access.stride_kind
        counts[key] = counts.get(key, 0) + 1
    return tuple(
        MemoryTag(filename=filename, kernel=kernel, space=space, stride_kind=kind, accesses=count)
        for (filename, kernel, space, kind), count in counts.items()
    )


def _fields(part: BaseModel) -> dict[str, Any]:
    """What it holds, unchanged."""
    return {name: getattr(part, name) for name in type(part).model_fields}
