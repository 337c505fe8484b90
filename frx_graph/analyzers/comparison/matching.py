"""Match the kernels of two sides, and count the findings that changed.

Two versions of a kernel may differ in template arguments, parameters or namespace, and seldom in the function's name.
Only a kernel with exactly one counterpart is paired.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from frx_graph.evidence.kernel_signature import parse_kernel_signature


class Winner(enum.StrEnum):
    """The better side. TIE: the evidence shows no difference; UNKNOWN: there is not enough evidence."""

    A = "a"
    B = "b"
    TIE = "tie"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Change:
    """A number of both sides, in `unit`; None if unknown for that side. Neither more nor less is better by itself."""

    metric: str
    title: str
    unit: str
    a: float | None
    b: float | None

    @property
    def delta(self) -> float | None:
        """Return how much more `b` has."""
        return None if self.a is None or self.b is None else self.b - self.a


def pick_lesser(a: float | None, b: float | None, band: float) -> Winner:
    """Return the side with less; a tie if they are within `band` of the larger, 0..1."""
    if a is None or b is None:
        return Winner.UNKNOWN
    if abs(a - b) <= band * max(abs(a), abs(b)):
        return Winner.TIE
    return Winner.A if a < b else Winner.B


T = TypeVar("T")
S = TypeVar("S")


class MatchedBy(enum.StrEnum):
    """Reasons to treat two kernels as versions of one."""

    NAME = "name"
    BASE_NAME = "base_name"
    """The same function with other template arguments, parameters or namespaces."""
    ONLY_KERNEL = "only_kernel"
    """Different names, but no other kernel remains on either side."""


@dataclass(frozen=True, slots=True)
class Pair(Generic[T]):
    """Two versions of a kernel."""

    a: T
    b: T
    by: MatchedBy


@dataclass(frozen=True, slots=True)
class Matching(Generic[T]):
    """All kernels of both sides. `pairs` follow the order of `a`."""

    pairs: tuple[Pair[T], ...]
    only_a: tuple[T, ...]
    only_b: tuple[T, ...]

    @property
    def complete(self) -> bool:
        """Return True if every kernel has a counterpart."""
        return not self.only_a and not self.only_b

    def map(self, known_by: Callable[[T], S]) -> Matching[S]:
        """Return the same matching of `known_by(kernel)`."""
        pairs = tuple(Pair(known_by(pair.a), known_by(pair.b), pair.by) for pair in self.pairs)
        return Matching(pairs, tuple(map(known_by, self.only_a)), tuple(map(known_by, self.only_b)))


def match_kernels(
    a: Sequence[T], b: Sequence[T], name: Callable[[T], str], place: Callable[[T], Hashable] = lambda _: None
) -> Matching[T]:
    """Match kernels of `a` and `b` by `name`, and those of one name by `place`, such as a device."""
    left, right = dict(enumerate(a)), dict(enumerate(b))
    pairs: dict[int, Pair[T]] = {}

    def pair(key: Callable[[T], Hashable], by: MatchedBy) -> None:
        ours, theirs = _find_unique(left, key), _find_unique(right, key)
        for same in ours.keys() & theirs.keys():
            i, j = ours[same], theirs[same]
            pairs[i] = Pair(left.pop(i), right.pop(j), by)

    pair(lambda kernel: (name(kernel), place(kernel)), MatchedBy.NAME)
    pair(name, MatchedBy.NAME)
    pair(lambda kernel: parse_kernel_signature(name(kernel)).function, MatchedBy.BASE_NAME)
    if len(a) == len(b) == 1:
        pair(lambda _: None, MatchedBy.ONLY_KERNEL)
    return Matching(tuple(pairs[i] for i in sorted(pairs)), tuple(left.values()), tuple(right.values()))


def _find_unique(kernels: Mapping[int, T], key: Callable[[T], Hashable]) -> dict[Hashable, int]:
    keys = {number: key(kernel) for number, kernel in kernels.items()}
    counts = Counter(keys.values())
    return {one: number for number, one in keys.items() if counts[one] == 1}


Layer = Literal["source", "ptx", "ncu"]


@dataclass(frozen=True, slots=True)
class KnownKernel:
    """A kernel's name and the device that it was measured on; None: not measured."""

    name: str
    device: str | None = None


@dataclass(frozen=True, slots=True)
class KernelFinding:
    """A finding for a kernel. `defect` means that it is always worse to have it."""

    code: str
    kernel: KnownKernel
    defect: bool = True


@dataclass(frozen=True, slots=True)
class FindingChange:
    """Counts of a finding in `a` and `b`, for `kernel_a` and `kernel_b`. Both kernels are None in the total for all
    kernels without a counterpart."""

    layer: Layer
    code: str
    kernel_a: KnownKernel | None
    kernel_b: KnownKernel | None
    a: int
    b: int
    defect: bool

    @property
    def resolved(self) -> bool:
        """Return True if `b` has it less often."""
        return self.defect and self.b < self.a

    @property
    def introduced(self) -> bool:
        """Return True if `b` has it more often."""
        return self.defect and self.b > self.a


def compare_findings(
    layer: Layer, matching: Matching[KnownKernel], a: Iterable[KernelFinding], b: Iterable[KernelFinding]
) -> tuple[FindingChange, ...]:
    """Return the findings whose counts differ. Kernels without a counterpart count together, so a finding that moved
    from one to another has not changed."""
    ours = _count_findings(a, [pair.a for pair in matching.pairs], matching.only_a)
    theirs = _count_findings(b, [pair.b for pair in matching.pairs], matching.only_b)
    changes = []
    for key in ours.keys() | theirs.keys():
        if ours[key] != theirs[key]:
            place, code, defect = key
            in_a, in_b = (None, None) if place is None else (matching.pairs[place].a, matching.pairs[place].b)
            changes.append(FindingChange(layer, code, in_a, in_b, ours[key], theirs[key], defect))
    return tuple(sorted(changes, key=_sort_change))


def _sort_change(change: FindingChange) -> tuple[str, bool, list[tuple[str, str]]]:
    """Order changes in the same way from either side."""
    kernels = (one or KnownKernel("") for one in (change.kernel_a, change.kernel_b))
    return change.code, change.defect, sorted((one.name, one.device or "") for one in kernels)


def _count_findings(
    found: Iterable[KernelFinding], paired: Sequence[KnownKernel], others: Sequence[KnownKernel]
) -> Counter[tuple[int | None, str, bool]]:
    """Count findings by the number of their pair. A launch's name has template arguments, such as `scale<float>`; it
    belongs to the only kernel with that base name."""
    exact: dict[KnownKernel, int | None] = dict.fromkeys(others)
    exact.update((kernel, place) for place, kernel in enumerate(paired))
    places: dict[KnownKernel, int | None] = {}
    for kernel, place in exact.items():
        base = _get_base(kernel)
        places[base] = None if base in places else place
    places.update(exact)
    return Counter(
        (places.get(one.kernel if one.kernel in exact else _get_base(one.kernel)), one.code, one.defect)
        for one in found
    )


def _get_base(kernel: KnownKernel) -> KnownKernel:
    return KnownKernel(parse_kernel_signature(kernel.name).function)


def list_changes(
    numbers: Iterable[tuple[str, str, str]], a: Mapping[str, float | None], b: Mapping[str, float | None]
) -> tuple[Change, ...]:
    """Return the values on both sides of `numbers`: metric, title and unit of each."""
    return tuple(Change(name, title, unit, a.get(name), b.get(name)) for name, title, unit in numbers)
