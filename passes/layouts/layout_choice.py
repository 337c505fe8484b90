"""Choose the cheapest layouts for a group of regions, exactly, and split the choice into changes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import cast

from frx_graph.facts.layout import Layout
from frx_graph.passes.layouts.layout_problem import Labels, LayoutProblem, ValueCost
from frx_graph.passes.solver.problem import Given, Label, Node, Port, Problem, Value
from frx_graph.passes.solver.solve import solve
from frx_graph.passes.solver.splitting import find_connected_components

NOISE_SHARE = 0.05
"""A measured gain below this share of the anchors' time counts as noise. Medians of runs of microseconds to
milliseconds repeat within a few percent on a machine with other load."""


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

    def __add__(self, other: LayoutChange) -> LayoutChange:
        """Return both changes as one, which has this one's target and rank."""
        added = {field.name for field in fields(self)} - {"target", "rank"}
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in added})

    @property
    def gain_seconds(self) -> float:
        """Seconds saved per step."""
        return self.before_seconds - self.after_seconds - self.conversion_seconds

    @property
    def speedup(self) -> float:
        """Seconds of the measured anchors before the change, divided by those after it."""
        return self.before_seconds / self.after_seconds if self.after_seconds else math.inf

    @property
    def exceeds_noise(self) -> bool:
        """True if the gain is more than measurements of the same thing differ by."""
        return self.gain_seconds > NOISE_SHARE * self.before_seconds


def find_cheapest_layouts(problem: LayoutProblem) -> tuple[Layout, ...]:
    """Return one layout per operator, of least total seconds; of equally cheap ones, the one nearest to the program."""
    if not problem.times:
        return problem.current
    free: Mapping[Label, float] = {Layout.PLAIN: 0.0, Layout.CHANNELS_LAST: 0.0}
    times = cast("Mapping[int, Mapping[Label, float]]", problem.times)
    nodes = [
        Node({problem.pinned[index]: 0.0} if index in problem.pinned else times.get(index, free), layout)
        for index, layout in enumerate(problem.current)
    ]
    values = [_make_value(value, problem) for value in problem.values if value.producer is not None or value.given]
    ties = [Value(Port(first), (Port(second),), seconds=math.inf) for first, second in problem.tied]
    return cast("tuple[Layout, ...]", solve(Problem(tuple(nodes), (*values, *ties))).labels)


def _make_value(value: ValueCost, problem: LayoutProblem) -> Value:
    return Value(
        source=Given(value.given) if value.producer is None else Port(value.producer),
        readers=tuple(map(Port, value.readers)),
        wanted=value.wanted,
        seconds=value.conversion_bytes * problem.seconds_per_byte,
    )


def find_steady_layouts(problem: LayoutProblem) -> tuple[Layout, ...]:
    """Return the cheapest layouts without changes that noise could explain.

    The start is the best of the present layouts and one layout for all. It is changed only in parts that gain more than
    `NOISE_SHARE` of their own time.
    """
    pinned = problem.pinned
    uniform = [
        tuple(pinned.get(index, layout) for index in range(len(problem.current)))
        for layout in (Layout.PLAIN, Layout.CHANNELS_LAST)
    ]
    base = min((problem.current, *uniform), key=problem.sum_seconds)
    steady = list(base)
    index_of = {operator.op.node: index for index, operator in enumerate(problem.group.operators)}
    for change in list_layout_changes(problem, find_cheapest_layouts(problem), base):
        if change.exceeds_noise:
            for node in change.nodes:
                steady[index_of[node]] = change.target
    return tuple(steady)


def list_layout_changes(
    problem: LayoutProblem, chosen: Labels, start: Labels | None = None
) -> tuple[LayoutChange, ...]:
    """Return the changes from `start`, by default the present layouts, to `chosen` that can be made one by one. Changes
    without a measured anchor are left out."""
    before = problem.current if start is None else start
    values_of: defaultdict[int, list[ValueCost]] = defaultdict(list)
    first_of: dict[tuple[str, Layout], int] = {}
    pairs: list[tuple[int, int]] = []
    for value in problem.values:
        for index in {index for index in (value.producer, *value.readers) if index is not None}:
            values_of[index].append(value)
            if chosen[index] is not before[index]:
                # Operators that change alike and touch a common value change together.
                pairs.append((first_of.setdefault((value.name, chosen[index]), index), index))
    changes: list[LayoutChange] = []
    for together in find_connected_components(len(before), pairs):
        target = chosen[together[0]]
        if target is not before[together[0]] and any(index in problem.times for index in together):
            after = list(before)
            for index in together:
                after[index] = target
            changes.append(_make_change(problem, target, before, after, together, values_of))
    return tuple(changes)


def _make_change(
    problem: LayoutProblem,
    target: Layout,
    before: Labels,
    after: Labels,
    together: list[int],
    values_of: Mapping[int, list[ValueCost]],
) -> LayoutChange:
    touched = {value.name: value for index in together for value in values_of[index]}.values()
    added = [v for v in touched if problem.is_converted(v, after) and not problem.is_converted(v, before)]
    removed = [v for v in touched if problem.is_converted(v, before) and not problem.is_converted(v, after)]
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
        before_seconds=problem.sum_anchor_seconds(before, together),
        after_seconds=problem.sum_anchor_seconds(after, together),
        conversion_seconds=conversion_bytes * problem.seconds_per_byte,
        conversion_bytes=conversion_bytes,
        entering=tuple(v.name for v in added if v.producer not in changed),
        leaving=tuple(
            v.name for v in added if v.producer in changed and any(after[r] is not target for r in v.readers)
        ),
    )
