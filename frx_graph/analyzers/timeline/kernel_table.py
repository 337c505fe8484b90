"""Tabulate kernels by name, by purpose, and by the operators that launched them."""

from __future__ import annotations

import functools
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from frx_graph.analyzers.timeline.host_time import Part
from frx_graph.analyzers.timeline.windows import Windows
from frx_graph.analyzers.trace.analysis import TraceAnalysis
from frx_graph.analyzers.trace.kernel_names import KernelFamily, classify_kernel_family, is_on_tensor_cores
from frx_graph.analyzers.trace.operators import is_operator, iterate_upwards
from frx_graph.capture.call_site import CallSite
from frx_graph.evidence.trace.events import ActivityKind
from frx_graph.evidence.trace.tree import NONE, TraceTree

_NAMED = 5
"""Limit on the operators named for a kernel, those with the most time."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """The dispatched operators around a launch: the innermost and the outermost, equal if there is one."""

    inner: str
    outer: str


@dataclass(frozen=True, slots=True)
class KernelTotal:
    """All launches of one kernel within the steps. `operators` lists those with the most time, and that time."""

    name: str
    family: KernelFamily
    tensor_cores: bool | None
    count: int
    total_ns: int
    median_ns: float
    operators: tuple[tuple[Launcher, int], ...]


@dataclass(frozen=True, slots=True)
class OperatorTotal:
    """All kernels that one pair of operators launched in one part of the step. `site` is the place with the most time,
    `sites` the number of places."""

    launcher: Launcher
    part: Part
    calls: int
    kernels: int
    total_ns: int
    site: CallSite
    sites: int


@dataclass(frozen=True, slots=True)
class KernelTable:
    """Kernels that were launched within the steps, the longest first. Times are sums over streams."""

    kernels: tuple[KernelTotal, ...]
    operators: tuple[OperatorTotal, ...]
    families: dict[KernelFamily, tuple[int, int]]
    """Number of kernels and nanoseconds."""
    parts: dict[Part, int]
    """Nanoseconds of the kernels that each part of the step launched."""
    count: int
    total_ns: int
    attributed: int
    """Kernels with a known launching operator."""
    attributed_ns: int


def tabulate_kernels(analysis: TraceAnalysis, windows: Windows, parts: Sequence[Part]) -> KernelTable:
    """Tabulate the kernels of the steps; `parts` is by operator."""
    tree = analysis.tree
    kernels = [index for index in windows.launched if tree.activities[index].kind is ActivityKind.KERNEL]
    find_launcher = functools.cache(functools.partial(_find_launcher, tree))
    durations: dict[str, list[int]] = defaultdict(list)
    by_kernel: dict[str, Counter[Launcher]] = defaultdict(Counter)
    by_operator: dict[tuple[Launcher, Part], list[int]] = defaultdict(list)
    by_part: Counter[Part] = Counter()
    for index in kernels:
        kernel, operator = tree.activities[index], tree.launcher[index]
        durations[kernel.name].append(kernel.duration_ns)
        by_part[parts[operator] if operator != NONE else Part.OTHER] += kernel.duration_ns
        if (launcher := find_launcher(operator)) is not None:
            by_kernel[kernel.name][launcher] += kernel.duration_ns
            by_operator[launcher, parts[operator]].append(index)
    by_family: dict[KernelFamily, list[int]] = defaultdict(list)
    for name, times in durations.items():
        by_family[classify_kernel_family(name)] += times
    families = [(family, (len(times), sum(times))) for family, times in by_family.items()]
    totals = [
        KernelTotal(
            name=name,
            family=classify_kernel_family(name),
            tensor_cores=is_on_tensor_cores(name),
            count=len(times),
            total_ns=sum(times),
            median_ns=statistics.median(times),
            operators=tuple(by_kernel[name].most_common(_NAMED)),
        )
        for name, times in durations.items()
    ]
    operators = [_sum_operator(analysis, *key, indices) for key, indices in by_operator.items()]
    return KernelTable(
        kernels=tuple(sorted(totals, key=lambda one: (-one.total_ns, one.name))),
        operators=tuple(sorted(operators, key=lambda one: (-one.total_ns, one.launcher.outer, one.launcher.inner))),
        families=dict(sorted(families, key=lambda item: -item[1][1])),
        parts=dict(by_part),
        count=len(kernels),
        total_ns=sum(map(sum, durations.values())),
        attributed=sum(map(len, by_operator.values())),
        attributed_ns=sum(times.total() for times in by_kernel.values()),
    )


def _find_launcher(tree: TraceTree, operator: int) -> Launcher | None:
    """Return the dispatched operators around an operator, or else autograd's nodes; None if there are only ranges."""
    above = (tree.operators[index] for index in iterate_upwards(tree, operator))
    # In older traces, only torch's names distinguish ranges from operators.
    called = [one for one in above if not one.annotation and "#" not in one.name]
    dispatched = [one for one in called if is_operator(one)] or called
    return Launcher(dispatched[0].name, dispatched[-1].name) if dispatched else None


def _sum_operator(analysis: TraceAnalysis, launcher: Launcher, part: Part, kernels: Sequence[int]) -> OperatorTotal:
    tree = analysis.tree
    sites: Counter[CallSite] = Counter()
    for index in kernels:
        sites[analysis.find_site(tree.launcher[index])] += tree.activities[index].duration_ns
    return OperatorTotal(
        launcher=launcher,
        part=part,
        calls=len({tree.launcher[index] for index in kernels}),
        kernels=len(kernels),
        total_ns=sum(sites.values()),
        site=sites.most_common(1)[0][0],
        sites=len(sites),
    )
