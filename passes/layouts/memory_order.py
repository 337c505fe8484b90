"""Whether a tensor lies in memory in plain or in channels-last order, gaps aside, and whether that can be told."""

from __future__ import annotations

import math

from frx_graph.capture.captured_graph import InputKind
from frx_graph.facts.graph_facts import ValueFacts
from frx_graph.facts.layout import CHANNELS_LAST_ORDER, Layout, dimension_order


def has_memory_order(value: ValueFacts) -> bool:
    """False where plain and channels-last are the same bytes (one channel, a 1x1 image), and for other ranks."""
    shape = value.shape
    return len(shape) in (4, 5) and shape[1] > 1 and math.prod(shape[2:]) > 1 and shape[0] > 0


def memory_order(value: ValueFacts) -> Layout | None:
    """PLAIN or CHANNELS_LAST; None where it is neither, or where both are the same.

    A slice of a channels-last tensor has gaps and still has its channels innermost: it counts as channels-last.
    """
    if not has_memory_order(value):
        return None
    if value.layout is not Layout.STRIDED:
        return value.layout if value.layout in (Layout.PLAIN, Layout.CHANNELS_LAST) else None
    rank = len(value.shape)
    # Dimensions of size 1 have a place in every order.
    actual, plain, channels_last = (
        [dim for dim in order if value.shape[dim] != 1]
        for order in (dimension_order(value.shape, value.strides), range(rank), CHANNELS_LAST_ORDER[rank])
    )
    if actual == plain:
        return Layout.PLAIN
    return Layout.CHANNELS_LAST if actual == channels_last else None


def converted_once(value: ValueFacts) -> bool:
    """True for parameters and buffers: their layout can be chosen when the model is built, at no cost per step."""
    return value.kind in (InputKind.PARAMETER, InputKind.BUFFER)


def other_layout(layout: Layout) -> Layout:
    """Channels-last for plain and the reverse."""
    return Layout.PLAIN if layout is Layout.CHANNELS_LAST else Layout.CHANNELS_LAST
