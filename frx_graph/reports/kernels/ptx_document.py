"""Findings in a PTX file as JSON: the document `frx_ptx_v1`, under the mode "ptx"."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from frx_graph.analyzers.kernels.ptx_analysis import PtxAnalysis
from frx_graph.analyzers.kernels.ptx_findings import FindingKind
from frx_graph.evidence.ptx.instruction import Kind
from frx_graph.evidence.ptx.module import PtxModule
from frx_graph.reports.render.document import Part, WrittenPart, read_from
from frx_graph.reports.render.recommendation_part import RecommendationPart

BUNDLE = "ptx_static"


class RiskPart(Part):
    """A label of one kernel, or of the worst kernel."""

    label: str
    score: float
    confidence: float
    evidence: tuple[str, ...]
    kernels: tuple[str, ...]


class PtxFindingPart(Part):
    """An observation in one kernel."""

    kind: FindingKind
    severity: Literal["high", "medium", "low"]
    kernel: str
    evidence: str


class LoopPart(Part):
    """A loop: the instructions between a label and the last branch back to it."""

    label: str
    line: int
    instructions: int
    innermost: bool
    instruction_mix: dict[Kind, int] = read_from("mix")


class PtxKernelPart(WrittenPart):
    """One kernel entry."""

    name: str = read_from("function.name")
    line: int = read_from("function.line")
    linkage: str = read_from("function.linkage")
    register_count: int = read_from(
        "function.virtual_registers", "virtual, 64-bit ones counted as two; not a measure of physical ones"
    )
    physical_registers: int | None = read_from(
        "assembled.registers", "from ptxas; null: ptxas did not run", default=None
    )
    register_occupancy_pct: float | None = Field(description="upper limit from physical_registers; null: unknown")
    spills_detected: bool | None = read_from("assembled.spills", "from ptxas alone; null: unknown", default=None)
    spill_stores: int | None = read_from("assembled.spill_store_bytes", "bytes a thread, from ptxas", default=None)
    spill_loads: int | None = read_from("assembled.spill_load_bytes", "bytes a thread, from ptxas", default=None)
    stack_bytes: int | None = read_from(
        "assembled.stack_bytes", "local memory of a thread, spills included, from ptxas", default=None
    )
    local_bytes: int = read_from("function.local_bytes", "arrays declared in local memory, which are not spills")
    shared_bytes: int = read_from("function.shared_bytes")
    instruction_count: int = read_from("function.instructions")
    instruction_mix: dict[Kind, int] = read_from("function.mix")
    branch_count: int = read_from("function.branches", "branches on a predicate")
    has_back_edge: bool = read_from("function.has_back_edge")
    loops: tuple[LoopPart, ...] = read_from("function.loops")
    capability_flags: Annotated[tuple[str, ...], BeforeValidator(sorted)] = read_from("function.capabilities")
    tuning: tuple[str, ...] = read_from("function.tuning")


class PtxGpuPart(Part):
    """The GPU that the file was assembled for."""

    name: str = read_from("profile.name")
    known_by: str = Field(description="the option, or the file's target")
    target: str = Field(description="target passed to the assembler")
    threads_per_sm: int = read_from("profile.architecture.limits.threads")
    full_occupancy_registers: int = Field(description="most registers a thread at full occupancy")
    limits_source: str = read_from("profile.architecture.limits_source")
    features: tuple[str, ...] = Field(description="features that PTX of this target can use")
    missing_features: tuple[str, ...] = read_from("missing", "features that need a specific target, such as sm_90a")


class PtxResult(Part):
    """Findings in one file."""

    schema_: Literal["frx_ptx_v1"] = Field(default="frx_ptx_v1", alias="schema")
    source: str
    version: str
    target: str
    gpu: PtxGpuPart | None = Field(description="null: the target is not listed")
    assembled: bool = Field(description="true: ptxas assembled the kernels")
    not_assembled_because: str | None
    assembled_for: str | None = Field(
        default=None, description="the architecture that ptxas took because it has dropped the file's; null: the file's"
    )
    kernel_count: int
    kernels: tuple[PtxKernelPart, ...]
    findings: tuple[PtxFindingPart, ...] = Field(default=(), description="of all kernels, the gravest of each first")
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
        result=PtxResult.from_record(
            analysis,
            source=module.source,
            version=module.version,
            target=module.target,
            gpu=_build_gpu(analysis),
            assembled=not_assembled_because is None,
            not_assembled_because=not_assembled_because,
            kernel_count=len(analysis.kernels),
            findings=[finding for kernel in analysis.kernels for finding in kernel.findings],
            primary_bottleneck=labels[0] if labels else None,
            secondary_bottlenecks=tuple(labels[1:]),
            bundles=(BUNDLE,),
        )
    )


def _build_gpu(analysis: PtxAnalysis) -> PtxGpuPart | None:
    gpu, most = analysis.gpu, analysis.full_occupancy_registers
    if gpu is None or most is None or gpu.profile.architecture.limits_source is None:
        return None
    return PtxGpuPart.from_record(gpu, full_occupancy_registers=most)
