"""How each operator treats the memory layout of an image-like tensor: one row an operator.

Rows of pointwise operators are not needed: torch tags them, and TensorIterator stores a result in the order of its
operands. That a row keeps channels-last was measured on the CPU (torch 2.13 and 2.15, ranks 4 and 5); operators that do
not are left out (3-D average pooling, `index_select`, `_softmax`). For CUDA it was not measured: `CPU_ONLY` follows
https://github.com/pytorch/pytorch/wiki/Operators-with-Channels-Last-support and, for group norm, the condition in
`aten/src/ATen/native/group_norm.cpp`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch

from frx_graph.facts.graph_facts import OpFacts, ValueRef


class LayoutRole(enum.StrEnum):
    """What an operator has to do with layout."""

    ANCHOR = "anchor"
    """Its speed depends on the layout: what a layout is chosen for."""
    AGNOSTIC = "agnostic"
    """Runs equally well in either layout and hands on the one it was given."""
    REDUCTION = "reduction"
    """Reads either layout equally well; its result has none to hand on."""
    BARRIER = "barrier"
    """Stops a region: it changes what the dimensions mean, wants one layout, or nothing is known about it."""


CPU_ONLY = frozenset({"cpu"})


@dataclass(frozen=True, slots=True)
class OperatorClass:
    """One row. `operands` are the positions of the arguments whose layout counts; None means every tensor argument.

    `devices` says where eager's kernel keeps channels-last, None meaning everywhere; a compiler that generates the
    loops itself keeps it everywhere.
    """

    operator: str
    role: LayoutRole
    operands: tuple[int, ...] | None = (0,)
    devices: frozenset[str] | None = None

    def joins(self, device: str, inner: str) -> bool:
        """True if the operator hands on the layout that it is given, on `device` under the compiler `inner`."""
        if self.role not in (LayoutRole.ANCHOR, LayoutRole.AGNOSTIC):
            return False
        return self.devices is None or device in self.devices or inner == "inductor"


_POINTWISE = OperatorClass("pointwise", LayoutRole.AGNOSTIC, operands=None)
_UNKNOWN = OperatorClass("unknown", LayoutRole.BARRIER, operands=None)

_A = LayoutRole.ANCHOR
_G = LayoutRole.AGNOSTIC
_R = LayoutRole.REDUCTION
_B = LayoutRole.BARRIER

OPERATOR_CLASSES: tuple[OperatorClass, ...] = (
    # convolution and pooling
    OperatorClass("aten.convolution", _A),
    OperatorClass("aten.convolution_backward", _A, (0, 1)),
    OperatorClass("aten.max_pool2d_with_indices", _A),
    OperatorClass("aten.max_pool2d_with_indices_backward", _A, (0, 1, 7)),
    OperatorClass("aten.max_pool3d_with_indices", _A),
    OperatorClass("aten.max_pool3d_with_indices_backward", _A, (0, 1, 7)),
    OperatorClass("aten.avg_pool2d", _A),
    OperatorClass("aten.avg_pool2d_backward", _A, (0, 1)),
    OperatorClass("aten._adaptive_avg_pool2d", _A),
    OperatorClass("aten._adaptive_avg_pool2d_backward", _A, (0, 1)),
    OperatorClass("aten.adaptive_max_pool2d", _A, devices=CPU_ONLY),
    OperatorClass("aten.adaptive_max_pool2d_backward", _A, (0, 1, 2), CPU_ONLY),
    # normalisation
    OperatorClass("aten.native_batch_norm", _G),
    OperatorClass("aten.native_batch_norm_backward", _G, (0, 1)),
    OperatorClass("aten.cudnn_batch_norm", _G),
    OperatorClass("aten.cudnn_batch_norm_backward", _G, (0, 1)),
    OperatorClass("aten.miopen_batch_norm", _G),
    OperatorClass("aten.miopen_batch_norm_backward", _G, (0, 1)),
    OperatorClass("aten._native_batch_norm_legit", _G),
    OperatorClass("aten._native_batch_norm_legit_no_training", _G),
    OperatorClass("aten._batch_norm_with_update", _G),
    OperatorClass("aten.batch_norm_backward", _G, (0, 1)),
    OperatorClass("aten.native_group_norm", _G, devices=CPU_ONLY),
    OperatorClass("aten.native_group_norm_backward", _G, (0, 1), CPU_ONLY),
    # joining, padding, resizing
    OperatorClass("aten.cat", _G),
    OperatorClass("aten.constant_pad_nd", _G),
    OperatorClass("aten.reflection_pad2d", _G, devices=CPU_ONLY),
    OperatorClass("aten.reflection_pad2d_backward", _G, (0, 1), CPU_ONLY),
    OperatorClass("aten.reflection_pad3d", _G, devices=CPU_ONLY),
    OperatorClass("aten.reflection_pad3d_backward", _G, (0, 1), CPU_ONLY),
    OperatorClass("aten.replication_pad2d", _G, devices=CPU_ONLY),
    OperatorClass("aten.replication_pad2d_backward", _G, (0, 1), CPU_ONLY),
    OperatorClass("aten.replication_pad3d", _G, devices=CPU_ONLY),
    OperatorClass("aten.replication_pad3d_backward", _G, (0, 1), CPU_ONLY),
    OperatorClass("aten.upsample_nearest2d", _G),
    OperatorClass("aten.upsample_nearest2d_backward", _G),
    OperatorClass("aten._upsample_nearest_exact2d", _G),
    OperatorClass("aten._upsample_nearest_exact2d_backward", _G),
    OperatorClass("aten.upsample_bilinear2d", _G),
    OperatorClass("aten.upsample_bilinear2d_backward", _G),
    OperatorClass("aten._upsample_bilinear2d_aa", _G, devices=CPU_ONLY),
    OperatorClass("aten._upsample_bilinear2d_aa_backward", _G, devices=CPU_ONLY),
    OperatorClass("aten.upsample_bicubic2d", _G, devices=CPU_ONLY),
    OperatorClass("aten.upsample_nearest3d", _G, devices=CPU_ONLY),
    OperatorClass("aten._upsample_nearest_exact3d", _G, devices=CPU_ONLY),
    OperatorClass("aten.upsample_trilinear3d", _G, devices=CPU_ONLY),
    OperatorClass("aten.upsample_trilinear3d_backward", _G, devices=CPU_ONLY),
    OperatorClass("aten.pixel_shuffle", _G, devices=CPU_ONLY),
    OperatorClass("aten.pixel_unshuffle", _G, devices=CPU_ONLY),
    OperatorClass("aten.channel_shuffle", _G, devices=CPU_ONLY),
    OperatorClass("aten.flip", _G),
    # pointwise in effect, though torch does not tag them
    OperatorClass("aten.native_dropout", _G),
    OperatorClass("aten.native_dropout_backward", _G, (0, 1)),
    OperatorClass("aten.bernoulli_", _G),
    OperatorClass("aten._to_copy", _G),
    OperatorClass("aten.copy", _G, (0, 1)),
    OperatorClass("aten.fill", _G),
    OperatorClass("aten.zero", _G),
    OperatorClass("aten.empty_like", _G),
    OperatorClass("aten.zeros_like", _G),
    OperatorClass("aten.ones_like", _G),
    OperatorClass("aten.full_like", _G),
    OperatorClass("aten.rand_like", _G),
    OperatorClass("aten.randn_like", _G),
    OperatorClass("aten.glu", _G),
    OperatorClass("aten.hardswish", _G),
    OperatorClass("aten.hardswish_backward", _G, (0, 1)),
    OperatorClass("aten.hardtanh_backward", _G, (0, 1)),
    OperatorClass("aten.hardsigmoid_backward", _G, (0, 1)),
    OperatorClass("aten.leaky_relu_backward", _G, (0, 1)),
    OperatorClass("aten.elu_backward", _G, (0, 5)),
    OperatorClass("aten.softplus_backward", _G, (0, 1)),
    OperatorClass("aten.mish_backward", _G, (0, 1)),
    OperatorClass("aten._prelu_kernel", _G),
    OperatorClass("aten._prelu_kernel_backward", _G, (0, 1)),
    # views that keep the dimensions
    OperatorClass("aten.alias", _G),
    OperatorClass("aten.detach", _G),
    OperatorClass("aten.slice", _G),
    OperatorClass("aten.split", _G),
    OperatorClass("aten.split_with_sizes", _G),
    OperatorClass("aten.unsafe_split", _G),
    # reductions
    OperatorClass("aten.mean", _R),
    OperatorClass("aten.sum", _R),
    OperatorClass("aten.amax", _R),
    OperatorClass("aten.amin", _R),
    OperatorClass("aten.var", _R),
    OperatorClass("aten.var_mean", _R),
    OperatorClass("aten.std", _R),
    OperatorClass("aten.std_mean", _R),
    OperatorClass("aten.linalg_vector_norm", _R),
    # tagged pointwise, but the result is plain whatever the operand was
    OperatorClass("aten.masked_fill", _B),
)

_CLASS_OF = {row.operator: row for row in OPERATOR_CLASSES}


def operator_class(op: OpFacts) -> OperatorClass:
    """The row of `op`. An in-place operator has that of its out-of-place form; one that is told which memory format to
    produce is a barrier."""
    if op.kwargs.get("memory_format") not in (None, torch.preserve_format):
        return _UNKNOWN
    row = _CLASS_OF.get(op.operator) or _CLASS_OF.get(op.operator.removesuffix("_"))
    if row is not None:
        return row
    return _POINTWISE if op.pointwise else _UNKNOWN


def layout_operands(op: OpFacts, row: OperatorClass) -> tuple[str, ...]:
    """The values among the operands whose layout counts, in argument order."""
    if row.operands is None:
        return tuple(dict.fromkeys(op.inputs))
    names: list[str] = []
    for position in row.operands:
        argument = op.args[position] if position < len(op.args) else None
        items = argument if isinstance(argument, tuple) else (argument,)
        names.extend(item.name for item in items if isinstance(item, ValueRef))
    return tuple(dict.fromkeys(names))


def layout_results(op: OpFacts) -> tuple[str, ...]:
    """The results whose layout counts: all but the gradients of weights."""
    if op.operator != "aten.convolution_backward":
        return op.outputs
    mask = op.args[10] if len(op.args) > 10 else None
    has_input_gradient = isinstance(mask, tuple) and bool(mask[0])
    return op.outputs[:1] if has_input_gradient else ()


def follows_operand(op: OpFacts) -> bool:
    """True where the result cannot have another layout than the first operand: views, in-place operators, `*_like`."""
    in_place = bool(op.mutates) and op.mutates[0] in op.inputs[:1]
    return op.view or in_place or op.operator.endswith("_like")


def wants_one_layout(op: OpFacts) -> bool:
    """True for the backward of a pooling: where the gradient comes in another layout than the input that was saved, it
    copies the gradient, the saved input and its own result (seen on the CPU, torch 2.15)."""
    return op.operator.endswith("_backward") and "_pool" in op.operator
