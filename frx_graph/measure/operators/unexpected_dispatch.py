"""Find the convolutions, matrix products and attentions that a candidate runs by worse kernels than the baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from frx_graph.measure.operators.implementation_rank import Rank, Work, rank_implementation
from frx_graph.measure.operators.kernel_identities import Kernel, KernelIdentities, Source

_PRODUCTS_OF_SCORES = ("aten::baddbmm", "aten::bmm")
Counts = Mapping[Kernel, int]


@dataclass(frozen=True, slots=True)
class UnexpectedDispatch:
    """`count` calls more than in the baseline run as `after`, while the baseline has something better. `before` are the
    baseline's better kernels for the same work; `problem` is oneDNN's, empty where both have none in common."""

    work: Work
    problem: str
    before: tuple[str, ...]
    after: str
    count: int

    def __str__(self) -> str:
        """For people."""
        subject = self.problem or self.work.value
        return f"{subject}: {self.count} × {self.after} instead of {', '.join(self.before)}"


@dataclass(frozen=True, slots=True)
class KernelChange:
    """A kernel that ran more or less often. This is evidence, not a verdict."""

    kernel: Kernel
    before: int
    after: int

    def __str__(self) -> str:
        """For people."""
        return f"{self.kernel.name} ({self.kernel.problem or self.kernel.source}) from {self.before} to {self.after}"


def find_unexpected_dispatch(before: KernelIdentities, after: KernelIdentities) -> tuple[UnexpectedDispatch, ...]:
    """Return the kernels of the candidate `after` that rank below the baseline `before`.

    oneDNN's primitives are compared problem by problem. Kernels without a problem, or with one that only one side has
    (a rewrite may change shapes), are compared by their work. A worse kernel counts if the number of kernels of that
    rank or below has grown, and the baseline had a better one for that work. Kernels without a rank are never worse,
    and nothing is worse than them. A source that one side cannot read is left out.
    """
    untold = {*before.untold, *after.untold}
    old, new = (
        {kernel: count for kernel, count in _count_told(side, untold).items() if rank_implementation(kernel)}
        for side in (before, after)
    )
    shared = {kernel.problem for kernel in old} & {kernel.problem for kernel in new} - {""}
    found: list[UnexpectedDispatch] = []
    # A convolution that no longer runs in oneDNN has no problem, so it is compared by work.
    for problem in (*sorted(shared), ""):
        compared = {problem} if problem else {kernel.problem for kernel in (*old, *new)} - shared
        had, has = ({kernel: n for kernel, n in side.items() if kernel.problem in compared} for side in (old, new))
        found.extend(_find_worse(had, has, problem))
    if Source.ATEN not in untold and all(one.work is not Work.ATTENTION for one in found):
        found.extend(_find_unfused_attention(before, after))
    return tuple(found)


def list_changed_kernels(before: KernelIdentities, after: KernelIdentities) -> tuple[KernelChange, ...]:
    """Return all kernels that do not run as often as before, sorted: added reorders, loops that are fused otherwise. A
    source that one side cannot read is left out."""
    untold = {*before.untold, *after.untold}
    old, new = _count_told(before, untold), _count_told(after, untold)
    return tuple(
        KernelChange(kernel, old[kernel], new[kernel])
        for kernel in sorted(old.keys() | new.keys())
        if old[kernel] != new[kernel]
    )


def _count_told(identities: KernelIdentities, untold: set[Source]) -> Counter[Kernel]:
    return Counter({entry.kernel: entry.count for entry in identities.kernels if entry.kernel.source not in untold})


def _find_worse(old: Counts, new: Counts, problem: str) -> Iterator[UnexpectedDispatch]:
    for work in Work:
        before, after = _count_by_rank(old, work), _count_by_rank(new, work)
        best = max((rank for _, rank, _ in before), default=None)
        if best is None:
            continue
        had = Counter({name: count for name, _, count in before})
        told = 0
        for rank in (rank for rank in Rank if rank < best):
            more = sum(count for _, found, count in after if found <= rank) - told
            more -= sum(count for _, found, count in before if found <= rank)
            better = tuple(name for name, found, _ in before if found > rank)
            for name, count in ((name, count - had[name]) for name, found, count in after if found == rank):
                if count > 0 and more > 0:
                    yield UnexpectedDispatch(work, problem, better, name, min(count, more))
                    told += min(count, more)
                    more -= count


def _count_by_rank(kernels: Counts, work: Work) -> list[tuple[str, Rank, int]]:
    """Return names with their ranks and counts, sorted."""
    found: Counter[tuple[str, Rank]] = Counter()
    for kernel, count in kernels.items():
        ranked = rank_implementation(kernel)
        if ranked is not None and ranked.work is work:
            found[kernel.name, ranked.rank] += count
    return [(name, rank, found[name, rank]) for name, rank in sorted(found)]


def _find_unfused_attention(before: KernelIdentities, after: KernelIdentities) -> Iterator[UnexpectedDispatch]:
    """Return the kernels of compiled attention that is not fused: two batched products, and no attention operator."""
    old, new = before.count_kernels(Source.ATEN), after.count_kernels(Source.ATEN)
    fused = [name for name in sorted(old) if _is_fused_attention(name)]
    lost = sum(old[name] for name in fused) - sum(count for name, count in new.items() if _is_fused_attention(name))
    products = {name: new[name] - old[name] for name in _PRODUCTS_OF_SCORES}
    if lost > 0 and sum(products.values()) >= 2 * lost:
        name = max(products, key=products.__getitem__)
        yield UnexpectedDispatch(Work.ATTENTION, "", tuple(fused), name, lost)


def _is_fused_attention(name: str) -> bool:
    found = rank_implementation(Kernel(Source.ATEN, name))
    return found is not None and found.work is Work.ATTENTION and found.rank is Rank.SPECIAL
