"""Norms of which torch's kernel for channels-last images keeps fewer digits than the one for plain ones.

For a group's variance the kernel for channels-last images takes the mean of squares minus the square of the mean, where
the other one adds up squares of differences (torch 2.15 and 2.13, CPU,
`aten/src/ATen/native/cpu/group_norm_kernel.cpp`). In single precision, beside a mean of 10 deviations the result is off
by 1e-4, not by 1e-6, and beside 100 by 1e-2. In half precision, whose sums are in single, the image's own rounding is
larger than that. Inductor writes a loop of its own for it, which loses nothing.
"""

from __future__ import annotations

import torch

from frx_graph.facts.graph_facts import GraphFacts, OpFacts


def has_inexact_kernel(op: OpFacts, facts: GraphFacts) -> bool:
    """True for such a norm. It is to stay in the layout that it was traced in, if need be channels-last."""
    if op.operator != "aten.native_group_norm":
        return False
    image = facts.input_values(op)[0]
    return image.device.type == "cpu" and image.dtype in (torch.float32, torch.float64)
