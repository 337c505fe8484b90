"""Find the best move that lets any set of variables change to a proposed choice, by one minimum cut.

With one label proposed everywhere this is the α-expansion of Boykov, Veksler and Zabih (2001). A charge's askers ask
either with what they keep or with what is proposed to them. A cut can express a charge that is dearer when its payer
does the opposite of those who ask, not one that is cheaper then. Prices for which that does not hold are raised until
it does; never those of the present labelling, so a move cannot make it worse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from frx_graph.passes.solver.arrays import Choices, InstanceArrays, subtract_ticks
from frx_graph.passes.solver.instance import INFINITE
from frx_graph.passes.solver.minimum_cut import Network, find_source_side

Indices = NDArray[np.int64]
Ticks = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Move:
    """The choices of a cut. `tight` if no price was raised: then no other set of changes leads to fewer ticks."""

    choices: Choices
    tight: bool


def find_best_move(arrays: InstanceArrays, keep: Choices, propose: Choices, *, exact: bool = True) -> Move:
    """Return `keep` or `propose` for each variable, never dearer than `keep` if `exact`, else by rounding only."""
    kept_price, proposed_price = arrays.prices.pick(keep[arrays.payer]), arrays.prices.pick(propose[arrays.payer])
    asks_kept = arrays.asks.pick(keep[arrays.asker]) > 0
    asks_proposed = arrays.asks.pick(propose[arrays.asker]) > 0
    always = arrays.find_asked_charges(asks_kept & asks_proposed)
    undecided = ~always[arrays.asked_charge]
    keeping, switching = asks_kept & undecided, asks_proposed & undecided

    sides = CutBuilder(len(keep))
    sides.add_choices(np.arange(len(keep)), arrays.costs.pick(keep), arrays.costs.pick(propose))
    sides.add_choices(arrays.payer[always], kept_price[always], proposed_price[always])
    dearer = np.maximum(kept_price, proposed_price)
    for asking, price, switches in ((keeping, kept_price, False), (switching, proposed_price, True)):
        sides.add_group_charges(
            group=arrays.asked_charge[asking],
            members=arrays.asker[asking],
            low=price,
            payer=arrays.payer,
            extra=subtract_ticks(dearer, price),
            switches=switches,
        )
    any_keeping, any_switching = arrays.find_asked_charges(keeping), arrays.find_asked_charges(switching)
    raised = any_keeping & (kept_price > proposed_price) | any_switching & (proposed_price > kept_price)
    # Both kinds are charged apart, though together they would be one conversion.
    doubled = any_keeping & any_switching & (dearer > 0)
    choices = np.where(sides.find_switched(exact=exact), propose, keep)
    return Move(choices, tight=not (raised | doubled).any())


class CutBuilder:
    """Costs of deciding yes or no for each of many variables, as a network whose minimum cut is the best decision.

    A vertex on the source's side keeps its choice, one on the sink's side switches. A cost that is paid once, however
    many of a group do the same, gets a separate vertex that they all drag along: the label cost of Delong et al.
    (2012). The caller must pass only costs that a cut can express.
    """

    def __init__(self, variables: int) -> None:
        self._variables = variables
        self._source, self._sink = variables, variables + 1
        self._size = variables + 2
        self._edges: list[tuple[Indices, Indices, Ticks]] = []

    def add_choices(self, variables: Indices, kept: Ticks, switched: Ticks) -> None:
        """Add a cost of either decision for each of `variables`, less what both cost."""
        least = np.minimum(kept, switched)
        self._add_edges(variables, self._sink, subtract_ticks(kept, least))
        self._add_edges(self._source, variables, subtract_ticks(switched, least))

    def add_group_charges(
        self, *, group: Indices, members: Indices, low: Ticks, payer: Indices, extra: Ticks, switches: bool
    ) -> None:
        """Charge a group with a member that keeps `low`, and `extra` more if its `payer` switches.

        `members[i]` is in group `group[i]`. With `switches`, keeping and switching trade places.
        """
        helper, found = self._make_helpers(group, members, len(low))
        end = self._source if switches else self._sink
        edges: list[tuple[Indices, Indices | int, Ticks]] = [
            (members, helper[group], np.full(len(members), INFINITE)),
            (helper[found], end, low[found]),
            (helper[found], payer[found], extra[found]),
        ]
        for first, second, capacities in edges:
            tails, heads = (second, first) if switches else (first, second)
            self._add_edges(tails, heads, capacities)

    def find_switched(self, *, exact: bool = True) -> NDArray[np.bool_]:
        """Return for each variable True if it switches in the best decision; of several, in the one with most that
        switch. Not `exact`, it is the best but for a billionth of all costs together."""
        tails, heads, capacities = (np.concatenate(arrays) for arrays in zip(*self._edges, strict=True))
        network = Network(self._size, tails, heads, capacities)
        return ~find_source_side(network, self._source, self._sink, exact=exact)[: self._variables]

    def _add_edges(self, tails: Indices | int, heads: Indices | int, capacities: Ticks) -> None:
        """Add edges, paid if the tail is on the source's side and the head is not."""
        shape = capacities.shape
        self._edges.append((np.broadcast_to(tails, shape), np.broadcast_to(heads, shape), capacities))

    def _make_helpers(self, group: Indices, members: Indices, groups: int) -> tuple[Indices, NDArray[np.bool_]]:
        """Return a vertex for each group, which is a lone member itself, and True for each group with a member."""
        count = np.bincount(group, minlength=groups)
        helper = np.zeros(groups, dtype=np.int64)
        helper[group] = members
        several = count > 1
        helper[several] = self._size + np.arange(several.sum())
        self._size += int(several.sum())
        return helper, count > 0
