"""Find the layouts that readers outside a region want for a value; conversions at the region's edge provide them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from frx_graph.facts.graph_facts import GraphFacts, OpFacts
from frx_graph.facts.layout import (
    CHANNELS_LAST_ORDER,
    Layout,
    follows_order,
    is_contiguous,
    make_contiguous_strides,
    make_ordered_strides,
)
from frx_graph.facts.operator_families import MATRIX_PRODUCTS
from frx_graph.passes.copies.stride_replay import Strides, replay_operator
from frx_graph.passes.copies.view_chain import is_view
from frx_graph.passes.layouts.operator_layout import classify_memory_order, find_layout_operator
from frx_graph.rules.layout_operator import LayoutRole

_MOST_READERS = 64
"""Operators behind views and pointwise operators that are checked for one value."""


def find_wanted_layouts(
    facts: GraphFacts, value: str, readers: Sequence[OpFacts], *, visible: bool
) -> tuple[Layout, ...]:
    """Return the layouts that `readers`, and the caller if the value is `visible` to it, want; empty if any will do.

    A caller is assumed to want what it gets now. Views and pointwise operators are followed to what reads their
    results: a reader wants the layout in which what it reads is contiguous.
    """
    if not readers and not visible:
        return ()
    known = facts.values[value]
    plain = make_contiguous_strides(known.shape)
    channels_last = make_ordered_strides(known.shape, CHANNELS_LAST_ORDER[len(known.shape)])
    order = classify_memory_order(known)
    wanted = {order} if visible and order is not None else set()
    waiting = deque(_StrideRead(reader, value, (plain, channels_last)) for reader in readers)
    looked_at: set[tuple[str, str]] = set()
    while waiting and len(looked_at) < _MOST_READERS:
        read = waiting.popleft()
        if (read.reader.node, read.value) in looked_at:
            continue
        looked_at.add((read.reader.node, read.value))
        if is_view(read.reader) and read.value == read.reader.inputs[0]:
            waiting.extend(_follow_view(facts, read))
        elif read.reader.pointwise and "memory_format" not in read.reader.kwargs:
            waiting.extend(_follow_pointwise(facts, read))
        else:
            wanted |= _find_wanted_by_reader(read, facts.values[read.value].shape)
    return tuple(sorted(wanted))


@dataclass(frozen=True, slots=True)
class _StrideRead:
    """`reader` reads `value`, which would have one or the other strides under each choice, plain and channels-last;
    None if it could not be made without a copy."""

    reader: OpFacts
    value: str
    strides: tuple[Strides | None, Strides | None]


def _follow_view(facts: GraphFacts, read: _StrideRead) -> Iterator[_StrideRead]:
    plain, channels_last = (
        replay_operator(read.reader, facts, {read.value: strides}) if strides is not None else None
        for strides in read.strides
    )
    nowhere = (None,) * len(read.reader.outputs)
    for name, first, second in zip(read.reader.outputs, plain or nowhere, channels_last or nowhere, strict=True):
        for user in facts.get_users(name):
            yield _StrideRead(user, name, (first, second))


def _follow_pointwise(facts: GraphFacts, read: _StrideRead) -> Iterator[_StrideRead]:
    """Follow a result that TensorIterator stores in its operand's order; a broadcast result need not be."""
    for result in facts.get_output_values(read.reader):
        if result.shape == facts.values[read.value].shape:
            for user in facts.get_users(result.name):
                yield _StrideRead(user, result.name, read.strides)


def _find_wanted_by_reader(read: _StrideRead, shape: tuple[int, ...]) -> set[Layout]:
    asked = read.reader.kwargs.get("memory_format")
    if asked in (torch.channels_last, torch.channels_last_3d):
        return {Layout.CHANNELS_LAST} if len(shape) in (4, 5) else set()
    row = find_layout_operator(read.reader)
    if row.role is LayoutRole.REDUCTION or (row.role is LayoutRole.AGNOSTIC and row.joins_images):
        return set()
    suits_plain, suits_channels_last = (_is_suitable(read.reader, shape, strides) for strides in read.strides)
    if suits_plain == suits_channels_last:
        return set()
    return {Layout.PLAIN} if suits_plain else {Layout.CHANNELS_LAST}


def _is_suitable(reader: OpFacts, shape: tuple[int, ...], strides: Strides | None) -> bool:
    if strides is None:
        return False
    if is_contiguous(shape, strides):
        return True
    rank = len(shape)
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    return reader.operator in MATRIX_PRODUCTS and rank >= 2 and follows_order(shape, strides, swapped)
