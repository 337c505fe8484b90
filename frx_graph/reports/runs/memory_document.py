"""A snapshot of the allocator as JSON: the document `frx_memory_v1`, under the mode "memory". Sizes are in bytes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from frx_graph.analyzers.memory import MemoryAnalysis, MemoryProblem
from frx_graph.reports.render.document import Part, read_from
from frx_graph.support.plain_text import clean_line

_LONGEST = 4000


class MemoryFindingPart(Part):
    """A problem on one device."""

    kind: MemoryProblem
    severity: Literal["high", "medium"]
    device: int
    evidence: str
    fix: str


class MemorySitePart(Part):
    """A line of the program."""

    file: str = read_from("site.file")
    line: int = read_from("site.line")
    function: str = read_from("site.function")
    live_bytes: int = Field(description="held when the snapshot was taken")
    live_blocks: int
    allocated_bytes: int = Field(description="in the recorded history")
    allocations: int = Field(description="in the recorded history")


class DeviceMemoryPart(Part):
    """The memory of one device."""

    device: int
    reserved_bytes: int = read_from("reserved", "taken from CUDA")
    allocated_bytes: int = read_from("allocated", "used by tensors")
    awaiting_free_bytes: int = read_from("awaiting_free", "freed by the program, and still in use by another stream")
    free_bytes: int = read_from("free", "reserved and not in use")
    largest_free_bytes: int = read_from("largest_free", "the largest request that fits without asking CUDA")
    segments: int
    expandable: bool
    allocations: int | None = Field(description="in the history; null: none was recorded")
    calls_to_cuda: int | None = Field(description="that take memory from CUDA or give it back")
    late_calls_to_cuda: int | None = Field(description="those in the second half of the history")


class MemoryResult(Part):
    """Findings in one snapshot."""

    schema_: Literal["frx_memory_v1"] = Field(default="frx_memory_v1", alias="schema")
    source: str
    devices: tuple[DeviceMemoryPart, ...]
    findings: tuple[MemoryFindingPart, ...] = Field(description="the gravest first")
    sites: tuple[MemorySitePart, ...] = Field(description="those that hold most memory")
    unreadable: int = Field(
        default=0, description="segments, blocks and events that could not be read, and are left out"
    )


class MemoryDocument(Part):
    """Wrapper shared by all analyses."""

    mode: Literal["memory"] = "memory"
    result: MemoryResult


def build_memory_document(source: str, analysis: MemoryAnalysis) -> MemoryDocument:
    """Return the document of a snapshot."""
    return MemoryDocument(result=MemoryResult.from_record(analysis, source=clean_line(source, _LONGEST)))
