"""Group profitable layout changes by their fix: one for the whole model, or one for each line a region begins at."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from frx_graph.capture.call_site import CallSite, merge_module_paths
from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.layout import Layout
from frx_graph.passes.analysis import Analysis
from frx_graph.passes.call_groups import group_by_place
from frx_graph.passes.layouts.layout_choice import LayoutChange


@dataclass(frozen=True)
class LayoutFix:
    """Changes that one fix makes, added up."""

    total: LayoutChange
    facts: GraphFacts

    @cached_property
    def anchors(self) -> tuple[OpFacts, ...]:
        """Convolutions and poolings in execution order."""
        nodes = frozenset(self.total.anchors)
        return tuple(op for op in self.facts.ops if op.node in nodes)

    @cached_property
    def modules(self) -> tuple[str, ...]:
        """Module paths of the anchors in order of appearance."""
        return tuple(dict.fromkeys(op.site.module_path for op in self.anchors if op.site.module_path))

    @cached_property
    def convolutions(self) -> tuple[str, ...]:
        """Module paths of the convolutions alone, which have weights to convert."""
        return _list_convolution_modules(self.anchors)

    @cached_property
    def other_convolutions(self) -> tuple[str, ...]:
        """Module paths of the graph's convolutions that stay as they are."""
        return tuple(path for path in _list_convolution_modules(self.facts.ops) if path not in self.convolutions)

    @cached_property
    def site(self) -> CallSite:
        """The first anchor's line, under the one path that all modules share."""
        return replace(self.anchors[0].site, module_path=merge_module_paths(self.modules))

    @cached_property
    def entering(self) -> tuple[ValueFacts, ...]:
        """Values of the forward that have to be converted to the target; autograd converts their gradients."""
        return self._select_forward(self.total.entering)

    @cached_property
    def leaving(self) -> tuple[ValueFacts, ...]:
        """Values of the forward that convolutions left as they are need converted back."""
        return self._select_forward(self.total.leaving)

    def _select_forward(self, names: Iterable[str]) -> tuple[ValueFacts, ...]:
        made_by = {name: self.facts.get_producer(name) for name in names}
        return tuple(
            self.facts.values[name]
            for name, producer in made_by.items()
            if producer is None or producer.phase is Phase.FORWARD
        )


def _list_convolution_modules(ops: Iterable[OpFacts]) -> tuple[str, ...]:
    convolutions = (op for op in ops if op.operator.startswith("aten.convolution"))
    return tuple(dict.fromkeys(op.site.module_path for op in convolutions if op.site.module_path))


def select_worthwhile_changes(analysis: Analysis, target: Layout) -> tuple[LayoutChange, ...]:
    """Return changes to `target` that gain more than noise, net of their conversions."""
    return tuple(change for change in analysis.layout_changes if change.target is target and change.exceeds_noise)


def are_all_anchors_in(analysis: Analysis, changes: Iterable[LayoutChange], layout: Layout, rank: int) -> bool:
    """Return True if every convolution and pooling of `rank` runs in `layout` once `changes` are made."""
    changed = {node for change in changes for node in change.anchors}
    return all(
        member.layout is layout or member.op.node in changed
        for group in analysis.layout_groups
        if group.rank == rank
        for member in group.operators
        if member.anchor
    )


def group_changes_by_fix(analysis: Analysis, changes: Sequence[LayoutChange]) -> list[tuple[LayoutFix, bool]]:
    """Group changes that the same lines of the program make, each with True if it leaves out no anchor of that rank.

    If none is left out, one fix converts the whole model. Otherwise each line at which a change begins is one fix,
    however many modules run it.
    """
    found: list[tuple[LayoutFix, bool]] = []
    for rank in (4, 5):
        of_rank = [change for change in changes if change.rank == rank]
        whole = bool(of_rank) and are_all_anchors_in(analysis, of_rank, of_rank[0].target, rank)
        by_line = group_by_place(of_rank, lambda change: analysis.facts.op_by_node[change.anchors[0]].site)
        totals = (functools.reduce(operator.add, group) for group in ([of_rank] if whole else by_line))
        found.extend((LayoutFix(total, analysis.facts), whole) for total in totals)
    return found
