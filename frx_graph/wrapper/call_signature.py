"""What of a call decides which compiled graph it runs, as far as the arguments show it; a microsecond or two a call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Strides = tuple[tuple[int, ...], ...]

_CONSTANTS = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.Size)
_TENSORS = (Tensor, nn.Parameter, nn.Buffer)


@dataclass(frozen=True, slots=True)
class CallSignature:
    """`key` is equal for calls that differ at most in the values and the strides of their tensors. `tensors` are these,
    in the order of the arguments, `strides` theirs."""

    key: tuple[Any, ...]
    tensors: tuple[Tensor, ...]
    strides: Strides


def call_signature(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallSignature | None:
    """The signature of a call; None where an argument is something else than tensors, constants, and tuples, lists and
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
    return CallSignature(tuple(key), tuple(tensors), tuple([tensor.stride() for tensor in tensors]))


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


def places(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """For each tensor of the signature its path in the arguments, and whether only tuples lead to it, which the program
    cannot change."""
    found: list[tuple[str, bool]] = []
    for index, value in enumerate(args):
        found.extend(_places(value, f"args[{index}]", fixed=True))
    for name, value in kwargs.items():
        found.extend(_places(value, f"kwargs[{name!r}]", fixed=True))
    return found


def _places(value: Any, path: str, *, fixed: bool) -> Iterator[tuple[str, bool]]:
    if isinstance(value, Tensor):
        yield path, fixed
    elif isinstance(value, (tuple, list)):
        for index, part in enumerate(value):
            yield from _places(part, f"{path}[{index}]", fixed=fixed and type(value) is tuple)
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from _places(part, f"{path}[{name!r}]", fixed=False)


def with_replaced(value: Any, replaced: Mapping[int, Tensor]) -> Any:
    """`value`, a tensor or what tuples lead to, with others in the place of tensors, by their `id`."""
    if isinstance(value, Tensor):
        return replaced.get(id(value), value)
    return tuple([with_replaced(part, replaced) for part in value]) if type(value) is tuple else value
