"""Findings in a PTX file as JSON: the document `frx_ptx_v1`, under the mode "ptx"."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from frx_graph.analyzers.kernels.ptx_analysis import PtxAnalysis, StaticKernel
from frx_graph.evidence.ptx.instruction import Kind
from frx_graph.evidence.ptx.module import PtxModule
from frx_graph.reports.render.document import Part, read_from
from frx_graph.reports.render.recommendation_part import RecommendationPart, build_recommendation

BUNDLE = "ptx_static"


class RiskPart(Part):
    """A label of one kernel, or of the worst kernel."""

    label: str
    score: float
    confidence: float
    evidence: tuple[str, ...]
    kernels: tuple[str, ...]


class LoopPart(Part):
    """A loop: the instructions between a label and the last branch back to it."""

    label: str
    line: int
    instructions: int
    innermost: bool
    instruction_mix: dict[Kind, int] = read_from("mix")


class PtxKernelPart(Part):
    """One kernel entry."""

    name: str = read_from("function.name")
    line: int = read_from("function.line")
    linkage: str = read_from("function.linkage")
    register_count: int = read_from(
        "function.virtual_registers", "virtual, 64-bit ones counted as two; not a measure of physical ones"
    )
    physical_registers: int | None = Field(description="from ptxas; null: ptxas did not run")
    register_occupancy_pct: float | None = Field(description="upper limit from physical_registers; null: unknown")
    spills_detected: bool | None = Field(description="from ptxas alone; null: unknown")
    spill_stores: int | None = Field(description="bytes a thread, from ptxas")
    spill_loads: int | None = Field(description="bytes a thread, from ptxas")
    stack_bytes: int | None = Field(description="local memory of a thread, spills included, from ptxas")
    local_bytes: int = read_from("function.local_bytes", "arrays declared in local memory, which are not spills")
    shared_bytes: int = read_from("function.shared_bytes")
    instruction_count: int = read_from("function.instructions")
    instruction_mix: dict[Kind, int] = read_from("function.mix")
    branch_count: int = read_from("function.branches", "branches on a predicate")
    has_back_edge: bool = read_from("function.has_back_edge")
    loops: tuple[LoopPart, ...] = read_from("function.loops")
    capability_flags: tuple[str, ...]
    tuning: tuple[str, ...] = read_from("function.tuning")


class PtxGpuPart(Part):
    """The GPU that the file was assembled for."""

    name: str
    known_by: str = Field(description="the option, or the file's target")
    target: str = Field(description="target passed to the assembler")
    threads_per_sm: int
    full_occupancy_registers: int = Field(description="most registers a thread at full occupancy")
    limits_source: str
    features: tuple[str, ...] = Field(description="features that PTX of this target can use")
    missing_features: tuple[str, ...] = Field(description="features that need a specific target, such as sm_90a")


class PtxResult(Part):
    """Findings in one file."""

    schema_: Literal["frx_ptx_v1"] = Field(default="frx_ptx_v1", alias="schema")
    source: str
    version: str
    target: str
    gpu: PtxGpuPart | None = Field(description="null: the target is not listed")
    assembled: bool = Field(description="true: ptxas assembled the kernels")
    not_assembled_because: str | None
    kernel_count: int
    kernels: tuple[PtxKernelPart, ...]
    primary_bottleneck: str | None
    secondary_bottlenecks: tuple[str, ...]
    bottlenecks: tuple[RiskPart, ...]
    recommendations: tuple[RecommendationPart, ...]
    bundles: tuple[str, ...]


class PtxDocument(Part):
    """Wrapper shared by all analyses."""

    mode: Literal["ptx"] = "ptx"
    result: PtxResult


def build_ptx_document(module: PtxModule, analysis: PtxAnalysis, not_assembled_because: str | None) -> PtxDocument:
    """Return the document of a file. The last argument is the reason why it was not assembled, None if it was."""
    labels = [bottleneck.label for bottleneck in analysis.bottlenecks]
    return PtxDocument(
        result=PtxResult(
            source=module.source,
            version=module.version,
            target=module.target,
            gpu=_build_gpu(analysis),
            assembled=not_assembled_because is None,
            not_assembled_because=not_assembled_because,
            kernel_count=len(analysis.kernels),
            kernels=tuple(map(_build_kernel, analysis.kernels)),
            primary_bottleneck=labels[0] if labels else None,
            secondary_bottlenecks=tuple(labels[1:]),
            bottlenecks=tuple(map(RiskPart.from_record, analysis.bottlenecks)),
            recommendations=tuple(map(build_recommendation, analysis.recommendations)),
            bundles=(BUNDLE,),
        )
    )


def _build_gpu(analysis: PtxAnalysis) -> PtxGpuPart | None:
    gpu, most = analysis.gpu, analysis.full_occupancy_registers
    card = None if gpu is None else gpu.profile.architecture
    if gpu is None or most is None or card is None or card.limits is None or card.limits_source is None:
        return None
    return PtxGpuPart(
        name=gpu.profile.name,
        known_by=gpu.known_by,
        target=gpu.target,
        threads_per_sm=card.limits.threads,
        full_occupancy_registers=most,
        limits_source=card.limits_source,
        features=gpu.features,
        missing_features=gpu.missing,
    )


def _build_kernel(kernel: StaticKernel) -> PtxKernelPart:
    assembled = kernel.assembled
    return PtxKernelPart.from_record(
        kernel,
        physical_registers=None if assembled is None else assembled.registers,
        spills_detected=None if assembled is None else assembled.spills,
        spill_stores=None if assembled is None else assembled.spill_store_bytes,
        spill_loads=None if assembled is None else assembled.spill_load_bytes,
        stack_bytes=None if assembled is None else assembled.stack_bytes,
        capability_flags=sorted(kernel.function.capabilities),
    )
