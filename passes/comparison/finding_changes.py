"""Findings that one side has and the other has not, kernel by kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from frx_graph.evidence.kernel_signature import kernel_signature
from frx_graph.passes.comparison.matching import Matching

Layer = Literal["source", "ptx", "ncu"]


@dataclass(frozen=True, slots=True)
class Found:
    """A finding of a kernel. `defect`: to have it is worse than not to have it, and that is sure enough to say."""

    code: str
    kernel: str
    defect: bool = True


@dataclass(frozen=True, slots=True)
class FindingChange:
    """How often `a` and `b` have a finding, in the kernel that they call `kernel_a` and `kernel_b`; both are None for
    all kernels without a counterpart together."""

    layer: Layer
    code: str
    kernel_a: str | None
    kernel_b: str | None
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
    layer: Layer, matching: Matching[str], a: Iterable[Found], b: Iterable[Found]
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


def _order(change: FindingChange) -> tuple[str, bool, list[str]]:
    """The same from either side."""
    return change.code, change.defect, sorted((change.kernel_a or "", change.kernel_b or ""))


def _counted(
    found: Iterable[Found], paired: Sequence[str], others: Sequence[str]
) -> Counter[tuple[int | None, str, bool]]:
    places = _places(paired, others)
    return Counter((_place(places, one.kernel), one.code, one.defect) for one in found)


def _places(paired: Sequence[str], others: Sequence[str]) -> Mapping[str, int | None]:
    """The pair of each name, and of each base name that one kernel alone has."""
    exact: dict[str, int | None] = {**dict.fromkeys(others), **{name: place for place, name in enumerate(paired)}}
    bases: dict[str, int | None] = {}
    for name, place in exact.items():
        base = kernel_signature(name).function
        bases[base] = None if base in bases else place
    return {**bases, **exact}


def _place(places: Mapping[str, int | None], kernel: str) -> int | None:
    """Of a launch the name has the template's arguments, `scale<float>`, that of the kernel has none."""
    return places[kernel] if kernel in places else places.get(kernel_signature(kernel).function)
