"""The cheapest layouts for a group of regions, exactly, as a minimum cut.

Two labels make the problem polynomial. An operator lies on the source's side if it runs channels-last; its measured
seconds are edges to source and sink. A value is charged once, however many readers it has: an edge of the conversion's
cost leads from its producer to a helper node, and uncuttable edges lead on to the readers; a second helper does the
same for the reverse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from frx_graph.facts.layout import Layout
from frx_graph.passes.layouts.layout_problem import Labels, LayoutProblem, ValueCost

NOISE_SHARE = 0.05
"""A measured gain below this share of the anchors' time is not believed: medians of runs of microseconds to
milliseconds repeat within a few percent on a machine that does other things, too."""

_WHOLE = 2**29
"""What all finite capacities together are scaled to: scipy's flow is computed in 32-bit integers, and an uncuttable
edge must hold more than all of them."""
_UNCUTTABLE = 2**30


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """Neighbouring operators that are cheaper in `target`, all changed together.

    Seconds are per step: of the measured anchors before and after, and of the conversions that the change adds less
    those that it removes. `entering` are the values that have to be converted to `target` only after the change,
    `leaving` those that operators of the same group then need converted back. `unmeasured` are anchors without a time.
    """

    target: Layout
    rank: int
    nodes: tuple[str, ...]
    anchors: tuple[str, ...]
    unmeasured: tuple[str, ...]
    before_seconds: float
    after_seconds: float
    conversion_seconds: float
    conversion_bytes: int
    entering: tuple[str, ...]
    leaving: tuple[str, ...]

    @property
    def gain_seconds(self) -> float:
        """Seconds saved per step."""
        return self.before_seconds - self.after_seconds - self.conversion_seconds

    @property
    def exceeds_noise(self) -> bool:
        """True if the gain is more than measurements of the same thing differ by."""
        return self.gain_seconds > NOISE_SHARE * self.before_seconds


def cheapest_layouts(problem: LayoutProblem) -> tuple[Layout, ...]:
    """One layout per operator, of least total seconds; of equally cheap ones, the one nearest to the program."""
    count = len(problem.group.operators)
    edges = list(_edges(problem))
    total = sum(capacity for _, _, capacity in edges if capacity is not None)
    if not problem.times or total <= 0:
        return problem.current
    scale = _WHOLE / total
    source, sink = count, count + 1
    size = max(count + 1, max(max(a, b) for a, b, _ in edges)) + 1
    # One unit, far below any measured time, holds an operator where it is when nothing else does.
    for index, layout in enumerate(problem.current):
        edges.append((source, index, 1 / scale) if layout is Layout.CHANNELS_LAST else (index, sink, 1 / scale))
    merged: dict[tuple[int, int], int] = {}
    for tail, head, capacity in edges:
        units = _UNCUTTABLE if capacity is None else round(capacity * scale)
        merged[tail, head] = min(_UNCUTTABLE, merged.get((tail, head), 0) + units)
    tails, heads = np.array(list(merged), dtype=np.int32).T
    graph = coo_matrix((np.fromiter(merged.values(), dtype=np.int32), (tails, heads)), shape=(size, size)).tocsr()
    flow = maximum_flow(graph, source, sink).flow
    residual = graph - flow
    residual.data = np.maximum(residual.data, 0)
    residual.eliminate_zeros()
    reached = np.zeros(size, dtype=bool)
    reached[breadth_first_order(residual, source, return_predecessors=False)] = True
    return tuple(Layout.CHANNELS_LAST if reached[index] else Layout.PLAIN for index in range(count))


def _edges(problem: LayoutProblem) -> Iterator[tuple[int, int, float | None]]:
    """Tail, head and seconds, None for an edge that must not be cut. The source follows the operators, then the sink,
    then the helpers."""
    count = len(problem.group.operators)
    source, sink, helper = count, count + 1, count + 2
    for index, seconds in problem.times.items():
        yield source, index, seconds[Layout.PLAIN]
        yield index, sink, seconds[Layout.CHANNELS_LAST]
    for index, layout in problem.pinned.items():
        yield (source, index, None) if layout is Layout.CHANNELS_LAST else (index, sink, None)
    for first, second in problem.tied:
        yield first, second, None
        yield second, first, None
    for value in problem.values:
        if value.producer is not None:
            has = value.producer
        elif value.given is not None:
            has = _terminal(value.given, source, sink)
        else:
            continue
        readers = [*value.readers, *(t for w in value.wanted if (t := _terminal(w, source, sink)) != has)]
        cost = value.conversion_bytes * problem.seconds_per_byte
        if len(readers) == 1:
            yield has, readers[0], cost
            yield readers[0], has, cost
        elif readers:
            yield has, helper, cost
            yield helper + 1, has, cost
            for reader in readers:
                yield helper, reader, None
                yield reader, helper + 1, None
            helper += 2


def _terminal(layout: Layout, source: int, sink: int) -> int:
    return source if layout is Layout.CHANNELS_LAST else sink


def steady_layouts(problem: LayoutProblem) -> tuple[Layout, ...]:
    """The cheapest layouts without what noise alone could explain: the best of one layout for all, the other, and the
    program as it stands, changed only where a part gains more than `NOISE_SHARE` of its own time by differing."""
    pinned = problem.pinned
    uniform = [
        tuple(pinned.get(index, layout) for index in range(len(problem.current)))
        for layout in (Layout.PLAIN, Layout.CHANNELS_LAST)
    ]
    base = min((problem.current, *uniform), key=problem.seconds)
    steady = list(base)
    index_of = {operator.op.node: index for index, operator in enumerate(problem.group.operators)}
    for change in layout_changes(problem, cheapest_layouts(problem), base):
        if change.exceeds_noise:
            for node in change.nodes:
                steady[index_of[node]] = change.target
    return tuple(steady)


def layout_changes(problem: LayoutProblem, chosen: Labels, start: Labels | None = None) -> tuple[LayoutChange, ...]:
    """`chosen` against `start`, the program as it stands if not given, as changes that can be made one by one; changes
    without a measured anchor are left out."""
    before = problem.current if start is None else start
    values_of: dict[int, list[ValueCost]] = {}
    for value in problem.values:
        for index in {value.producer, *value.readers} - {None}:
            values_of.setdefault(index, []).append(value)  # type: ignore[arg-type]
    changes: list[LayoutChange] = []
    seen: set[int] = set()
    after = list(before)
    for first in (index for index in range(len(before)) if chosen[index] is not before[index]):
        if first in seen:
            continue
        together = _neighbours(first, chosen, before, values_of)
        seen |= together
        if any(index in problem.times for index in together):
            target = chosen[first]
            for index in together:
                after[index] = target
            changes.append(_change(problem, target, before, after, sorted(together), values_of))
            for index in together:
                after[index] = before[index]
    return tuple(changes)


def _neighbours(start: int, chosen: Labels, current: Labels, values_of: dict[int, list[ValueCost]]) -> set[int]:
    """The operators that change with `start`, through values that two of them touch."""
    together, waiting = {start}, [start]
    while waiting:
        for value in values_of.get(waiting.pop(), ()):
            for index in (value.producer, *value.readers):
                if index is None or index in together or chosen[index] is current[index]:
                    continue
                if chosen[index] is chosen[start]:
                    together.add(index)
                    waiting.append(index)
    return together


def _change(
    problem: LayoutProblem,
    target: Layout,
    before: Labels,
    after: Labels,
    together: list[int],
    values_of: dict[int, list[ValueCost]],
) -> LayoutChange:
    touched = {value.name: value for index in together for value in values_of.get(index, ())}.values()
    added = [v for v in touched if problem.converted(v, after) and not problem.converted(v, before)]
    removed = [v for v in touched if problem.converted(v, before) and not problem.converted(v, after)]
    conversion_bytes = sum(v.conversion_bytes for v in added) - sum(v.conversion_bytes for v in removed)
    operators = problem.group.operators
    changed = set(together)
    anchors = [index for index in together if operators[index].anchor]
    return LayoutChange(
        target=target,
        rank=problem.group.rank,
        nodes=tuple(operators[index].op.node for index in together),
        anchors=tuple(operators[index].op.node for index in anchors),
        unmeasured=tuple(operators[index].op.node for index in anchors if index not in problem.times),
        before_seconds=problem.anchor_seconds(before, together),
        after_seconds=problem.anchor_seconds(after, together),
        conversion_seconds=conversion_bytes * problem.seconds_per_byte,
        conversion_bytes=conversion_bytes,
        entering=tuple(v.name for v in added if v.producer not in changed),
        leaving=tuple(
            v.name for v in added if v.producer in changed and any(after[r] is not target for r in v.readers)
        ),
    )
