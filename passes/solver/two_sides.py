"""Costs of deciding yes or no for each of many variables, as a network whose minimum cut is the best decision.

A vertex on the source's side keeps what it has, one on the sink's side switches. What is paid once, however many of a
group do the same, has a vertex of its own that everybody who does it drags along: the label cost of Delong et al.
(2012). All costs are such that a cut can express them; it is for the caller to see to that.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from frx_graph.passes.solver.arrays import difference
from frx_graph.passes.solver.instance import INFINITE
from frx_graph.passes.solver.minimum_cut import Network, source_side

Indices = NDArray[np.int64]
Ticks = NDArray[np.int64]


class TwoSides:
    """Costs, added one kind after the other, and their least sum."""

    def __init__(self, variables: int) -> None:
        self._variables = variables
        self._source, self._sink = variables, variables + 1
        self._size = variables + 2
        self._edges: list[tuple[Indices, Indices, Ticks]] = []

    def choose(self, variables: Indices, kept: Ticks, switched: Ticks) -> None:
        """Each of `variables` costs the one or the other. What it costs in any case is left out."""
        least = np.minimum(kept, switched)
        self._add(variables, self._sink, difference(kept, least))
        self._add(self._source, variables, difference(switched, least))

    def if_any_keeps(self, group: Indices, members: Indices, low: Ticks, payer: Indices, extra: Ticks) -> None:
        """`members[i]` is in group `group[i]`. A group with a member that keeps costs `low`, and `extra` more if its
        `payer` switches."""
        helper, found = self._helpers(group, members, len(low))
        self._add(members, helper[group], np.full(len(members), INFINITE))
        self._add(helper[found], self._sink, low[found])
        self._add(helper[found], payer[found], extra[found])

    def if_any_switches(self, group: Indices, members: Indices, low: Ticks, payer: Indices, extra: Ticks) -> None:
        """The mirror image: a group with a member that switches costs `low`, and `extra` more if its `payer` keeps."""
        helper, found = self._helpers(group, members, len(low))
        self._add(helper[group], members, np.full(len(members), INFINITE))
        self._add(self._source, helper[found], low[found])
        self._add(payer[found], helper[found], extra[found])

    def switched(self, *, exact: bool = True) -> NDArray[np.bool_]:
        """For each variable whether it switches in the best decision; of several, in the one with most that switch.
        Not `exact`, it is the best but for a billionth of all costs together."""
        tails, heads, capacities = (np.concatenate(arrays) for arrays in zip(*self._edges, strict=True))
        network = Network(self._size, tails, heads, capacities)
        return ~source_side(network, self._source, self._sink, exact=exact)[: self._variables]

    def _add(self, tails: Indices | int, heads: Indices | int, capacities: Ticks) -> None:
        """Paid where the tail is on the source's side and the head is not."""
        shape = capacities.shape
        self._edges.append((np.broadcast_to(tails, shape), np.broadcast_to(heads, shape), capacities))

    def _helpers(self, group: Indices, members: Indices, groups: int) -> tuple[Indices, NDArray[np.bool_]]:
        """The vertex that stands for each group, and which groups have any member. A lone member stands for its group
        itself."""
        count = np.bincount(group, minlength=groups)
        helper = np.zeros(groups, dtype=np.int64)
        helper[group] = members
        several = count > 1
        helper[several] = self._size + np.arange(several.sum())
        self._size += int(several.sum())
        return helper, count > 0
