"""Rewrites turn one kind of waste in a graph into a changed graph that computes the same.

`REWRITES` is their order; importing the package does nothing else.
"""

from __future__ import annotations

from frx_graph.passes.rewrites import (
    backward_layout,
    blocked_layout,
    cancel_permutes,
    copy_cse,
    drop_redundant_copies,
    exact_gradients,
    flattened_features,
    fold_padding,
    merged_products,
    onednn_products,
    onednn_regions,
    pointwise_products,
    propagate_layout,
    reuse_memory,
)
from frx_graph.passes.rewrites.rewrite import Rewrite

DECIDE_LAYOUT = frozenset({propagate_layout.NAME, backward_layout.NAME})
"""Rewrites that replace Inductor's own choice for all convolutions of a graph."""

MEET_INPUTS = DECIDE_LAYOUT | {cancel_permutes.NAME}
"""Rewrites after which a graph runs on inputs in other orders than it was traced with."""

REWRITES: tuple[Rewrite, ...] = (
    copy_cse.REWRITE,
    fold_padding.REWRITE,
    propagate_layout.REWRITE,
    backward_layout.REWRITE,
    cancel_permutes.REWRITE,
    flattened_features.REWRITE,
    merged_products.REWRITE,
    blocked_layout.REWRITE,
    onednn_products.REWRITE,
    drop_redundant_copies.REWRITE,
    reuse_memory.REWRITE,
    exact_gradients.REWRITE,
)

BEFORE_FREEZING: tuple[Rewrite, ...] = (
    merged_products.REWRITE,
    onednn_regions.REWRITE,
    fold_padding.REWRITE,
    pointwise_products.REWRITE,
)
"""Rewrites of graphs whose weights Inductor freezes; it chooses layouts and packs weights itself."""
