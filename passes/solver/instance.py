"""Define the problem for the algorithms: variables with numbered choices, and charges that several of them share.

All costs are whole ticks, so that sums are exact and equal costs are equal. Only charges couple variables. A charge is
for one value and one label that the value may be converted to. Its price depends on the value's source, the payer, and
is paid once if any of the askers asks for that label.
"""

from __future__ import annotations

from dataclasses import dataclass

from frx_graph.passes.solver.problem import Label

INFINITE = 2**61
"""The cost of what is not allowed. Two of them still fit into 64 bits; all finite costs together are below half."""


@dataclass(frozen=True, slots=True)
class Variable:
    """Ticks and label of each choice, and the choice nearest to the program."""

    costs: tuple[int, ...]
    labels: tuple[Label, ...]
    start: int


@dataclass(frozen=True, slots=True)
class Asker:
    """A variable, with True for each choice that asks for the charge's label."""

    variable: int
    asks: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Charge:
    """`prices` has the ticks for each choice of the variable `payer`. No variable asks twice; the payer may ask."""

    payer: int
    prices: tuple[int, ...]
    askers: tuple[Asker, ...]


@dataclass(frozen=True, slots=True)
class Instance:
    """Find one choice for each variable of least total ticks."""

    variables: tuple[Variable, ...]
    charges: tuple[Charge, ...]

    def list_labels(self) -> tuple[Label, ...]:
        """Return all labels in order of appearance."""
        return tuple(dict.fromkeys(label for variable in self.variables for label in variable.labels))
