"""Findings that one side has and the other has not, kernel by kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from frx_graph.analyzers.comparison.matching import Matching
from frx_graph.evidence.kernel_signature import kernel_signature

Layer = Literal["source", "ptx", "ncu"]


@dataclass(frozen=True, slots=True)
class KnownKernel:
    """What a kernel is known by: its name, and the device that it was measured on; None where it was not."""

    name: str
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """A finding of a kernel. `defect`: to have it is worse than not to have it, and that is sure enough to say."""

    code: str
    kernel: KnownKernel
    defect: bool = True


@dataclass(frozen=True, slots=True)
class FindingChange:
    """How often `a` and `b` have a finding, in what is `kernel_a` there and `kernel_b` here; both are None for all
    kernels without a counterpart together."""

    layer: Layer
    code: str
    kernel_a: KnownKernel | None
    kernel_b: KnownKernel | None
    a: int
    b: int
    defect: bool

    @property
    def resolved(self) -> bool:
        """`b` has it less often."""
        return self.defect and self.b < self.a

    @property
    def introduced(self) -> bool:
        """`b` has it more often."""
        return self.defect and self.b > self.a


def finding_changes(
    layer: Layer, matching: Matching[KnownKernel], a: Iterable[Found], b: Iterable[Found]
) -> tuple[FindingChange, ...]:
    """What differs. Kernels without a counterpart count together: what went with one of them and came back with another
    has not changed."""
    ours = _counted(a, [pair.a for pair in matching.pairs], matching.only_a)
    theirs = _counted(b, [pair.b for pair in matching.pairs], matching.only_b)
    changes = []
    for key in ours.keys() | theirs.keys():
        if ours[key] == theirs[key]:
            continue
        place, code, defect = key
        pair = None if place is None else matching.pairs[place]
        names = (None, None) if pair is None else (pair.a, pair.b)
        changes.append(FindingChange(layer, code, names[0], names[1], ours[key], theirs[key], defect))
    return tuple(sorted(changes, key=_order))


def _order(change: FindingChange) -> tuple[str, bool, list[tuple[str, str]]]:
    """The same from either side."""
    kernels = (one or KnownKernel("") for one in (change.kernel_a, change.kernel_b))
    return change.code, change.defect, sorted((one.name, one.device or "") for one in kernels)


def _counted(
    found: Iterable[Found], paired: Sequence[KnownKernel], others: Sequence[KnownKernel]
) -> Counter[tuple[int | None, str, bool]]:
    places = _places(paired, others)
    return Counter((_place(places, one.kernel), one.code, one.defect) for one in found)


def _places(paired: Sequence[KnownKernel], others: Sequence[KnownKernel]) -> Mapping[KnownKernel, int | None]:
    """The pair of each kernel, and of each base name that one kernel alone has."""
    exact: dict[KnownKernel, int | None] = dict.fromkeys(others)
    exact.update((kernel, place) for place, kernel in enumerate(paired))
    bases: dict[KnownKernel, int | None] = {}
    for kernel, place in exact.items():
        base = KnownKernel(kernel_signature(kernel.name).function)
        bases[base] = None if base in bases else place
    return {**bases, **exact}


def _place(places: Mapping[KnownKernel, int | None], kernel: KnownKernel) -> int | None:
    """Of a launch the name has the template's arguments, `scale<float>`, that of the kernel has none."""
    return places[kernel] if kernel in places else places.get(KnownKernel(kernel_signature(kernel.name).function))
