"""Rewrites: each turns one kind of waste in a graph into a changed graph that computes the same.

`REWRITES` is their order; importing the package does nothing else.
"""

from __future__ import annotations

from frx_graph.passes.rewrites import (
    backward_layout,
    cancel_permutes,
    drop_redundant_copies,
    hoist_copy,
    propagate_layout,
)
from frx_graph.passes.rewrites.rewrite import Rewrite

REWRITES: tuple[Rewrite, ...] = (
    hoist_copy.REWRITE,
    propagate_layout.REWRITE,
    backward_layout.REWRITE,
    cancel_permutes.REWRITE,
    drop_redundant_copies.REWRITE,
)
