"""Write an instance as a sum of tables over few variables each, for elimination."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from frx_graph.passes.solver.instance import INFINITE, Charge, Instance

_LARGEST_CHARGE = 2**10
"""A charge that couples more combinations of choices is split by a helper variable that pays or does not: then it
couples each of its variables with the helper only."""

Scope = tuple[int, ...]
"""Distinct variables."""


@dataclass(frozen=True, slots=True)
class Table:
    """Ticks for each combination of choices of the variables in `scope`, an axis each."""

    scope: Scope
    ticks: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tabulation:
    """The tables to come. `choices` counts the choices of each variable: the instance's, then helpers. `helpers` has
    one for each charge, None for those that stay whole."""

    instance: Instance
    choices: tuple[int, ...]
    helpers: tuple[int | None, ...]

    @staticmethod
    def of(instance: Instance) -> Tabulation:
        """Return the tables to come of `instance`."""
        choices = [len(variable.costs) for variable in instance.variables]
        helpers: list[int | None] = []
        for charge in instance.charges:
            whole = math.prod(choices[variable] for variable in _variables(charge)) <= _LARGEST_CHARGE
            helpers.append(None if whole else len(choices))
            if not whole:
                choices.append(2)
        return Tabulation(instance, tuple(choices), tuple(helpers))

    def scopes(self) -> set[Scope]:
        """Return the sets of coupled variables."""
        scopes: set[Scope] = set()
        for charge, helper in zip(self.instance.charges, self.helpers, strict=True):
            variables = _variables(charge)
            scopes.update([variables] if helper is None else [(variable, helper) for variable in variables])
        return scopes

    def tables(self) -> tuple[Table, ...]:
        """Return one table for each scope, and for each variable that costs something itself."""
        sums: dict[Scope, NDArray[np.int64]] = {}
        for table in self._addends():
            known = sums.get(table.scope)
            sums[table.scope] = table.ticks if known is None else np.minimum(known + table.ticks, INFINITE)
        return tuple(Table(scope, ticks) for scope, ticks in sums.items())

    def _addends(self) -> Iterator[Table]:
        for index, variable in enumerate(self.instance.variables):
            yield Table((index,), np.array(variable.costs, dtype=np.int64))
        for charge, helper in zip(self.instance.charges, self.helpers, strict=True):
            if helper is None:
                yield self._whole(charge)
            else:
                yield from _apart(charge, helper)

    def _whole(self, charge: Charge) -> Table:
        scope = _variables(charge)
        asked = np.zeros([self.choices[variable] for variable in scope], dtype=np.int64)
        for asker in charge.askers:
            asked |= _along(asker.asks, scope, asker.variable)
        return Table(scope, asked * _along(charge.prices, scope, charge.payer))


def _apart(charge: Charge, helper: int) -> Iterator[Table]:
    """Yield the tables of a split charge. The helper's second choice is to pay; if a variable asks, the first is not
    allowed."""
    yield Table((charge.payer, helper), np.array([(0, price) for price in charge.prices], dtype=np.int64))
    for asker in charge.askers:
        refused = np.array([(INFINITE * asks, 0) for asks in asker.asks], dtype=np.int64)
        yield Table((asker.variable, helper), refused)


def _variables(charge: Charge) -> Scope:
    return tuple(sorted({charge.payer, *(asker.variable for asker in charge.askers)}))


def _along(values: tuple[int, ...], scope: Scope, variable: int) -> NDArray[np.int64]:
    """Return `values` on the axis of `variable`, the same along all others."""
    return np.array(values, dtype=np.int64).reshape([-1 if other == variable else 1 for other in scope])
