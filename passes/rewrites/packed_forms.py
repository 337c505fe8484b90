"""Describe convolutions and products on weights packed by oneDNN, and the activations that it computes with them.

A packed convolution reads any order of the image and always returns channels-last, so it replaces a
convolution in channels-last only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.layout import is_channels_last, make_ordered_strides
from frx_graph.facts.operator_overload import get_argument
from frx_graph.facts.operator_signature import OperatorSignature, TensorSpec, transpose_spec
from frx_graph.measure.operators.operator_inputs import PACKED_CONVOLUTION, PACKED_PRODUCT, PACKED_TRANSPOSED
from frx_graph.ops.onednn_linear import has_onednn
from frx_graph.passes.rewrites.product_forms import Form, FormPart, is_dense_bias
from frx_graph.passes.rewrites.rewrite import have_same_layout


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation that oneDNN computes behind a convolution or product: its name there, numbers, and variant."""

    name: str = "none"
    numbers: tuple[float, ...] = ()
    variant: str = ""


def match_activation(op: OpFacts) -> Activation | None:
    """Return the activation that `op` is for oneDNN, if any."""

    def read_number(name: str) -> float:
        value = get_argument(op, name)
        return float(value) if isinstance(value, (int, float)) else math.nan

    if op.symbolic:
        return None
    match op.operator:
        case "aten.relu" | "aten.sigmoid" | "aten.tanh" | "aten.hardswish" | "aten.hardsigmoid":
            found = Activation(op.operator.removeprefix("aten."))
        case "aten.silu":
            found = Activation("swish")
        case "aten.gelu":
            found = Activation("gelu", (), str(get_argument(op, "approximate")))
        case "aten.hardtanh":
            found = Activation("hardtanh", (read_number("min_val"), read_number("max_val")))
        case "aten.leaky_relu":
            found = Activation("leaky_relu", (read_number("negative_slope"),))
        case _:
            return None
    return None if any(map(math.isnan, found.numbers)) else found


def find_activation_behind(value: ValueFacts, facts: GraphFacts) -> OpFacts | None:
    """Return the activation that alone reads `value` and has its layout; None if there is none."""
    readers = facts.get_users(value.name)
    if len(readers) != 1 or value.name in facts.outputs or match_activation(readers[0]) is None:
        return None
    return readers[0] if have_same_layout(value, *facts.get_output_values(readers[0])) else None


def make_packed_form(call: OperatorSignature, results: Sequence[TensorSpec]) -> Form | str:
    """Return the form of `call` with its weight packed, or the reason why not. The weight must be a constant."""
    if call.kwargs or not has_onednn():
        return "oneDNN is missing, or it has arguments that oneDNN's operator lacks"
    if any(0 in tensor.shape for tensor in call.tensors):
        return "it has no elements"
    if any(tensor.device != "cpu" or tensor.dtype != results[0].dtype for tensor in call.tensors):
        return "it does not run on a CPU, or not in one type"
    dtype = results[0].dtype
    if dtype is not torch.float32 and (dtype is not torch.bfloat16 or not torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        return "oneDNN packs no weights of this type here"
    match call.target, call.args:
        case "aten.convolution.default", (TensorSpec() as x, TensorSpec() as w, *_):
            if len(x.shape) not in (4, 5):
                return "oneDNN packs weights for images and volumes only"
            if not is_channels_last(results[0].shape, results[0].strides):
                return "packed convolutions return channels-last, which this one does not"
            return _pack_convolution(call, x, w)
        case "aten.mm.default", (TensorSpec() as x, TensorSpec() as w):
            return _pack_product(x, w, None)
        case "aten.addmm.default", (TensorSpec() as bias, TensorSpec() as x, TensorSpec() as w):
            return _pack_product(x, w, bias)
    return "oneDNN packs no weight for it"


def _pack_convolution(call: OperatorSignature, x: TensorSpec, w: TensorSpec) -> Form | str:
    bias, stride, padding, dilation, transposed, output_padding, groups = call.args[2:]
    if not is_dense_bias(bias):
        return "its bias has gaps in memory"
    rest = (dilation, groups, "none", (), "")
    if not transposed:
        return Form((FormPart(OperatorSignature(PACKED_CONVOLUTION, (x, w, bias, padding, stride, *rest))),))
    assert isinstance(output_padding, tuple) and isinstance(stride, tuple)
    # As in torch's own packing (`_is_packable_convolution`).
    if groups == w.shape[0] != 1 or any(int(p) >= int(s) for p, s in zip(output_padding, stride, strict=True)):  # type: ignore[arg-type]
        return "oneDNN packs no weights for transposed convolutions of this kind"
    return Form((FormPart(OperatorSignature(PACKED_TRANSPOSED, (x, w, bias, padding, output_padding, stride, *rest))),))


def _pack_product(x: TensorSpec, w: TensorSpec, bias: TensorSpec | None) -> Form | str:
    if x.strides != make_ordered_strides(x.shape, range(2)):
        return "its image is not a matrix without gaps"
    if bias is not None and (bias.shape != w.shape[1:] or not is_dense_bias(bias)):
        return "its summand is not a bias"
    return Form((FormPart(OperatorSignature(PACKED_PRODUCT, (x, transpose_spec(w), bias, "none", (), ""))),))
