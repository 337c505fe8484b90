"""What the solver is asked: labels for operators, so that their own seconds and those of conversions are fewest.

A node is an operator. Its label says in what form it reads all its operands and makes its results. A value that is
read in another label than it has is converted, once for each such label however many readers want it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Label: TypeAlias = Hashable
"""Anything that can be compared and hashed. What it means is the caller's business."""


@dataclass(frozen=True, slots=True)
class Node:
    """An operator: the labels that it may have, each with its own seconds (infinite: not allowed), and the label that
    it has now, which need not be one of them. A pinned operator has one label."""

    seconds: Mapping[Label, float]
    current: Label


@dataclass(frozen=True, slots=True)
class Port:
    """Where a node makes or reads a value. `labels` translates the node's label to the one that the value then has or
    is needed in; a label that it does not mention stays the same."""

    node: int
    labels: Mapping[Label, Label] = field(default_factory=dict)

    def label(self, of_node: Label) -> Label:
        """The value's label here, when the node has label `of_node`."""
        return self.labels.get(of_node, of_node)


@dataclass(frozen=True, slots=True)
class Given:
    """The source of a value from outside: its label is fixed."""

    label: Label


@dataclass(frozen=True, slots=True)
class Value:
    """A value, its readers among the nodes, and the labels that readers elsewhere want it in. A conversion takes
    `seconds`, unless `pair_seconds` has another time for this pair of old and new label (infinite: impossible)."""

    source: Port | Given
    readers: tuple[Port, ...] = ()
    wanted: tuple[Label, ...] = ()
    seconds: float = 0.0
    pair_seconds: Mapping[tuple[Label, Label], float] = field(default_factory=dict)

    def conversion_seconds(self, has: Label, needs: Label) -> float:
        """Seconds from label `has` to label `needs`."""
        return 0.0 if has == needs else self.pair_seconds.get((has, needs), self.seconds)


@dataclass(frozen=True, slots=True)
class Problem:
    """Nodes are named by their index. At both ports of a tie the labels must be the same.

    Raises `ValueError` for a time that is negative or not a number, and for a port of a node that is not there.
    """

    nodes: tuple[Node, ...]
    values: tuple[Value, ...] = ()
    ties: tuple[tuple[Port, Port], ...] = ()

    def __post_init__(self) -> None:
        for seconds in self._all_seconds():
            if not seconds >= 0:
                raise ValueError(f"{seconds} seconds are not a time")
        for port in self._all_ports():
            if not 0 <= port.node < len(self.nodes):
                raise ValueError(f"there is no node {port.node} among {len(self.nodes)}")

    def seconds(self, labels: Sequence[Label]) -> float:
        """What `labels`, one for each node, cost; infinite if they are not allowed."""
        if any(first.label(labels[first.node]) != second.label(labels[second.node]) for first, second in self.ties):
            return math.inf
        own = (node.seconds.get(label, math.inf) for node, label in zip(self.nodes, labels, strict=True))
        return math.fsum((*own, *(_value_seconds(value, labels) for value in self.values)))

    def changes(self, labels: Sequence[Label]) -> int:
        """How many nodes have another label now."""
        return sum(node.current != label for node, label in zip(self.nodes, labels, strict=True))

    def _all_seconds(self) -> Iterator[float]:
        for node in self.nodes:
            yield from node.seconds.values()
        for value in self.values:
            yield value.seconds
            yield from value.pair_seconds.values()

    def _all_ports(self) -> Iterator[Port]:
        for value in self.values:
            if isinstance(value.source, Port):
                yield value.source
            yield from value.readers
        for tie in self.ties:
            yield from tie


def _value_seconds(value: Value, labels: Sequence[Label]) -> float:
    source = value.source
    has = source.label if isinstance(source, Given) else source.label(labels[source.node])
    needed = dict.fromkeys((*value.wanted, *(port.label(labels[port.node]) for port in value.readers)))
    return math.fsum(value.conversion_seconds(has, needs) for needs in needed)


@dataclass(frozen=True, slots=True)
class Labelling:
    """An answer: a label for each node, what they cost together, and whether that is proved to be the least.

    Proved is the least up to rounding: seconds are compared in steps of 1e-13, for 10,000 nodes, of all times together.
    """

    labels: tuple[Label, ...]
    seconds: float
    exact: bool
