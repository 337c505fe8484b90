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
class RaggedRows:
    """Rows of different length, none empty, one after the other. `rows` and `columns` are the place of each value."""

    values: NDArray[np.int64]
    starts: NDArray[np.int64]
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]

    @staticmethod
    def from_rows(rows: Iterable[Sequence[int]]) -> RaggedRows:
        """Return the same rows as arrays."""
        listed = list(rows)
        values = np.fromiter(chain.from_iterable(listed), dtype=np.int64)
        lengths = np.fromiter(map(len, listed), dtype=np.int64)
        starts = np.cumsum(lengths) - lengths
        rows = np.repeat(np.arange(len(lengths)), lengths)
        return RaggedRows(values, starts, rows, np.arange(len(values)) - starts[rows])

    def pick(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return one value from each row."""
        picked: NDArray[np.int64] = self.values[self.starts + positions]
        return picked


def subtract_ticks(high: NDArray[np.int64], low: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return `high` minus `low`; infinite stays infinite, unless both are."""
    return np.where((high >= INFINITE) & (low < INFINITE), INFINITE, high - low)


@dataclass(frozen=True, slots=True)
class InstanceArrays:
    """`costs` has a row for each variable. `payer` and `prices` have one for each charge; the asker i, of
    charge `asked_charge[i]`, is variable `asker[i]` and has row i of `asks`."""

    costs: RaggedRows
    payer: NDArray[np.int64]
    prices: RaggedRows
    asked_charge: NDArray[np.int64]
    asker: NDArray[np.int64]
    asks: RaggedRows

    @staticmethod
    def from_instance(instance: Instance) -> InstanceArrays:
        """Return the same instance as arrays."""
        charges = instance.charges
        askers = [asker for charge in charges for asker in charge.askers]
        asked = np.array([len(charge.askers) for charge in charges], dtype=np.int64)
        return InstanceArrays(
            costs=RaggedRows.from_rows(variable.costs for variable in instance.variables),
            payer=np.array([charge.payer for charge in charges], dtype=np.int64),
            prices=RaggedRows.from_rows(charge.prices for charge in charges),
            asked_charge=np.repeat(np.arange(len(charges)), asked),
            asker=np.array([asker.variable for asker in askers], dtype=np.int64),
            asks=RaggedRows.from_rows(asker.asks for asker in askers),
        )

    def find_asked_charges(self, asking: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return for each charge True if one of the askers is `asking`."""
        found = np.zeros(len(self.payer), dtype=np.bool_)
        found[self.asked_charge[asking]] = True
        return found

    def sum_ticks(self, choices: Choices) -> tuple[int, int]:
        """Return the number of infinite costs, and the sum of the finite ones: the less, the better."""
        asked = self.find_asked_charges(self.asks.pick(choices[self.asker]) > 0)
        paid = np.concatenate((self.costs.pick(choices), self.prices.pick(choices[self.payer])[asked]))
        endless = paid >= INFINITE
        return int(endless.sum()), int(paid[~endless].sum())
