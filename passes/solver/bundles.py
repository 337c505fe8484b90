"""Nodes that are tied, as one: a bundle has as many choices as there are ways to label all its nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from frx_graph.errors import LabellingError
from frx_graph.passes.solver.problem import Label, Port, Problem


@dataclass(frozen=True, slots=True)
class Bundle:
    """`labels[i][choice]` is the label of `nodes[i]` in that choice."""

    nodes: tuple[int, ...]
    labels: tuple[tuple[Label, ...], ...]

    @property
    def choices(self) -> int:
        """How many ways there are to label the bundle, at least one."""
        return len(self.labels[0])


def bundles(problem: Problem) -> tuple[Bundle, ...]:
    """Every node in exactly one bundle, an untied one alone. Raises `LabellingError` where ties leave no choice."""
    ties: list[list[tuple[Port, Port]]] = [[] for _ in problem.nodes]
    for first, second in problem.ties:
        ties[first.node].append((first, second))
        ties[second.node].append((second, first))
    allowed = [tuple(label for label, seconds in node.seconds.items() if seconds < math.inf) for node in problem.nodes]
    return tuple(_bundles(allowed, ties))


def _bundles(allowed: list[tuple[Label, ...]], ties: list[list[tuple[Port, Port]]]) -> Iterator[Bundle]:
    bundled: set[int] = set()
    for root in range(len(allowed)):
        if root not in bundled:
            columns = _columns(root, allowed, ties)
            bundled.update(columns)
            if not columns[root]:
                raise LabellingError(
                    f"no label is left for {_named(list(columns))}", "its labels cost infinitely or its ties conflict"
                )
            yield Bundle(tuple(columns), tuple(tuple(column) for column in columns.values()))


def _columns(
    root: int, allowed: list[tuple[Label, ...]], ties: list[list[tuple[Port, Port]]]
) -> dict[int, Sequence[Label]]:
    """For each node tied to `root`, near ones first, its label in each choice: `root`'s labels, extended tie by tie."""
    columns: dict[int, Sequence[Label]] = {root: allowed[root]}
    waiting = [root]
    for node in waiting:
        for here, there in ties[node]:
            needs = [here.label(label) for label in columns[node]]
            other = there.node
            if other in columns:
                rows = [row for row, label in enumerate(columns[other]) if there.label(label) == needs[row]]
                columns = _picked(columns, rows)
            else:
                matches = [
                    (row, label)
                    for row, need in enumerate(needs)
                    for label in allowed[other]
                    if there.label(label) == need
                ]
                columns = _picked(columns, [row for row, _ in matches])
                columns[other] = [label for _, label in matches]
                waiting.append(other)
    return columns


def _picked(columns: dict[int, Sequence[Label]], rows: list[int]) -> dict[int, Sequence[Label]]:
    """The same choices mostly: a copy of all columns for every tie would be quadratic in long chains of them."""
    if rows == list(range(len(next(iter(columns.values()))))):
        return columns
    return {node: [column[row] for row in rows] for node, column in columns.items()}


def _named(nodes: list[int]) -> str:
    shown = ", ".join(str(node) for node in nodes[:5])
    return f"node {shown}" if len(nodes) == 1 else f"nodes {shown}{', …' if len(nodes) > 5 else ''}, tied together"
