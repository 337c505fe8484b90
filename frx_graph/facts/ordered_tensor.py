"""Store tensors in another dimension order."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from frx_graph.facts.layout import invert_order


def store_in_order(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """Return the values without gaps, `order` naming the dimensions from the outermost to the innermost; the tensor
    itself, or a view of it, if it is stored so already."""
    return tensor.permute(*order).contiguous().permute(invert_order(order))
