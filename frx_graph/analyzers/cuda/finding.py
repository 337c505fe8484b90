"""What a detector of CUDA source sees, and what every detector file offers to the registry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from frx_graph.evidence.cuda.source import Access, CudaSource, Event, Kernel, Launch
from frx_graph.rules.gpu_profile import GpuProfile


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


@dataclass(frozen=True, slots=True)
class DeviceDetector:
    """The same of a rule that depends on the GPU: the one that was named, None where the source may run on any."""

    rule: str
    detect: Callable[[CudaSource, GpuProfile | None], Iterable[Sight]]


def by_loop(events: Iterable[Event]) -> Mapping[int, Sequence[Event]]:
    """What happens in each loop, by its number, in the same order; loops within it included."""
    inside: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        for number in event.step.loops:
            inside[number].append(event)
    return inside


def launches_of(source: CudaSource, kernel: Kernel) -> tuple[Launch, ...]:
    """The launches of a kernel in its own file."""
    name = kernel.name.split("<", 1)[0].rsplit("::", 1)[-1]
    return source.launches_by_name.get(name, ())
