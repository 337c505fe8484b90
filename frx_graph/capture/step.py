"""One step of a program, as capture and observation both run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from frx_graph.capture.aten_trace import backward_roots


def run_step(model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, train: bool) -> Any:
    """What the model returns; with `train`, gradients of one are sent back from what `backward_roots` names."""
    with torch.set_grad_enabled(train):
        outputs = model(*args, **kwargs)
        if train:
            roots = backward_roots(pytree.tree_leaves(outputs))
            torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    return outputs
