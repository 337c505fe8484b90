"""The best that can come of letting any set of variables change to a proposed choice, by one minimum cut.

With one label proposed everywhere this is the α-expansion of Boykov, Veksler and Zabih (2001). A charge's askers ask
either with what they keep or with what is proposed to them. A cut can express a charge that is dearer when its payer
does the opposite of those who ask, not one that is cheaper then. Prices for which that does not hold are raised until
it does; never those of the labelling at hand, which is why a move cannot make it worse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from frx_graph.passes.solver.arrays import Choices, InstanceArrays, difference
from frx_graph.passes.solver.two_sides import TwoSides


@dataclass(frozen=True, slots=True)
class Move:
    """Where the cut leads. `tight` if no price was raised: then no other set of changes leads to fewer ticks."""

    choices: Choices
    tight: bool


def best_move(arrays: InstanceArrays, keep: Choices, propose: Choices, *, exact: bool = True) -> Move:
    """`keep` or `propose`, for each variable. If `exact` it is never dearer than `keep`, otherwise by rounding only."""
    kept_price, proposed_price = arrays.prices.at(keep[arrays.payer]), arrays.prices.at(propose[arrays.payer])
    asks_kept = arrays.asks.at(keep[arrays.asker]) > 0
    asks_proposed = arrays.asks.at(propose[arrays.asker]) > 0
    always = arrays.any_asker(asks_kept & asks_proposed)
    undecided = ~always[arrays.asked_charge]
    keeping, switching = asks_kept & undecided, asks_proposed & undecided

    sides = TwoSides(len(keep))
    sides.choose(np.arange(len(keep)), arrays.costs.at(keep), arrays.costs.at(propose))
    sides.choose(arrays.payer[always], kept_price[always], proposed_price[always])
    dearer = np.maximum(kept_price, proposed_price)
    sides.if_any_keeps(
        group=arrays.asked_charge[keeping],
        members=arrays.asker[keeping],
        low=kept_price,
        payer=arrays.payer,
        extra=difference(dearer, kept_price),
    )
    sides.if_any_switches(
        group=arrays.asked_charge[switching],
        members=arrays.asker[switching],
        low=proposed_price,
        payer=arrays.payer,
        extra=difference(dearer, proposed_price),
    )
    any_keeping, any_switching = arrays.any_asker(keeping), arrays.any_asker(switching)
    raised = any_keeping & (kept_price > proposed_price) | any_switching & (proposed_price > kept_price)
    # Both kinds are charged apart, though together they would be one conversion.
    doubled = any_keeping & any_switching & (dearer > 0)
    choices = np.where(sides.switched(exact=exact), propose, keep)
    return Move(choices, tight=not (raised | doubled).any())
