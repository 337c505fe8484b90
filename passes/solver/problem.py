"""Problems for the solver: label operators so that their own seconds and those of conversions are fewest.

A node is an operator. Its label is the form in which it reads all its operands and makes its results. A value that is
read in another label than it has is converted, once for each such label however many readers want it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Label: TypeAlias = Hashable
"""Anything that can be compared and hashed; only the caller knows its meaning."""


@dataclass(frozen=True, slots=True)
class Node:
    """An operator: the labels that it may have, each with its own seconds (infinite: not allowed), and the label that
    it has now, which need not be one of them. A pinned operator has one label."""

    seconds: Mapping[Label, float]
    current: Label


@dataclass(frozen=True, slots=True)
class Port:
    """The place at which a node makes or reads a value. `labels` translates the node's label to the one that the value
    then has or is needed in; a label that it does not mention stays the same."""

    node: int
    labels: Mapping[Label, Label] = field(default_factory=dict)

    def translate(self, of_node: Label) -> Label:
        """Return the value's label here, when the node has label `of_node`."""
        return self.labels.get(of_node, of_node)


@dataclass(frozen=True, slots=True)
class Given:
    """The source of a value from outside: its label is fixed."""

    label: Label


@dataclass(frozen=True, slots=True)
class Value:
    """A value, its readers among the nodes, and the labels that readers elsewhere want it in. A conversion takes
    `seconds` (infinite: impossible)."""

    source: Port | Given
    readers: tuple[Port, ...] = ()
    wanted: tuple[Label, ...] = ()
    seconds: float = 0.0

    def price_conversion(self, has: Label, needs: Label) -> float:
        """Return the seconds from label `has` to label `needs`."""
        return 0.0 if has == needs else self.seconds


@dataclass(frozen=True, slots=True)
class Problem:
    """A graph to be labelled. Nodes are named by their index.

    Raises `ValueError` for a time that is negative or not a number, and for a port of a node that does not exist.
    """

    nodes: tuple[Node, ...]
    values: tuple[Value, ...] = ()

    def __post_init__(self) -> None:
        times = (seconds for node in self.nodes for seconds in node.seconds.values())
        for seconds in (*times, *(value.seconds for value in self.values)):
            if not seconds >= 0:
                raise ValueError(f"{seconds} seconds are not a time")
        for value in self.values:
            sources = () if isinstance(value.source, Given) else (value.source,)
            for port in (*sources, *value.readers):
                if not 0 <= port.node < len(self.nodes):
                    raise ValueError(f"there is no node {port.node} among {len(self.nodes)}")

    def sum_seconds(self, labels: Sequence[Label]) -> float:
        """Return the cost of `labels`, one for each node; infinite if they are not allowed."""
        own = (node.seconds.get(label, math.inf) for node, label in zip(self.nodes, labels, strict=True))
        return math.fsum((*own, *(_price_value(value, labels) for value in self.values)))


def _price_value(value: Value, labels: Sequence[Label]) -> float:
    source = value.source
    has = source.label if isinstance(source, Given) else source.translate(labels[source.node])
    needed = dict.fromkeys((*value.wanted, *(port.translate(labels[port.node]) for port in value.readers)))
    return math.fsum(value.price_conversion(has, needs) for needs in needed)


@dataclass(frozen=True, slots=True)
class Labelling:
    """An answer: a label for each node, their cost together, and whether that is proved to be the least.

    The proof holds up to rounding: seconds are compared in steps of 1e-13, for 10,000 nodes, of all times together.
    """

    labels: tuple[Label, ...]
    seconds: float
    exact: bool
