"""Hold an instance as flat arrays, so that thousands of variables cost a few numpy operations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from frx_graph.passes.solver.instance import INFINITE, Instance

Choices = NDArray[np.int64]
"""One choice for each variable of an instance."""


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of different length, none empty, one after the other. `rows` and `columns` are the place of each value."""

    values: NDArray[np.int64]
    starts: NDArray[np.int64]
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]

    @staticmethod
    def of(rows: Iterable[Sequence[int]]) -> Ragged:
        """Return the same rows as arrays."""
        listed = list(rows)
        values = np.fromiter(chain.from_iterable(listed), dtype=np.int64)
        lengths = np.fromiter(map(len, listed), dtype=np.int64)
        starts = np.cumsum(lengths) - lengths
        rows = np.repeat(np.arange(len(lengths)), lengths)
        return Ragged(values, starts, rows, np.arange(len(values)) - starts[rows])

    def at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return one value from each row."""
        picked: NDArray[np.int64] = self.values[self.starts + positions]
        return picked


def difference(high: NDArray[np.int64], low: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return `high` minus `low`; infinite stays infinite, unless both are."""
    return np.where((high >= INFINITE) & (low < INFINITE), INFINITE, high - low)


@dataclass(frozen=True, slots=True)
class InstanceArrays:
    """`costs` has a row for each variable. `payer` and `prices` have one for each charge; the asker i, of
    charge `asked_charge[i]`, is variable `asker[i]` and has row i of `asks`."""

    costs: Ragged
    payer: NDArray[np.int64]
    prices: Ragged
    asked_charge: NDArray[np.int64]
    asker: NDArray[np.int64]
    asks: Ragged

    @staticmethod
    def of(instance: Instance) -> InstanceArrays:
        """Return the same instance as arrays."""
        charges = instance.charges
        askers = [asker for charge in charges for asker in charge.askers]
        asked = np.array([len(charge.askers) for charge in charges], dtype=np.int64)
        return InstanceArrays(
            costs=Ragged.of(variable.costs for variable in instance.variables),
            payer=np.array([charge.payer for charge in charges], dtype=np.int64),
            prices=Ragged.of(charge.prices for charge in charges),
            asked_charge=np.repeat(np.arange(len(charges)), asked),
            asker=np.array([asker.variable for asker in askers], dtype=np.int64),
            asks=Ragged.of(asker.asks for asker in askers),
        )

    @property
    def charges(self) -> int:
        """The number of charges."""
        return len(self.payer)

    def any_asker(self, asking: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return for each charge True if one of its askers is `asking`."""
        found = np.zeros(self.charges, dtype=np.bool_)
        found[self.asked_charge[asking]] = True
        return found

    def ticks(self, choices: Choices) -> tuple[int, int]:
        """Return the number of infinite costs, and the sum of the finite ones: the less, the better."""
        asked = self.any_asker(self.asks.at(choices[self.asker]) > 0)
        paid = np.concatenate((self.costs.at(choices), self.prices.at(choices[self.payer])[asked]))
        endless = paid >= INFINITE
        return int(endless.sum()), int(paid[~endless].sum())
