"""Findings in CUDA source as JSON: the document `frx_cuda_v1`, under the mode "cuda_source"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo

from frx_graph.analyzers.cuda.analysis import CudaAnalysis
from frx_graph.analyzers.kernels.occupancy_model import Limiter
from frx_graph.evidence.cuda.source import Access, BarrierKind, CudaSource, Space, StrideKind, Use
from frx_graph.reports.render.document import Part, is_of_record, read_from
from frx_graph.rules.cuda_card import Category, Severity
from frx_graph.rules.recommendation_card import Direction


class ParameterPart(Part):
    """A parameter of a kernel."""

    name: str
    type: str = Field(description="type that a pointer points to")
    pointer: bool
    const: bool
    restrict: bool


class ArrayPart(Part):
    """Shared or local memory that a kernel declares."""

    name: str
    line: int
    space: Space
    element: str
    sizes: tuple[int | None, ...] = Field(description="null: not a number in the source")
    bytes: int | None
    dynamic: bool = Field(description="size given by the launch")


class AccessPart(Part):
    """An array element that each thread uses."""

    line: int = read_from("step.line")
    base: str
    space: Space
    use: Use
    text: str
    element: str
    element_bytes: int | None
    index: Annotated[str, BeforeValidator(str)] = read_from("offset", "in elements, as far as known")
    stride_kind: StrideKind = read_from("stride.kind")
    stride_elements: int | None = read_from("stride.elements", "from one thread to the next in x; null: not a number")
    stride: str | None = read_from("stride.text", "the same as text, such as `width`; null: unknown")
    stride_bytes: int | None
    bank_conflict: int | None = read_from(
        "conflict", "turns that a warp's access takes, 1 without a conflict; null: unknown"
    )


def _list_texts(conditions: Sequence[Any], info: ValidationInfo) -> list[str]:
    return [condition.text for condition in conditions] if is_of_record(info) else list(conditions)


class BarrierPart(Part):
    """A point at which threads wait for each other."""

    line: int = read_from("step.line")
    kind: BarrierKind
    text: str
    below: Annotated[tuple[str, ...], BeforeValidator(_list_texts)] = read_from(
        "step.conditions", "the conditions around it"
    )


class KernelPart(Part):
    """A `__global__` function."""

    name: str
    line: int
    template: tuple[str, ...]
    parameters: tuple[ParameterPart, ...]
    launch_bounds: str | None = read_from("launch_bounds.text")
    complete: bool = Field(description="false: parsed only in part")
    arrays: tuple[ArrayPart, ...]
    accesses: tuple[AccessPart, ...]
    barriers: tuple[BarrierPart, ...]


class ResidencyPart(Part):
    """Upper limit of residency on a multiprocessor. Registers are unknown and not included."""

    gpu: str
    blocks_per_sm: int = read_from("blocks")
    occupancy: float = Field(description="0..1")
    limiter: Limiter | None = Field(description="null: every warp fits")
    waves: float | None = Field(description="how often the grid fills the GPU; null: unknown")


class LaunchPart(Part):
    """A launch. Sizes are null if the source has no number."""

    kernel: str = read_from("launch.kernel")
    line: int = read_from("launch.line")
    grid: str = read_from("launch.grid.text")
    grid_size: tuple[int | None, int | None, int | None] = read_from("launch.grid.sizes")
    block: str = read_from("launch.block.text")
    block_size: tuple[int | None, int | None, int | None] = read_from("launch.block.sizes")
    threads: int | None = Field(description="of a block")
    shared: str | None = read_from("launch.shared")
    shared_bytes: int | None = Field(description="of a block, static and dynamic")
    stream: str | None = read_from("launch.stream")
    residency: tuple[ResidencyPart, ...] = Field(
        description="on the named GPU, or on each compute capability; empty: unknown"
    )
    suggestion: str | None


class FindingPart(Part):
    """A rule, and the places where it applies."""

    rule: str = read_from("card.id")
    severity: Severity = read_from("card.severity")
    category: Category = read_from("card.category")
    title: str = read_from("card.title")
    kernel: str
    line: int
    message: str = read_from("seen")
    confidence: float = read_from("card.confidence")
    access: AccessPart | None


class ConfirmPart(Part):
    """The expected result of a measurement."""

    metric: str
    direction: Direction
    threshold: float | None
    expected: str


class RulePart(Part):
    """Description of a rule with findings."""

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


class HeaderPart(Part):
    """A header that was read with the file. Lines are counted on: `line` is the first one there."""

    path: str
    line: int


class NotExaminedPart(Part):
    """Code of one kind that no finding covers."""

    kind: str
    count: int
    consequence: str
    examples: tuple[str, ...] = Field(description="names or texts of the first ones")


class CudaResult(Part):
    """Findings in one file."""

    schema_: Literal["frx_cuda_v1"] = Field(default="frx_cuda_v1", alias="schema")
    source: str
    gpu_model: str | None = Field(description="the GPU assumed for the findings; null: any")
    bytes: int = read_from("coverage.bytes")
    unparsed_bytes: int = read_from("coverage.unparsed")
    parse_coverage: float = read_from("coverage.share", "share of the bytes that the parser understood, 0..1")
    kernel_count: int
    launch_count: int
    kernels: tuple[KernelPart, ...]
    unread_kernels: tuple[str, ...] = read_from("unread", "names of kernels of which only the name could be read")
    launches: tuple[LaunchPart, ...]
    findings: tuple[FindingPart, ...]
    rules: tuple[RulePart, ...]
    headers: tuple[HeaderPart, ...] = Field(default=(), description="headers that were read with the file")
    not_examined: tuple[NotExaminedPart, ...] = Field(default=(), description="what the findings do not cover")


class CudaDocument(Part):
    """Wrapper shared by all analyses."""

    mode: Literal["cuda_source"] = "cuda_source"
    result: CudaResult


def build_cuda_document(source: CudaSource, analysis: CudaAnalysis) -> CudaDocument:
    """Return the document of a file."""
    counts = Counter(finding.card.id for finding in analysis.findings)
    cards = {finding.card.id: finding.card for finding in analysis.findings}
    return CudaDocument(
        result=CudaResult.from_record(
            source,
            gpu_model=None if analysis.gpu is None else analysis.gpu.name,
            kernel_count=len(source.kernels),
            launch_count=len(source.launches),
            kernels=tuple(
                KernelPart.from_record(one, accesses=tuple(map(_build_access, one.accesses))) for one in source.kernels
            ),
            launches=tuple(LaunchPart.from_record(one, shared_bytes=one.shared) for one in analysis.launches),
            findings=tuple(
                FindingPart.from_record(one, access=None if one.access is None else _build_access(one.access))
                for one in analysis.findings
            ),
            rules=tuple(RulePart.from_record(card, findings=counts[card.id]) for card in cards.values()),
            not_examined=tuple(map(NotExaminedPart.from_record, analysis.not_examined)),
        )
    )


def _build_access(access: Access) -> AccessPart:
    step, size = access.stride.elements, access.element_bytes
    stride_bytes = None if step is None or size is None else step * size
    return AccessPart.from_record(access, stride_bytes=stride_bytes)
