"""Build the arguments of an operator call from its signature: tensors with exactly these strides, on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from frx_graph.facts.layout import compute_storage_extent
from frx_graph.facts.operator_overload import find_overload
from frx_graph.facts.operator_signature import OperatorSignature, TensorSpec
from frx_graph.support.torch_internals import OpOverload

_NAMESPACES = frozenset({"aten", "prims", "mkl", "mkldnn", "frx_graph"})
_WITH_WORKSPACE = frozenset({"aten.mkldnn_rnn_layer_backward", "aten._cudnn_rnn_backward", "aten.miopen_rnn_backward"})
"""Operators that read and write a workspace which only the forward call can make: its fake has no element
(`torch/_meta_registrations.py`), and with one of that size they overwrite the memory after it."""
PACKED_BY_MKL = "mkl._mkl_linear.default"
"""An operator whose second argument is the third one, packed: signatures leave it out."""
PACKED_CONVOLUTION = "mkldnn._convolution_pointwise.default"
PACKED_TRANSPOSED = "mkldnn._convolution_transpose_pointwise.default"
PACKED_PRODUCT = "mkldnn._linear_pointwise.default"
"""Signatures hold the weight of these three as it is before it is packed."""
_PACKERS = {
    PACKED_CONVOLUTION: "_reorder_convolution_weight",
    PACKED_TRANSPOSED: "_reorder_convolution_transpose_weight",
    PACKED_PRODUCT: "_reorder_linear_weight",
}
_BLOCK = 1 << 16
"""Random numbers are drawn once for this many elements and repeated: no kernel's speed or layout depends on more."""


def find_own_overload(target: str) -> OpOverload:
    """Return the overload of a name such as `aten.convolution.default`.

    Raises `LookupError` for operators from other packages than torch and frx-graph. Their side effects are unknown, so
    they are not run for a measurement.
    """
    if target.partition(".")[0] not in _NAMESPACES:
        raise LookupError(f"{target} is not one of torch's own operators")
    overload = find_overload(target)
    if overload is None:
        raise LookupError(f"this version of torch has no operator {target}")
    return overload


def build_arguments(
    signature: OperatorSignature, tensor: Callable[[TensorSpec], Tensor] | None = None
) -> tuple[list[Any], dict[str, Any]]:
    """Return positional and keyword arguments, with tensors made by `tensor`, or each separately.

    Raises `LookupError` for an operator whose arguments cannot be made up, and torch's error for sizes that do not fit
    into memory.
    """
    if signature.target.rpartition(".")[0] in _WITH_WORKSPACE:
        raise LookupError(f"{signature.target} needs a workspace that only its forward call makes")
    generator = torch.Generator().manual_seed(0)
    args, kwargs = signature.make_arguments(tensor or (lambda spec: make_tensor(spec, generator)))
    if signature.target == PACKED_BY_MKL:
        args[1] = torch.ops.mkl._mkl_reorder_linear_weight(args[2], args[4])
    elif signature.target in _PACKERS:
        args[1] = find_packer(signature.target)(args[1], *get_packing_arguments(signature.target, args))
    return args, kwargs


def find_packer(target: str) -> OpOverload:
    """The operator that packs the weight of oneDNN's operator `target`."""
    found: OpOverload = getattr(torch.ops.mkldnn, _PACKERS[target]).default
    return found


def get_packing_arguments(target: str, args: Sequence[Any]) -> tuple[Any, ...]:
    """Return the arguments of `find_packer(target)` besides the weight. `args` are the packed call's arguments, and the
    first is the operand, with a `shape`."""
    size = list(args[0].shape)
    if target == PACKED_PRODUCT:
        return (size[0],)
    return (*args[3 : 8 if target == PACKED_TRANSPOSED else 7], size)


def run_on_meta(signature: OperatorSignature) -> Any:
    """Return the results of the call with shapes and strides but without values. Raises what torch raises, also if it
    has no shape function for the operator."""

    def make(spec: TensorSpec) -> Tensor:
        return torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype, device="meta")

    args, kwargs = signature.make_arguments(make)
    return find_own_overload(signature.target)(*args, **kwargs)


def make_tensor(spec: TensorSpec, generator: torch.Generator) -> Tensor:
    """A tensor with the spec's shape, strides, dtype and device.

    Floating-point values are uniform in [0.5, 1): valid for logarithms, square roots and variances, and never
    denormal. Integers are 0, which is a valid index everywhere; booleans are true, which selects everything.
    """
    extent = max(compute_storage_extent(spec.shape, spec.strides), 1)
    return torch.as_strided(_make_memory(extent, spec, generator), spec.shape, spec.strides)


class OperandPool:
    """Hands out consecutive tensors in one large buffer, and starts over at its end.

    Tensors read in turn are in no cache when their turn comes again, and making them costs nothing. They share memory,
    so they must not be written to.
    """

    def __init__(self, nbytes: int = 256 << 20) -> None:
        self.nbytes = nbytes
        self._generator = torch.Generator().manual_seed(0)
        self._memories: dict[tuple[torch.dtype, str], Tensor] = {}
        self._taken: dict[tuple[torch.dtype, str], int] = {}

    def take_tensor(self, spec: TensorSpec) -> Tensor:
        """The next tensor with the spec's shape, strides, dtype and device; see `make_tensor`."""
        kind = (spec.dtype, spec.device)
        extent = max(compute_storage_extent(spec.shape, spec.strides), 1)
        memory = self._memories.get(kind)
        if memory is None or memory.numel() < extent:
            size = max(extent, self.nbytes // spec.dtype.itemsize)
            memory = self._memories[kind] = _make_memory(size, spec, self._generator)
        start = self._taken.get(kind, 0)
        if start + extent > memory.numel():
            start = 0
        self._taken[kind] = start + math.ceil(extent / _ALIGNMENT) * _ALIGNMENT
        return torch.as_strided(memory, spec.shape, spec.strides, start)


_ALIGNMENT = 64
"""Elements; at least as many bytes as torch aligns its memory to."""


def _make_memory(extent: int, spec: TensorSpec, generator: torch.Generator) -> Tensor:
    if spec.dtype.is_floating_point or spec.dtype.is_complex:
        drawn = torch.rand(min(extent, _BLOCK), generator=generator).mul_(0.5).add_(0.5)
        block = drawn.to(device=spec.device, dtype=spec.dtype)
        return block.repeat(math.ceil(extent / block.numel()))[:extent] if extent > block.numel() else block
    if spec.dtype is torch.bool:
        return torch.ones(extent, dtype=spec.dtype, device=spec.device)
    return torch.zeros(extent, dtype=spec.dtype, device=spec.device)
