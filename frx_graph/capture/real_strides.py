"""Corrects fake results whose strides are not those that the real kernel gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

_LAYER_NORM_BACKWARD = torch.ops.aten.native_layer_norm_backward.default


class RealStrides(TorchDispatchMode):
    """Gives fake results the strides that the real kernels give theirs, where the two differ (seen on 2.13 and 2.15).

    `native_layer_norm_backward` allocates contiguous gradients (`layer_norm.cpp`, `layer_norm_kernel.cu`), while its
    fake result follows the strides of the incoming gradient. The clones that this leaves behind the operator in the
    graph are taken out by `merge_relayouts`: a mode of one's own always runs above the one that records.
    """

    supports_higher_order_operators = True

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run `func`, and lay its results out as the kernel does."""
        result = func(*args, **(kwargs or {}))
        if func is not _LAYER_NORM_BACKWARD:
            return result
        return tuple(item.contiguous() if isinstance(item, Tensor) else item for item in result)


def merge_relayouts(graph: fx.Graph) -> None:
    """Let each corrected result take the place, and the fake value, of its clone."""
    for node in graph.find_nodes(op="call_function", target=_LAYER_NORM_BACKWARD):
        values = list(node.meta["val"])
        for item in list(node.users):
            for clone in list(item.users):
                if clone.target is torch.ops.aten.clone.default:
                    values[item.args[1]] = item.meta["val"] = clone.meta["val"]
                    clone.replace_all_uses_with(item)
                    graph.erase_node(clone)
        node.meta["val"] = tuple(values)
