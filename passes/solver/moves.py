"""The best that can come of letting any set of variables change to a proposed choice, by one minimum cut.

With one label proposed everywhere this is the α-expansion of Boykov, Veksler and Zabih (2001); that a charge is paid
once however many ask is the label cost of Delong et al. (2012): a helper vertex that everybody who asks drags along.

A vertex on the source's side keeps its choice. A charge's askers ask either with what they keep or with what is
proposed to them, and pull the helper to the one side or to the other. The cut can make a charge dearer when its payer
is on the helper's side, not when it is on the other. Prices for which that does not hold are raised until it does;
never those of the labelling at hand, which is why a move cannot make it worse.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from frx_graph.passes.solver.arrays import Choices, InstanceArrays, difference
from frx_graph.passes.solver.instance import INFINITE
from frx_graph.passes.solver.minimum_cut import Network, source_side

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Move:
    """Where the cut leads. `tight` if no price was raised: then no other set of changes leads to fewer ticks."""

    choices: Choices
    tight: bool


def best_move(arrays: InstanceArrays, keep: Choices, propose: Choices) -> Move:
    """`keep` or `propose`, for each variable. It is never dearer than `keep`."""
    variables = len(keep)
    edges = _Edges(source=variables, sink=variables + 1)
    kept_price, proposed_price = arrays.prices.at(keep[arrays.payer]), arrays.prices.at(propose[arrays.payer])
    asks_kept = arrays.asks.at(keep[arrays.asker]) > 0
    asks_proposed = arrays.asks.at(propose[arrays.asker]) > 0
    always = arrays.any_asker(asks_kept & asks_proposed)
    open_charge = ~always[arrays.asked_charge]
    staying, switching = asks_kept & open_charge, asks_proposed & open_charge
    has_staying, has_switching = arrays.any_asker(staying), arrays.any_asker(switching)

    edges.choose(np.arange(variables), arrays.costs.at(keep), arrays.costs.at(propose))
    edges.choose(arrays.payer[always], kept_price[always], proposed_price[always])

    helper, size = _helpers(arrays, staying, has_staying, variables + 2)
    asked = arrays.asked_charge[staying]
    edges.add(arrays.asker[staying], helper[asked], np.full(len(asked), INFINITE))
    low, high = kept_price[has_staying], np.maximum(kept_price, proposed_price)[has_staying]
    edges.add(helper[has_staying], edges.sink, low)
    edges.add(helper[has_staying], arrays.payer[has_staying], difference(high, low))

    helper, size = _helpers(arrays, switching, has_switching, size)
    asked = arrays.asked_charge[switching]
    edges.add(helper[asked], arrays.asker[switching], np.full(len(asked), INFINITE))
    low, high = proposed_price[has_switching], np.maximum(kept_price, proposed_price)[has_switching]
    edges.add(edges.source, helper[has_switching], low)
    edges.add(arrays.payer[has_switching], helper[has_switching], difference(high, low))

    raised = has_staying & (kept_price > proposed_price) | has_switching & (proposed_price > kept_price)
    # Two helpers stand for one label here, and both could be paid.
    doubled = has_staying & has_switching & (np.maximum(kept_price, proposed_price) > 0)
    keeps = source_side(edges.network(size), edges.source, edges.sink)[:variables]
    return Move(np.where(keeps, keep, propose), tight=not (raised | doubled).any())


def _helpers(
    arrays: InstanceArrays, asking: NDArray[np.bool_], needed: NDArray[np.bool_], first: int
) -> tuple[Indices, int]:
    """For each charge the vertex that stands for it, and the next free vertex. A lone asker stands for it itself."""
    helper = np.zeros(arrays.charges, dtype=np.int64)
    helper[arrays.asked_charge[asking]] = arrays.asker[asking]
    several = needed & (np.bincount(arrays.asked_charge[asking], minlength=arrays.charges) > 1)
    end = first + int(several.sum())
    helper[several] = np.arange(first, end)
    return helper, end


@dataclass(slots=True)
class _Edges:
    """Edges collected on the way to a network."""

    source: int
    sink: int
    tails: list[Indices] = field(default_factory=list)
    heads: list[Indices] = field(default_factory=list)
    capacities: list[Indices] = field(default_factory=list)

    def add(self, tails: Indices | int, heads: Indices | int, capacities: Indices) -> None:
        """Cut where the tail is on the source's side and the head is not."""
        self.tails.append(np.broadcast_to(np.asarray(tails, dtype=np.int64), capacities.shape))
        self.heads.append(np.broadcast_to(np.asarray(heads, dtype=np.int64), capacities.shape))
        self.capacities.append(capacities)

    def choose(self, variables: Indices, kept: Indices, proposed: Indices) -> None:
        """What each variable itself costs on either side; what it costs on both is left out."""
        low = np.minimum(kept, proposed)
        self.add(variables, self.sink, difference(kept, low))
        self.add(self.source, variables, difference(proposed, low))

    def network(self, size: int) -> Network:
        """Everything added."""
        return Network(size, np.concatenate(self.tails), np.concatenate(self.heads), np.concatenate(self.capacities))
