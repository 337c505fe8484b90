"""Tells calls apart by what decides which compiled graph they run, as far as the arguments show it.

It takes a microsecond or two a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Strides = tuple[tuple[int, ...], ...]

_CONSTANTS = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.Size)
_TENSORS = (Tensor, nn.Parameter, nn.Buffer)


@dataclass(frozen=True, slots=True)
class CallSignature:
    """`key` is equal for calls that differ at most in the values and the strides of their tensors. `strides` are those,
    in the order of the arguments."""

    key: tuple[Any, ...]
    strides: Strides


def call_signature(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallSignature | None:
    """Return the signature of a call; None for arguments other than tensors, constants, and tuples, lists and
    dictionaries of them."""
    key: list[Any] = [torch.is_grad_enabled()]
    tensors: list[Tensor] = []
    for value in args:
        if not _add(value, key, tensors):
            return None
    for name, value in kwargs.items():
        key.append(name)
        if not _add(value, key, tensors):
            return None
    return CallSignature(tuple(key), tuple([tensor.stride() for tensor in tensors]))


def _add(value: Any, key: list[Any], tensors: list[Tensor]) -> bool:
    kind = type(value)
    if kind in _TENSORS:
        if value.layout is not torch.strided:
            return False
        key.append((kind, value.shape, value.dtype, value.device, value.requires_grad))
        tensors.append(value)
        return True
    if kind in _CONSTANTS:
        key.append((kind, value))
        return True
    if kind is tuple or kind is list:
        key.append((kind, len(value)))
        return all(_add(part, key, tensors) for part in value)
    if kind is dict:
        key.append((kind, tuple(value)))
        return all(_add(part, key, tensors) for part in value.values())
    return False
