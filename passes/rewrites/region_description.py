"""Describe a set of pieces as a region for oneDNN: what follows a product is fused with it, batch norms are folded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.ops.onednn import steps
from frx_graph.passes.rewrites.region_pieces import (
    Concatenation,
    Convolution,
    Elementwise,
    Piece,
    Pooling,
    Product,
    Reshape,
)
from frx_graph.passes.rewrites.rewrite import RewriteSubject


@dataclass(frozen=True)
class Scaling:
    """An operation with a constant, one number for each channel or for all."""

    operation: Literal["add", "sub", "mul"]
    constant: str


@dataclass(frozen=True)
class FoldedWeights:
    """A convolution's weight and bias, with the operations on its result that are folded into them."""

    weight: str
    bias: str | None
    scaled: tuple[Scaling, ...]


@dataclass(frozen=True)
class FoldedConstant:
    """One of two constants that come of folding."""

    weights: FoldedWeights
    is_bias: bool


Constant = str | FoldedConstant
"""A constant of the graph, by name, or a folded one."""


@dataclass(frozen=True)
class DescribedRegion:
    """A region, with the constants, and the names that inputs and outputs have in the graph."""

    region: steps.Region
    inputs: tuple[str, ...]
    constants: tuple[Constant, ...]
    outputs: tuple[str, ...]


def describe_region(pieces: Sequence[Piece], subject: RewriteSubject) -> DescribedRegion:
    """Return the region that computes the pieces, which are in the graph's order."""
    return _Description(pieces, subject).finish()


class _Description:
    def __init__(self, pieces: Sequence[Piece], subject: RewriteSubject) -> None:
        self._pieces = pieces
        self._facts: GraphFacts = subject.facts
        self._frozen = subject.constants
        made = {piece.result for piece in pieces}
        nodes = {node for piece in pieces for node in piece.nodes}
        self._inputs = tuple(dict.fromkeys(name for piece in pieces for name in piece.reads if name not in made))
        self._outputs = tuple(piece.result for piece in pieces if self._is_read_outside(piece.result, nodes))
        self._readers: dict[str, list[Piece]] = {}
        for piece in pieces:
            for name in piece.reads:
                self._readers.setdefault(name, []).append(piece)
        self._numbers = {name: number for number, name in enumerate(self._inputs)}
        self._constants: dict[Constant, int] = {}
        self._steps: list[steps.Step] = []
        self._fused: set[Piece] = set()

    def _is_read_outside(self, name: str, nodes: set[str]) -> bool:
        facts = self._facts
        return name in facts.outputs or any(op.node not in nodes for op in facts.get_users(name))

    def finish(self) -> DescribedRegion:
        for piece in self._pieces:
            if piece not in self._fused:
                self._add_piece(piece)
        region = steps.Region(
            tuple(map(self._describe_value, self._inputs)),
            tuple(self._steps),
            tuple(self._numbers[name] for name in self._outputs),
            tuple(map(self._describe_value, self._outputs)),
        )
        return DescribedRegion(region, self._inputs, tuple(self._constants), self._outputs)

    def _describe_value(self, name: str) -> steps.TensorLayout:
        value = self._facts.values[name]
        return steps.TensorLayout(value.shape, value.strides)

    def _get_shape(self, name: str) -> tuple[int, ...]:
        return self._facts.values[name].shape

    def _number_constant(self, constant: Constant) -> int:
        return self._constants.setdefault(constant, len(self._constants))

    def _add_step(self, step: steps.Step) -> int:
        self._steps.append(step)
        return len(self._inputs) + len(self._steps) - 1

    def _add_piece(self, piece: Piece) -> None:
        work, shape = piece.work, self._get_shape(piece.result)
        match work:
            case Convolution():
                self._add_convolution(piece, work)
            case Product():
                self._add_product(piece, work)
            case Elementwise():
                self._add_elementwise(piece, work)
            case Pooling():
                pooled = steps.Pooling(
                    self._numbers[work.image],
                    work.algorithm,
                    work.window,
                    work.stride,
                    work.before,
                    work.behind,
                    # A mean over all pixels may drop their dimensions.
                    shape if len(shape) > 2 else (*shape, *(1,) * len(work.window)),
                )
                number = self._add_step(pooled)
                whole = pooled.shape == shape
                self._numbers[piece.result] = number if whole else self._add_step(steps.Reshape(number, shape))
            case Concatenation():
                values = tuple(self._numbers[name] for name in work.values)
                self._numbers[piece.result] = self._add_step(steps.Concatenation(values, work.dimension, shape))
            case Reshape():
                self._numbers[piece.result] = self._add_step(steps.Reshape(self._numbers[work.value], shape))

    def _add_convolution(self, piece: Piece, work: Convolution) -> None:
        result = piece.result
        scaled: list[Scaling] = []
        while (reader := self._find_follower(result)) is not None:
            scaling = self._match_scaling(reader, result)
            if scaling is None:
                break
            scaled.append(scaling)
            self._fused.add(reader)
            result = reader.result
        following, result = self._collect_following(result, None)
        weight: Constant = work.weight
        bias: Constant | None = work.bias
        if scaled:
            folded = FoldedWeights(work.weight, work.bias, tuple(scaled))
            weight, bias = FoldedConstant(folded, is_bias=False), FoldedConstant(folded, is_bias=True)
        step = steps.Convolution(
            self._numbers[work.image],
            self._number_constant(weight),
            None if bias is None else self._number_constant(bias),
            work.stride,
            work.before,
            work.behind,
            work.dilation,
            work.groups,
            self._get_shape(piece.result),
            following,
        )
        self._numbers[result] = self._add_step(step)

    def _add_product(self, piece: Piece, work: Product) -> None:
        shape = self._get_shape(piece.result)
        result = piece.result
        reader = self._find_follower(result)
        if reader is not None and isinstance(reader.work, Reshape) and self._get_shape(reader.result)[-1] == shape[-1]:
            self._fused.add(reader)
            result = reader.result
        viewed = self._get_shape(result) != shape
        following, result = self._collect_following(result, shape if viewed else None)
        step = steps.Product(
            self._numbers[work.rows],
            self._number_constant(work.weight),
            None if work.bias is None else self._number_constant(work.bias),
            shape,
            following,
        )
        number = self._add_step(step)
        self._numbers[result] = self._add_step(steps.Reshape(number, self._get_shape(result))) if viewed else number

    def _add_elementwise(self, piece: Piece, work: Elementwise) -> None:
        first = self._follow(work, None)
        rest, result = self._collect_following(piece.result, None)
        step = steps.Elementwise(self._numbers[work.value], self._get_shape(result), _merge_limits((first, *rest)))
        self._numbers[result] = self._add_step(step)

    def _find_follower(self, name: str) -> Piece | None:
        """Return the piece that alone reads a value, and only once."""
        readers = self._readers.get(name, ())
        return readers[0] if len(readers) == 1 and name not in self._outputs else None

    def _match_scaling(self, piece: Piece, name: str) -> Scaling | None:
        """Return what the piece does with each channel of a convolution's result, if it can be folded."""
        work = piece.work
        if not isinstance(work, Elementwise) or work.value != name or work.other not in self._frozen:
            return None
        assert work.other is not None
        shape, result = self._get_shape(work.other), self._get_shape(name)
        padded = (1,) * (len(result) - len(shape)) + shape
        if math.prod(padded) not in (1, padded[1]):
            return None
        match work.following.algorithm:
            case "add" | "sub" | "mul" as operation:
                return Scaling(operation, work.other)
        return None

    def _collect_following(self, result: str, rows: tuple[int, ...] | None) -> tuple[tuple[steps.Following, ...], str]:
        """Return what can be computed with a step's result at once, and the last result. `rows` is the shape of the
        step's own result, if the next pieces see another."""
        found: list[steps.Following] = []
        while (reader := self._find_follower(result)) is not None:
            work = reader.work
            if not isinstance(work, Elementwise):
                break
            if work.value != result:
                # A sum of two values may be read either way.
                if self._get_shape(work.value) != self._get_shape(result):
                    break
                work = replace(work, value=result, other=work.value)
            if work.other is not None and not self._is_at_hand(work.other, result, rows):
                break
            found.append(self._follow(work, rows))
            self._fused.add(reader)
            result = reader.result
        return _merge_limits(found), result

    def _is_at_hand(self, other: str, result: str, rows: tuple[int, ...] | None) -> bool:
        """Return True for an operand that is known before the step, in a shape that the step can read."""
        if other in self._frozen:
            shape = self._get_shape(other)
            return rows is None or math.prod(shape) == 1 or math.prod(shape) == rows[-1] == shape[-1]
        return other in self._numbers and (rows is None or self._get_shape(other) == self._get_shape(result))

    def _follow(self, work: Elementwise, rows: tuple[int, ...] | None) -> steps.Following:
        if work.other is None:
            return work.following
        if work.other in self._frozen:
            operand = steps.Operand(self._number_constant(work.other), constant=True)
        else:
            number = self._numbers[work.other]
            operand = steps.Operand(number if rows is None else self._add_step(steps.Reshape(number, rows)))
        return replace(work.following, operand=operand)


def _merge_limits(following: Sequence[steps.Following]) -> tuple[steps.Following, ...]:
    """Make a lower and an upper limit one operation."""
    merged: list[steps.Following] = []
    for one in following:
        before = merged[-1] if merged else None
        if one.algorithm == "clip" and before is not None and before.algorithm in ("clip", "relu"):
            low, high = (0.0, math.inf) if before.algorithm == "relu" else (before.alpha, before.beta)
            if max(low, one.alpha) <= min(high, one.beta):
                merged[-1] = steps.Following("clip", max(low, one.alpha), min(high, one.beta))
                continue
        merged.append(one)
    return tuple(merged)
