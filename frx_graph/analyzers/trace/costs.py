"""Count bytes and FLOPs of an operator call of a trace from its recorded shapes, without torch.

Costs are counted as in captured graphs: every distinct byte read once and every byte written (`operator_traffic`), a
multiply-add as 2 (`operator_flops`). Pointwise operators are those that torch 2.15 tags, with the most arguments of an
overload.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import zip_longest

from frx_graph.analyzers.trace.convolutions import infer_convolution_output
from frx_graph.evidence.dtype import DType
from frx_graph.evidence.trace.events import Operand
from frx_graph.evidence.trace.tree import TraceTree
from frx_graph.facts.layout import compute_storage_extent, count_distinct_elements, make_contiguous_strides
from frx_graph.passes.costs.element_flops import count_element_flops

_BY_ARGUMENTS = {
    1: (
        "_conj_physical abs acos acos_ acosh acosh_ angle asin asin_ asinh asinh_ atan atan_ atanh atanh_",
        "bitwise_not bitwise_not_ ceil ceil_ conj_physical conj_physical_ cos cos_ cosh cosh_ deg2rad deg2rad_",
        "digamma digamma_ erf erf_ erfc erfc_ erfinv erfinv_ exp exp2 exp2_ exp_ expm1 expm1_ floor floor_ frac",
        "frac_ frexp hardsigmoid hardsigmoid_ i0 i0_ isfinite isinf isnan isneginf isposinf lgamma lgamma_ log10",
        "log10_ log1p log1p_ log2 log2_ log_ logical_not logical_not_ mish neg neg_ positive rad2deg rad2deg_",
        "reciprocal reciprocal_ relu relu6 relu_ rsqrt rsqrt_ selu selu_ sgn sgn_ sigmoid sigmoid_ sign sign_",
        "signbit silu silu_ sin sin_ sinc sinc_ sinh sinh_ special_airy_ai special_bessel_j0 special_bessel_j1",
        "special_bessel_y0 special_bessel_y1 special_entr special_erfcx special_i0e special_i1 special_i1e",
        "special_log_ndtr special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0",
        "special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0",
        "special_scaled_modified_bessel_k1 special_spherical_bessel_j0 sqrt sqrt_ square square_ tan tan_ tanh",
        "tanh_ trunc trunc_",
    ),
    2: (
        "atan2 atan2_ bitwise_and bitwise_and_ bitwise_left_shift bitwise_left_shift_ bitwise_or bitwise_or_",
        "bitwise_right_shift bitwise_right_shift_ bitwise_xor bitwise_xor_ celu celu_ clamp_max clamp_max_",
        "clamp_min clamp_min_ clone copysign eq equal float_power float_power_ fmax fmin fmod fmod_ gcd ge gelu gt",
        "hardshrink heaviside hypot hypot_ igamma igamma_ igammac igammac_ lcm ldexp ldexp_ le leaky_relu",
        "leaky_relu_ log logaddexp logaddexp2 logical_and logical_and_ logical_or logical_or_ logical_xor",
        "logical_xor_ logit logit_ lt maximum minimum mul mul_ mvlgamma mvlgamma_ ne nextafter nextafter_ polygamma",
        "polygamma_ pow pow_ remainder remainder_ round round_ sigmoid_backward silu_backward softshrink",
        "special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v",
        "special_chebyshev_polynomial_w special_hermite_polynomial_h special_hermite_polynomial_he",
        "special_laguerre_polynomial_l special_legendre_polynomial_p special_shifted_chebyshev_polynomial_t",
        "special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v",
        "special_shifted_chebyshev_polynomial_w special_xlog1py special_zeta tanh_backward true_divide xlogy xlogy_",
    ),
    3: (
        "add add_ clamp clamp_ clip clip_ div div_ gelu_backward hardtanh hardtanh_ lerp lerp_ logit_backward",
        "masked_fill max min native_dropout_backward rsub softplus sub sub_ threshold threshold_backward where",
    ),
    4: ("addcdiv addcdiv_ addcmul addcmul_ elu elu_ nan_to_num nan_to_num_",),
    5: ("rrelu",),
}

POINTWISE_ARGUMENTS = {name: count for count, lines in _BY_ARGUMENTS.items() for line in lines for name in line.split()}
"""Arguments by operator name without the namespace; `out` is not counted."""


_LIKE_FIRST = {
    "cudnn_batch_norm": 8, "cudnn_batch_norm_backward": 9, "miopen_batch_norm": 8, "miopen_batch_norm_backward": 8,
    "native_batch_norm": 8, "native_batch_norm_backward": 10, "native_layer_norm": 5, "native_layer_norm_backward": 8,
    "native_group_norm": 8, "native_group_norm_backward": 10, "_softmax": 3, "_log_softmax": 3,
    "_softmax_backward_data": 4, "_log_softmax_backward_data": 4, "copy_": 3,
}  # fmt: skip
"""Operators whose main result has the shape and dtype of their first tensor, and the number of their arguments without
`out`. Smaller results (statistics, gradients of scales) are left out of the bytes."""
_CONVOLUTIONS = frozenset({"cudnn_convolution", "miopen_convolution", "mkldnn_convolution", "_slow_conv2d_forward"})
_COMPARISONS = frozenset(
    {"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "logical_and", "logical_or", "logical_not"}
)
"""Pointwise operators whose result differs in dtype from their operands."""
_PRODUCTS = {"mm": 2, "bmm": 2, "addmm": 3, "baddbmm": 3}
"""Number of tensors; the last two are the factors."""
_TRAINING_POSITION = 5
"""Index of the argument `training` of batch norms."""
_LARGEST = 1 << 48
"""More elements than any machine's memory holds."""


@dataclass(frozen=True, slots=True)
class CallCost:
    """Compulsory traffic and FLOPs of one call, and the dtype that it computes in."""

    bytes: int
    flops: int
    dtype: DType

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes


class CallCosts:
    """Costs of the calls of one tree; calls with the same arguments are counted once."""

    def __init__(self, tree: TraceTree) -> None:
        self._tree = tree
        self._known: dict[tuple[str, tuple[Operand | None, ...], tuple[str, ...], Operand | None], CallCost | None] = {}

    def count_call(self, operator: int) -> CallCost | None:
        """Return the cost of the call at an index; None if its result's shape or its arithmetic is unknown."""
        call = self._tree.operators[operator]
        namespace, _, name = call.name.partition("::")
        operands = call.operands or ()
        if namespace != "aten" or not all(_is_countable(operand) for operand in operands) or not any(operands):
            return None
        result = infer_convolution_output(self._tree, operator) if name in _CONVOLUTIONS else None
        key = (name, operands, call.concrete, result)
        if key not in self._known:
            self._known[key] = _count_cost(*key)
        return self._known[key]


def is_memory_bound_operator(name: str) -> bool:
    """Return True for a pointwise operator, a normalization or a copy."""
    namespace, _, name = name.partition("::")
    return namespace == "aten" and (name in _LIKE_FIRST or name in POINTWISE_ARGUMENTS)


def _count_cost(
    name: str, operands: tuple[Operand | None, ...], concrete: tuple[str, ...], result: Operand | None
) -> CallCost | None:
    # A trace writes keyword arguments, `out` among them, like positional ones. Only the tensors of products count.
    counted = 2 if name in _CONVOLUTIONS else (_PRODUCTS | _LIKE_FIRST).get(name) or POINTWISE_ARGUMENTS.get(name)
    tensors = [operand for operand in operands[:counted] if operand is not None]
    if name not in _CONVOLUTIONS:
        result = _infer_result(name, tensors)
    if not tensors or result is None or result.dtype is None or not _is_countable(result):
        return None
    flops = _count_flops(name, tensors, concrete, result)
    written = tensors[0] if name.endswith("_") else result
    read = sum(map(_count_distinct_bytes, tensors[1:] if name == "copy_" else tensors))
    traffic = read + (written.bytes or 0)
    return CallCost(traffic, flops, result.dtype) if flops is not None and traffic else None


def _is_countable(operand: Operand | None) -> bool:
    """Return True for a missing tensor, and for one with a known dtype and a possible size."""
    return operand is None or (operand.dtype is not None and math.prod(operand.shape) < _LARGEST)


def _infer_result(name: str, tensors: list[Operand]) -> Operand | None:
    """Return the shape and dtype of the result; None if the operator is unknown, or its operands do not fit."""
    if not tensors:
        return None
    first = tensors[0]
    if name in _LIKE_FIRST:
        return first
    if name in _PRODUCTS:
        if len(tensors) != _PRODUCTS[name]:
            return None
        left, right = tensors[-2].shape, tensors[-1].shape
        fits = len(left) == len(right) >= 2 and left[:-2] == right[:-2] and left[-1] == right[-2]
        return Operand((*left[:-1], right[-1]), first.dtype) if fits else None
    floating = first.dtype is not None and first.dtype.is_floating_point
    mixed = len({tensor.dtype for tensor in tensors if tensor.shape}) > 1
    if not floating or mixed or name in _COMPARISONS or name not in POINTWISE_ARGUMENTS:
        return None
    shape = _infer_broadcast_shape([tensor.shape for tensor in tensors])
    return None if shape is None else Operand(shape, first.dtype)


def _infer_broadcast_shape(shapes: list[tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return the shape of a pointwise result by torch's rules; None for shapes that do not fit."""
    aligned = zip_longest(*map(reversed, shapes), fillvalue=1)
    distinct = [set(sizes) - {1} or {1} for sizes in aligned][::-1]
    return tuple(size for sizes in distinct for size in sizes) if all(len(sizes) == 1 for sizes in distinct) else None


def _count_flops(name: str, tensors: list[Operand], concrete: tuple[str, ...], result: Operand) -> int | None:
    if name in _CONVOLUTIONS:
        if len(tensors) < 2:
            return None
        image, weight = tensors
        return 2 * image.shape[0] * math.prod(result.shape[2:]) * math.prod(weight.shape)
    produced = math.prod(result.shape)
    if name in _PRODUCTS:
        return 2 * produced * tensors[-1].shape[-2]
    return count_element_flops(
        name,
        produced=produced,
        consumed=math.prod(tensors[0].shape),
        pointwise=name in POINTWISE_ARGUMENTS,
        training=concrete[_TRAINING_POSITION : _TRAINING_POSITION + 1] != ("False",),
    )


def _count_distinct_bytes(operand: Operand) -> int:
    """Return the bytes of memory that a tensor covers: expanded dimensions once, overlaps at most its extent."""
    strides = operand.strides if operand.strides is not None else make_contiguous_strides(operand.shape)
    elements = min(count_distinct_elements(operand.shape, strides), compute_storage_extent(operand.shape, strides))
    return elements * (operand.dtype.itemsize if operand.dtype is not None else 0)
