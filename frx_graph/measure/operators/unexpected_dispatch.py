"""Find the convolutions, matrix products and attentions that a candidate runs by worse kernels than the baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from frx_graph.measure.operators.implementation_rank import Implementation, Rank, Work, rank_implementation
from frx_graph.measure.operators.kernel_identities import Kernel, KernelIdentities, Source

_PRODUCTS_OF_SCORES = frozenset({"aten::bmm", "aten::baddbmm"})
Ranked = Mapping[Kernel, int]


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
    old, new = _select_ranked(before, untold), _select_ranked(after, untold)
    shared = {k.problem for k in old if k.problem} & {k.problem for k in new if k.problem}
    found: list[UnexpectedDispatch] = []
    for problem in sorted(shared):
        found.extend(_find_worse(_select_problem(old, problem), _select_problem(new, problem), problem))
    rest_old = {kernel: count for kernel, count in old.items() if kernel.problem not in shared}
    rest_new = {kernel: count for kernel, count in new.items() if kernel.problem not in shared}
    # A convolution that no longer runs in oneDNN has no problem, so it is compared by work.
    found.extend(_find_worse(rest_old, rest_new, ""))
    if Source.ATEN not in untold:
        found.extend(_find_unfused_attention(before, after, found))
    return tuple(found)


def list_changed_kernels(before: KernelIdentities, after: KernelIdentities) -> tuple[KernelChange, ...]:
    """Return all kernels that do not run as often as before, sorted: added reorders, loops that are fused otherwise. A
    source that one side cannot read is left out."""
    untold = {*before.untold, *after.untold}
    old, new = (
        Counter({entry.kernel: entry.count for entry in side.kernels if entry.kernel.source not in untold})
        for side in (before, after)
    )
    return tuple(
        KernelChange(kernel, old[kernel], new[kernel])
        for kernel in sorted(old.keys() | new.keys())
        if old[kernel] != new[kernel]
    )


def _select_ranked(identities: KernelIdentities, untold: set[Source]) -> Ranked:
    return {
        entry.kernel: entry.count
        for entry in identities.kernels
        if entry.kernel.source not in untold and rank_implementation(entry.kernel) is not None
    }


def _select_problem(kernels: Ranked, problem: str) -> Ranked:
    return {kernel: count for kernel, count in kernels.items() if kernel.problem == problem}


def _find_worse(old: Ranked, new: Ranked, problem: str) -> Iterator[UnexpectedDispatch]:
    for work in Work:
        before, after = _count_by_rank(old, work), _count_by_rank(new, work)
        best = max((rank for _, rank, _ in before), default=None)
        if best is None:
            continue
        had = Counter({name: count for name, _, count in before})
        told = 0
        for rank in (rank for rank in Rank if rank < best):
            more = _count_up_to(after, rank) - _count_up_to(before, rank) - told
            better = tuple(name for name, found, _ in before if found > rank)
            for name, count in ((name, count - had[name]) for name, found, count in after if found == rank):
                if count > 0 and more > 0:
                    yield UnexpectedDispatch(work, problem, better, name, min(count, more))
                    told += min(count, more)
                    more -= count


def _count_by_rank(kernels: Ranked, work: Work) -> list[tuple[str, Rank, int]]:
    """Names with their ranks and counts, sorted."""
    found: Counter[tuple[str, Rank]] = Counter()
    for kernel, count in kernels.items():
        ranked = _get_implementation(kernel)
        if ranked.work is work:
            found[kernel.name, ranked.rank] += count
    return [(name, rank, found[name, rank]) for name, rank in sorted(found)]


def _get_implementation(kernel: Kernel) -> Implementation:
    found = rank_implementation(kernel)
    assert found is not None
    return found


def _count_up_to(kernels: list[tuple[str, Rank, int]], rank: Rank) -> int:
    return sum(count for _, found, count in kernels if found <= rank)


def _find_unfused_attention(
    before: KernelIdentities, after: KernelIdentities, found: list[UnexpectedDispatch]
) -> Iterator[UnexpectedDispatch]:
    """Return the kernels of compiled attention that is not fused: two batched products, and no attention operator."""
    if any(one.work is Work.ATTENTION for one in found):
        return
    old, new = before.count_kernels(Source.ATEN), after.count_kernels(Source.ATEN)
    fused = [name for name in sorted(old) if _is_fused_attention(name)]
    lost = sum(old[name] for name in fused) - sum(count for name, count in new.items() if _is_fused_attention(name))
    products = {name: new[name] - old[name] for name in _PRODUCTS_OF_SCORES}
    if lost > 0 and sum(products.values()) >= 2 * lost:
        name = max(sorted(products), key=lambda product: products[product])
        yield UnexpectedDispatch(Work.ATTENTION, "", tuple(fused), name, lost)


def _is_fused_attention(name: str) -> bool:
    found = rank_implementation(Kernel(Source.ATEN, name))
    return found is not None and found.work is Work.ATTENTION and found.rank is Rank.SPECIAL
