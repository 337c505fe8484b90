"""Which kernel of one side is which of the other: by name, and where that differs, by what the name begins with.

A template argument, a parameter or a namespace may differ between two versions of a kernel; its name in the source
seldom does. What has one counterpart only is paired, never one of several.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from frx_graph.evidence.kernel_signature import kernel_signature


class Winner(enum.StrEnum):
    """The better side. TIE: they are equal, as far as that can be told; UNKNOWN: it cannot be told."""

    A = "a"
    B = "b"
    TIE = "tie"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Change:
    """A number of both sides, in `unit`; None: not known of that side. Neither more nor less is better by itself."""

    metric: str
    title: str
    unit: str
    a: float | None
    b: float | None

    @property
    def delta(self) -> float | None:
        """What `b` has more."""
        return None if self.a is None or self.b is None else self.b - self.a


def less_is_better(a: float | None, b: float | None, band: float) -> Winner:
    """The side with less of it; a tie where they are within `band` of the larger, 0..1."""
    if a is None or b is None:
        return Winner.UNKNOWN
    if abs(a - b) <= band * max(abs(a), abs(b)):
        return Winner.TIE
    return Winner.A if a < b else Winner.B


T = TypeVar("T")
S = TypeVar("S")


class MatchedBy(enum.StrEnum):
    """Why two kernels are taken for versions of one."""

    NAME = "name"
    BASE_NAME = "base_name"
    """The same function, with other template arguments, parameters or namespaces."""
    ONLY_KERNEL = "only_kernel"
    """Other names, but each side has this one alone."""


@dataclass(frozen=True, slots=True)
class Pair(Generic[T]):
    """Two versions of a kernel."""

    a: T
    b: T
    by: MatchedBy


@dataclass(frozen=True, slots=True)
class Matching(Generic[T]):
    """All kernels of both sides. The order of `pairs` is that of `a`."""

    pairs: tuple[Pair[T], ...]
    only_a: tuple[T, ...]
    only_b: tuple[T, ...]

    @property
    def complete(self) -> bool:
        """Whether every kernel has its counterpart."""
        return not self.only_a and not self.only_b

    def map(self, known_by: Callable[[T], S]) -> Matching[S]:
        """The same of what each kernel is known by."""
        pairs = tuple(Pair(known_by(pair.a), known_by(pair.b), pair.by) for pair in self.pairs)
        return Matching(pairs, tuple(map(known_by, self.only_a)), tuple(map(known_by, self.only_b)))


def match_kernels(
    a: Sequence[T], b: Sequence[T], name: Callable[[T], str], place: Callable[[T], Hashable] = lambda _: None
) -> Matching[T]:
    """Kernels of `a` and `b` by `name`; of several of one name those at the same `place`, such as a device."""
    left, right = dict(enumerate(a)), dict(enumerate(b))
    pairs: dict[int, Pair[T]] = {}

    def pair(key: Callable[[T], Hashable], by: MatchedBy) -> None:
        ours, theirs = _unique(left, key), _unique(right, key)
        for same in ours.keys() & theirs.keys():
            i, j = ours[same], theirs[same]
            pairs[i] = Pair(left.pop(i), right.pop(j), by)

    pair(lambda kernel: (name(kernel), place(kernel)), MatchedBy.NAME)
    pair(name, MatchedBy.NAME)
    pair(lambda kernel: kernel_signature(name(kernel)).function, MatchedBy.BASE_NAME)
    if len(a) == len(b) == 1:
        pair(lambda _: None, MatchedBy.ONLY_KERNEL)
    return Matching(tuple(pairs[i] for i in sorted(pairs)), tuple(left.values()), tuple(right.values()))


def _unique(kernels: dict[int, T], key: Callable[[T], Hashable]) -> dict[Hashable, int]:
    """Those whose key no other has."""
    found: dict[Hashable, int | None] = {}
    for number, kernel in kernels.items():
        of = key(kernel)
        found[of] = None if of in found else number
    return {of: number for of, number in found.items() if number is not None}
