"""Choices that the best answer can do without: another choice of the same variable is as good whatever the rest does.

The comparison is of a choice with the cheapest one at its worst: all that it could add counts, nothing that it could
save (dead-end elimination: Desmet et al., 1992; Goldstein, 1994).
"""

from __future__ import annotations

from frx_graph.passes.solver.instance import Charge, Instance


def undominated(instance: Instance) -> list[tuple[int, ...]]:
    """For each variable the choices that may be needed, at least one, in order."""
    touching: list[list[Charge]] = [[] for _ in instance.variables]
    for charge in instance.charges:
        for index in dict.fromkeys((charge.payer, *(asker.variable for asker in charge.askers))):
            touching[index].append(charge)
    kept = []
    for index, variable in enumerate(instance.variables):
        cheapest = variable.costs.index(min(variable.costs))
        kept.append(
            tuple(
                choice
                for choice, cost in enumerate(variable.costs)
                if choice == cheapest
                or cost
                < variable.costs[cheapest]
                + sum(_most_added(charge, index, choice, cheapest) for charge in touching[index])
            )
        )
    return kept


def _most_added(charge: Charge, index: int, before: int, after: int) -> int:
    """How much dearer the charge becomes at most when variable `index` goes from choice `before` to `after`."""
    asks = next((asker.asks for asker in charge.askers if asker.variable == index), None)
    if charge.payer != index:
        assert asks is not None, "every charge at hand has the variable as payer or asker"
        return max(charge.prices) if asks[after] and not asks[before] else 0
    old, new = charge.prices[before], charge.prices[after]
    if asks is None:
        return max(new - old, 0)
    return max(new - old, new * asks[after] - old * asks[before])
