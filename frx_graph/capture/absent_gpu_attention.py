"""Trace fused attention on a GPU that is not there.

Without a device torch chooses the kernel that stores all scores, since the fused ones ask for the device's capability.
The other rules need no device (`ATen/native/transformers/cuda/sdp_utils.cpp`). Half precision without a mask takes
flash attention, and most else the memory-efficient one. GPUs before Ampere run the latter instead of flash, and newer
ones may run cuDNN's attention: none of them stores scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_MOST_ROW = 256
"""Elements of a row of queries, keys and values that flash attention takes."""
_FLASH_ROW = 8
"""Rows of flash attention are padded to a multiple of this."""
_HALF = (torch.float16, torch.bfloat16)


class FusedAttention(TorchFunctionMode):
    """Traces `scaled_dot_product_attention` of GPU tensors as the fused kernel that a GPU would run."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run `func`, or the fused kernel in its place."""
        named = dict(kwargs or {})
        if func is functional.scaled_dot_product_attention and (fused := _run_fused(*args, **named)) is not None:
            return fused
        return func(*args, **named)


def _run_fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    """Return the result; None where torch would store the scores."""
    if torch.is_autocast_enabled("cuda"):
        query, key, value = (_narrow(tensor) for tensor in (query, key, value))
        attn_mask = None if attn_mask is None else _narrow(attn_mask)
    operands = (query, key, value)
    row = query.size(-1)
    if not all(_fits(tensor, query) for tensor in operands) or key.size(-1) != row:
        return None
    square = not is_causal or query.size(-2) == key.size(-2)
    fits_flash = attn_mask is None and query.dtype in _HALF and value.size(-1) == row <= _MOST_ROW and square
    if fits_flash and torch.backends.cuda.flash_sdp_enabled():
        padding = -row % _FLASH_ROW
        rows = [functional.pad(tensor, (0, padding)) if padding else tensor for tensor in operands]
        # Padding does not change the scale.
        chosen = row**-0.5 if scale is None else scale
        result: Tensor = torch.ops.aten._scaled_dot_product_flash_attention(*rows, dropout_p, is_causal, scale=chosen)[
            0
        ]
        return result[..., :row] if padding else result
    step = 8 if query.dtype in _HALF else 4
    if enable_gqa or row % step or value.size(-1) % step or not torch.backends.cuda.mem_efficient_sdp_enabled():
        return None
    keeps = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in operands)
    mask = None if attn_mask is None else _prepare_mask(attn_mask, query, key)
    made: Tensor = torch.ops.aten._scaled_dot_product_efficient_attention(
        *operands, mask, keeps, dropout_p, is_causal, scale=scale
    )[0]
    return made


def _narrow(tensor: Tensor) -> Tensor:
    """Return the tensor as autocast hands it to an attention."""
    wide = tensor.is_floating_point() and tensor.dtype is not torch.float64
    return tensor.to(torch.get_autocast_dtype("cuda")) if wide else tensor


def _fits(tensor: Tensor, query: Tensor) -> bool:
    known = tensor.device.type == "cuda" and tensor.dtype in (*_HALF, torch.float32)
    return known and tensor.dim() == 4 and tensor.stride(-1) == 1 and tensor.size(0) == query.size(0)


def _prepare_mask(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Return the mask as numbers that are added to the scores of each head."""
    if mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask.logical_not(), float("-inf"))
    return mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))
