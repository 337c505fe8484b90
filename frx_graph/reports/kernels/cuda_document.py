"""What was found in CUDA source as JSON: the document `frx_cuda_v1`, under the mode "cuda_source"."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from frx_graph.analyzers.cuda.analysis import CudaAnalysis, CudaFinding
from frx_graph.analyzers.cuda.launch_advice import LaunchAdvice
from frx_graph.analyzers.kernels.occupancy_model import Limiter
from frx_graph.evidence.cuda.source import Access, BarrierKind, CudaSource, Kernel, Space, StrideKind, Use
from frx_graph.reports.render.document import Part
from frx_graph.rules.cuda_card import Category, CudaCard, Severity
from frx_graph.rules.recommendation_card import Direction


class ParameterPart(Part):
    """Of a kernel."""

    name: str
    type: str = Field(description="of a pointer: what it points to")
    pointer: bool
    const: bool
    restrict: bool


class ArrayPart(Part):
    """Shared or local memory that a kernel declares."""

    name: str
    line: int
    space: Space
    element: str
    sizes: tuple[int | None, ...] = Field(description="null: no number in the source")
    bytes: int | None
    dynamic: bool = Field(description="as large as the launch says")


class AccessPart(Part):
    """An element that each thread uses."""

    line: int
    base: str
    space: Space
    use: Use
    text: str
    element: str
    element_bytes: int | None
    index: str = Field(description="in elements, as far as it could be told")
    stride_kind: StrideKind
    stride_elements: int | None = Field(description="from one thread to the next in x; null: no number")
    stride: str | None = Field(description="the same as text, such as `width`; null: not known")
    stride_bytes: int | None
    bank_conflict: int | None = Field(
        description="turns that a warp's access takes, 1 without a conflict; null: not known"
    )


class BarrierPart(Part):
    """Where threads wait for each other."""

    line: int
    kind: BarrierKind
    text: str
    below: tuple[str, ...] = Field(description="the conditions that it stands below")


class KernelPart(Part):
    """A `__global__` function."""

    name: str
    line: int
    template: tuple[str, ...]
    parameters: tuple[ParameterPart, ...]
    launch_bounds: str | None
    complete: bool = Field(description="false: something in it was not understood")
    arrays: tuple[ArrayPart, ...]
    accesses: tuple[AccessPart, ...]
    barriers: tuple[BarrierPart, ...]


class ResidencyPart(Part):
    """What finds place on a multiprocessor at most. Registers are not known, and not in it."""

    gpu: str
    blocks_per_sm: int
    occupancy: float = Field(description="0..1")
    limiter: Limiter | None = Field(description="null: every warp finds place")
    waves: float | None = Field(description="how often the grid fills the GPU; null: not known")


class LaunchPart(Part):
    """A launch. Sizes are null where the source has no number."""

    kernel: str
    line: int
    grid: str
    grid_size: tuple[int | None, int | None, int | None]
    block: str
    block_size: tuple[int | None, int | None, int | None]
    threads: int | None = Field(description="of a block")
    shared: str | None
    shared_bytes: int | None = Field(description="of a block, static and dynamic")
    stream: str | None
    residency: tuple[ResidencyPart, ...] = Field(
        description="on the GPU that was named, or on each compute capability; empty: it cannot be told"
    )
    suggestion: str | None


class FindingPart(Part):
    """A rule, and where it applies."""

    rule: str
    severity: Severity
    category: Category
    title: str
    kernel: str
    line: int
    message: str
    confidence: float
    access: AccessPart | None


class ConfirmPart(Part):
    """What a measurement would show."""

    metric: str
    direction: Direction
    threshold: float | None
    expected: str


class RulePart(Part):
    """What a rule that was found is about."""

    id: str
    title: str
    category: Category
    severity: Severity
    why: str
    fix: str
    actions: tuple[str, ...]
    confidence: float
    confirm: ConfirmPart
    findings: int


class CudaResult(Part):
    """What was found in one file."""

    schema_: Literal["frx_cuda_v1"] = Field(default="frx_cuda_v1", alias="schema")
    source: str
    gpu_model: str | None = Field(description="the GPU that it is judged by; null: any")
    bytes: int
    unparsed_bytes: int
    parse_coverage: float = Field(description="share of the bytes that the parser understood, 0..1")
    kernel_count: int
    launch_count: int
    kernels: tuple[KernelPart, ...]
    unread_kernels: tuple[str, ...] = Field(description="names of kernels of which no more could be read")
    launches: tuple[LaunchPart, ...]
    findings: tuple[FindingPart, ...]
    rules: tuple[RulePart, ...]


class CudaDocument(Part):
    """The wrapper that all analyses share."""

    mode: Literal["cuda_source"] = "cuda_source"
    result: CudaResult


def cuda_document(source: CudaSource, analysis: CudaAnalysis) -> CudaDocument:
    """The document of a file."""
    counts: dict[str, int] = {}
    for finding in analysis.findings:
        counts[finding.card.id] = counts.get(finding.card.id, 0) + 1
    cards = {finding.card.id: finding.card for finding in analysis.findings}
    return CudaDocument(
        result=CudaResult(
            source=source.source,
            gpu_model=None if analysis.gpu is None else analysis.gpu.name,
            bytes=source.coverage.bytes,
            unparsed_bytes=source.coverage.unparsed,
            parse_coverage=source.coverage.share,
            kernel_count=len(source.kernels),
            launch_count=len(source.launches),
            kernels=tuple(map(_kernel, source.kernels)),
            unread_kernels=source.unread,
            launches=tuple(map(_launch, analysis.launches)),
            findings=tuple(map(_finding, analysis.findings)),
            rules=tuple(_rule(card, counts[card.id]) for card in cards.values()),
        )
    )


def _kernel(kernel: Kernel) -> KernelPart:
    return KernelPart(
        name=kernel.name,
        line=kernel.line,
        template=kernel.template,
        parameters=tuple(map(ParameterPart.from_record, kernel.parameters)),
        launch_bounds=None if kernel.launch_bounds is None else kernel.launch_bounds.text,
        complete=kernel.complete,
        arrays=tuple(map(ArrayPart.from_record, kernel.arrays)),
        accesses=tuple(map(_access, kernel.accesses)),
        barriers=tuple(
            BarrierPart(
                line=one.step.line,
                kind=one.kind,
                text=one.text,
                below=tuple(condition.text for condition in one.step.conditions),
            )
            for one in kernel.barriers
        ),
    )


def _access(access: Access) -> AccessPart:
    step, size = access.stride.elements, access.element_bytes
    return AccessPart(
        line=access.step.line,
        base=access.base,
        space=access.space,
        use=access.use,
        text=access.text,
        element=access.element,
        element_bytes=size,
        index=str(access.offset),
        stride_kind=access.stride.kind,
        stride_elements=step,
        stride=access.stride.text,
        stride_bytes=None if step is None or size is None else step * size,
        bank_conflict=access.conflict,
    )


def _launch(advice: LaunchAdvice) -> LaunchPart:
    launch = advice.launch
    return LaunchPart(
        kernel=launch.kernel,
        line=launch.line,
        grid=launch.grid.text,
        grid_size=launch.grid.sizes,
        block=launch.block.text,
        block_size=launch.block.sizes,
        threads=advice.threads,
        shared=launch.shared,
        shared_bytes=advice.shared,
        stream=launch.stream,
        residency=tuple(
            ResidencyPart(
                gpu=one.gpu, blocks_per_sm=one.blocks, occupancy=one.occupancy, limiter=one.limiter, waves=one.waves
            )
            for one in advice.residency
        ),
        suggestion=advice.suggestion,
    )


def _finding(finding: CudaFinding) -> FindingPart:
    card = finding.card
    return FindingPart(
        rule=card.id,
        severity=card.severity,
        category=card.category,
        title=card.title,
        kernel=finding.kernel,
        line=finding.line,
        message=finding.seen,
        confidence=card.confidence,
        access=None if finding.access is None else _access(finding.access),
    )


def _rule(card: CudaCard, findings: int) -> RulePart:
    return RulePart(
        id=card.id,
        title=card.title,
        category=card.category,
        severity=card.severity,
        why=card.why,
        fix=card.fix,
        actions=card.actions,
        confidence=card.confidence,
        confirm=ConfirmPart.from_record(card.confirm),
        findings=findings,
    )
