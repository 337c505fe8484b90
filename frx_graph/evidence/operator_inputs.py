"""Builds the arguments of an operator call from its signature: tensors with exactly these strides, on the device."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from frx_graph.facts.layout import storage_extent
from frx_graph.facts.operator_overload import find_overload
from frx_graph.facts.operator_signature import OperatorSignature, SpecArgument, TensorSpec

_NAMESPACES = frozenset({"aten", "prims", "mkl", "frx_graph"})
_WITH_WORKSPACE = frozenset({"aten.mkldnn_rnn_layer_backward", "aten._cudnn_rnn_backward", "aten.miopen_rnn_backward"})
"""Operators that read and write a workspace which only the forward call can make: its fake has no element
(`torch/_meta_registrations.py`), and with one of that size they write over whatever lies behind it."""
_PACKED_BY_MKL = "mkl._mkl_linear.default"
"""Its second argument is the third, packed: signatures leave it out."""
_BLOCK = 1 << 16
"""Random numbers are drawn once for this many elements and repeated: no kernel's speed or layout depends on more."""


def own_overload(target: str) -> OpOverload:
    """The overload that `aten.convolution.default` names. Raises `LookupError` for anything that is not an operator of
    torch's own or ours: what somebody else's does to the world is unknown, so it is not run for the sake of knowing.
    """
    if target.partition(".")[0] not in _NAMESPACES:
        raise LookupError(f"{target} is not one of torch's own operators")
    overload = find_overload(target)
    if overload is None:
        raise LookupError(f"this version of torch has no operator {target}")
    return overload


def build_arguments(signature: OperatorSignature) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments. Raises `LookupError` for an operator whose arguments cannot be made up, and
    what torch raises for sizes that do not fit into memory."""
    if signature.target.rpartition(".")[0] in _WITH_WORKSPACE:
        raise LookupError(f"{signature.target} needs the workspace of its own forward call")
    generator = torch.Generator().manual_seed(0)
    args = [_value(argument, generator) for argument in signature.args]
    if signature.target == _PACKED_BY_MKL:
        args[1] = torch.ops.mkl._mkl_reorder_linear_weight(args[2], args[4])
    kwargs = {name: _value(argument, generator) for name, argument in signature.kwargs}
    return args, kwargs


def on_meta_device(signature: OperatorSignature) -> Any:
    """What the call returns, with shapes and strides but without values. Raises what torch raises, also where it has no
    shape arithmetic for the operator."""

    def on_meta(argument: SpecArgument) -> Any:
        if isinstance(argument, TensorSpec):
            return torch.empty_strided(argument.shape, argument.strides, dtype=argument.dtype, device="meta")
        if isinstance(argument, tuple):
            return [on_meta(item) for item in argument]
        return argument

    overload = own_overload(signature.target)
    return overload(
        *(on_meta(argument) for argument in signature.args),
        **{name: on_meta(argument) for name, argument in signature.kwargs},
    )


def tensor_from(spec: TensorSpec, generator: torch.Generator) -> Tensor:
    """A tensor with the spec's shape, strides, dtype and device.

    Floating-point values are uniform in [0.5, 1): valid for logarithms, square roots and variances, and never
    denormal. Integers are 0, which is a valid index everywhere; booleans are true, which selects everything.
    """
    extent = max(storage_extent(spec.shape, spec.strides), 1)
    if spec.dtype.is_floating_point or spec.dtype.is_complex:
        drawn = torch.rand(min(extent, _BLOCK), generator=generator).mul_(0.5).add_(0.5)
        block = drawn.to(device=spec.device, dtype=spec.dtype)
        storage = block.repeat(math.ceil(extent / block.numel()))[:extent] if extent > block.numel() else block
    elif spec.dtype is torch.bool:
        storage = torch.ones(extent, dtype=spec.dtype, device=spec.device)
    else:
        storage = torch.zeros(extent, dtype=spec.dtype, device=spec.device)
    return torch.as_strided(storage, spec.shape, spec.strides)


def _value(argument: SpecArgument, generator: torch.Generator) -> Any:
    if isinstance(argument, TensorSpec):
        return tensor_from(argument, generator)
    if isinstance(argument, tuple):
        return [_value(item, generator) for item in argument]
    return argument
