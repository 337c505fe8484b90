"""Define other ways to compute a call: by oneDNN's matrix product instead of torch's own operator."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from frx_graph.facts.layout import CHANNELS_LAST_ORDER, make_ordered_strides
from frx_graph.facts.operator_signature import OperatorSignature, SpecArgument, TensorSpec, transpose_spec
from frx_graph.ops.im2col_convolution import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from frx_graph.ops.onednn_linear import TARGET, has_onednn
from frx_graph.passes.rewrites.conv1x1_as_matmul import flatten_spec, is_pixel_matrix


@dataclass(frozen=True, slots=True)
class FormPart:
    """One call of a form. `results` are the positions of the operator's results that it computes. With `image`, it is a
    product of matrices that are views of the operator's images and weights, and its result is viewed as that image."""

    call: OperatorSignature
    results: tuple[int, ...] = (0,)
    image: TensorSpec | None = None

    @property
    def name(self) -> str:
        """The operator's name, with the results if they are not the first alone."""
        operator = self.call.target.split(".")[1]
        return operator if self.results == (0,) else f"{operator}[{','.join(map(str, self.results))}]"


@dataclass(frozen=True, slots=True)
class Form:
    """A way to compute a call: the calls that take its place, one after the other."""

    parts: tuple[FormPart, ...]

    @property
    def calls(self) -> tuple[OperatorSignature, ...]:
        """The calls to be timed."""
        return tuple(part.call for part in self.parts)

    @property
    def name(self) -> str:
        """The names of the parts."""
        return "+".join(part.name for part in self.parts)

    def sum_seconds(self, timed: Mapping[OperatorSignature, float]) -> float | None:
        """Return the seconds of all calls together; None if one was not timed."""
        return sum(timed[call] for call in self.calls) if all(call in timed for call in self.calls) else None


def list_forms(call: OperatorSignature, results: Sequence[TensorSpec]) -> tuple[Form, ...]:
    """Return the call as it is, then the other forms that compute the same `results`. There are some for single
    precision on a CPU: for other types torch uses oneDNN's products itself."""
    return (Form((FormPart(call),)), *_list_other_forms(call, results))


def _list_other_forms(call: OperatorSignature, results: Sequence[TensorSpec]) -> Iterator[Form]:
    if call.kwargs or not has_onednn() or any(0 in tensor.shape for tensor in call.tensors):
        return
    if any((tensor.dtype, tensor.device) != (torch.float32, "cpu") for tensor in call.tensors):
        return
    match call.target, call.args:
        case "aten.mm.default", (TensorSpec() as x, TensorSpec() as w) if _is_non_overlapping(w):
            yield Form((FormPart(_make_product(x, w)),))
        case "aten.addmm.default", (TensorSpec() as bias, TensorSpec() as x, TensorSpec() as w):
            if _is_non_overlapping(w) and bias.shape == w.shape[1:] and is_dense_bias(bias):
                yield Form((FormPart(_make_product(x, w, bias)),))
        case "aten.convolution.default", (TensorSpec() as x, TensorSpec() as w, bias, stride, padding, *rest):
            if rest != _TWO_DIMENSIONS or not is_dense_bias(bias) or not _is_worth_unfolding(x, w, stride, padding):
                return
            order = _classify_channels_last(results[0])
            if _is_pointwise_kernel(w, stride, padding) and _are_pixel_matrices(x, w, result=results[0]):
                assert bias is None or isinstance(bias, TensorSpec)
                product = _make_product(flatten_spec(x), transpose_spec(flatten_spec(w)), bias)
                yield Form((FormPart(product, image=results[0]),))
            elif order is not None:
                yield Form((FormPart(OperatorSignature(FORWARD, (x, w, bias, stride, padding, order))),))
        case (
            "aten.convolution_backward.default",
            (TensorSpec(), TensorSpec() as x, TensorSpec() as w, _, stride, padding, *rest, _),
        ):
            if rest == _TWO_DIMENSIONS and _is_worth_unfolding(x, w, stride, padding):
                yield from _list_gradient_forms(call, results)


def is_dense_bias(bias: SpecArgument) -> bool:
    """Return True for no bias and for one without gaps: oneDNN reads others as if they had none (torch 2.15)."""
    return bias is None or (isinstance(bias, TensorSpec) and bias.strides == (1,))


def _is_non_overlapping(w: TensorSpec) -> bool:
    """Return False for overlapping rows or columns, as of windows: oneDNN takes no such weight, but expanded ones."""
    inner, outer = sorted((stride, size) for size, stride in zip(w.shape, w.strides, strict=True))
    return 1 in w.shape or inner[0] == 0 or outer[0] >= inner[0] * inner[1]


def _make_product(x: TensorSpec, w: TensorSpec, bias: TensorSpec | None = None) -> OperatorSignature:
    return OperatorSignature(TARGET, (x, w, bias))


_TWO_DIMENSIONS = [(1, 1), False, (0, 0), 1]
"""Dilation, transposed, output padding and groups of the convolutions that can be unfolded."""


def _list_gradient_forms(call: OperatorSignature, results: Sequence[TensorSpec]) -> Iterator[Form]:
    """Return the forms in which each gradient is computed by a product or by torch."""
    g, x, w, _, stride, padding, *_, mask = call.args
    assert isinstance(g, TensorSpec) and isinstance(x, TensorSpec) and isinstance(w, TensorSpec)
    assert isinstance(mask, tuple)
    asked = [bool(wanted) for wanted in mask]
    if len(results) != sum(asked) or not asked[1]:
        return
    found = dict(zip((index for index, wanted in enumerate(asked) if wanted), results, strict=True))

    def call_torch(*which: bool) -> FormPart:
        computed = tuple(index for index, wanted in enumerate(which) if wanted)
        return FormPart(replace(call, args=(*call.args[:-1], which)), computed)

    one_pixel = _is_pointwise_kernel(w, stride, padding)

    def compute_gradient(
        index: int, name: str, operands: tuple[TensorSpec, ...], by_pixels: OperatorSignature
    ) -> FormPart | None:
        if one_pixel and _are_pixel_matrices(*operands, result=found[index]):
            return FormPart(by_pixels, (index,), image=found[index])
        order = _classify_channels_last(found[index])
        if order is None:
            return None
        return FormPart(OperatorSignature(name, (*operands, found[index].shape, stride, padding, order)), (index,))

    to_weight = compute_gradient(
        1, WEIGHT_GRADIENT, (g, x), _make_product(transpose_spec(flatten_spec(g)), flatten_spec(x))
    )
    biases = (FormPart(OperatorSignature("aten.sum.dim_IntList", (g, (0, 2, 3))), (2,)),) if asked[2] else ()
    if to_weight is None:
        return
    if not asked[0]:
        yield Form((to_weight, *biases))
        return
    to_input = compute_gradient(0, INPUT_GRADIENT, (g, w), _make_product(flatten_spec(g), flatten_spec(w)))
    if to_input is not None:
        yield Form((to_input, to_weight, *biases))
        yield Form((call_torch(False, True, asked[2]), to_input))
    yield Form((call_torch(True, False, asked[2]), to_weight))


def _is_pointwise_kernel(w: TensorSpec, stride: SpecArgument, padding: SpecArgument) -> bool:
    return w.shape[2:] == (1, 1) and _match_pair(stride) == (1, 1) and _match_pair(padding) == (0, 0)


def _are_pixel_matrices(*operands: TensorSpec, result: TensorSpec) -> bool:
    return all(map(is_pixel_matrix, (*operands, result))) and _classify_channels_last(result) is not None


def _is_worth_unfolding(x: TensorSpec, w: TensorSpec, stride: SpecArgument, padding: SpecArgument) -> bool:
    """Return True if no pixel is seen twice, or if the weight is larger than the unfolded image: otherwise unfolding
    moves more than it can save, and takes unexpected memory."""
    steps, margins = _match_pair(stride), _match_pair(padding)
    if len(x.shape) != 4 or steps is None or margins is None:
        return False
    kernel = w.shape[2:]
    pixels = [(n + 2 * p - k) // s + 1 for n, k, s, p in zip(x.shape[2:], kernel, steps, margins, strict=True)]
    unfolded = x.shape[0] * math.prod(pixels) * x.shape[1] * math.prod(kernel)
    return min(pixels) > 0 and (kernel == (1, 1) or unfolded <= math.prod(w.shape))


def _match_pair(argument: SpecArgument) -> tuple[int, int] | None:
    match argument:
        case (int() as first, int() as second):
            return first, second
    return None


def _classify_channels_last(result: TensorSpec) -> bool | None:
    """Return True for channels-last, False for plain, None for other results than those of four dimensions."""
    if len(result.shape) != 4:
        return None
    if result.strides == make_ordered_strides(result.shape, range(4)):
        return False
    return True if result.strides == make_ordered_strides(result.shape, CHANNELS_LAST_ORDER[4]) else None
