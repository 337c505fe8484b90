"""What a detector of CUDA source sees, and what every detector file offers to the registry."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from frx_graph.evidence.cuda.source import Access, CudaSource, Kernel, Launch


@dataclass(frozen=True, slots=True)
class Sight:
    """One place of one kernel. `seen` says what is there, in a sentence of its own."""

    kernel: str
    line: int
    seen: str
    access: Access | None = None


@dataclass(frozen=True, slots=True)
class CudaDetector:
    """One rule's code and the function that looks for it; the name is that of its card, for the defect."""

    rule: str
    detect: Callable[[CudaSource], Iterable[Sight]]


def launches_of(source: CudaSource, kernel: Kernel) -> tuple[Launch, ...]:
    """The launches of a kernel in its own file."""
    name = kernel.name.split("<", 1)[0].rsplit("::", 1)[-1]
    return source.launches_by_name.get(name, ())
