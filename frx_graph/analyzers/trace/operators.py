"""Decide which operators of a trace request a copy, and which are hot."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from frx_graph.capture.captured_graph import Phase
from frx_graph.evidence.trace.events import Operator
from frx_graph.evidence.trace.tree import NONE, TraceTree
from frx_graph.facts.operator_families import LAYOUT_COPIES, get_profiler_names

COPY = "aten::copy_"
EXPLICIT = get_profiler_names(LAYOUT_COPIES) | {"aten::to"}
RESHAPES = frozenset({"aten::reshape", "aten::reshape_as", "aten::flatten", "aten::unflatten", "aten::ravel"})
VIEWS = frozenset(
    f"aten::{name}"
    for name in ("permute", "transpose", "t", "swapaxes", "swapdims", "movedim", "moveaxis", "mT", "mH", "numpy_T")
)
"""Views that reorder dimensions."""

_HOT = frozenset(
    f"aten::{name}"
    for name in (
        *("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "einsum", "tensordot"),
        *("bilinear", "conv1d", "conv2d", "conv3d", "convolution", "_convolution", "convolution_overrideable"),
        *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution_backward"),
        *("cudnn_convolution", "cudnn_convolution_relu", "cudnn_convolution_add_relu", "cudnn_convolution_transpose"),
        *("cudnn_convolution_backward", "cudnn_convolution_backward_input", "cudnn_convolution_backward_weight"),
        *("miopen_convolution", "miopen_depthwise_convolution", "mkldnn_convolution", "_slow_conv2d_forward"),
        *("miopen_convolution_backward", "mkldnn_convolution_backward", "_conv_depthwise2d", "slow_conv3d"),
        *("scaled_dot_product_attention", "_scaled_dot_product_attention_math", "_scaled_dot_product_flash_attention"),
        *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"),
        *("_native_multi_head_attention", "_transformer_encoder_layer_fwd", "lstm", "gru", "rnn_tanh", "rnn_relu"),
        *("embedding", "embedding_bag", "layer_norm", "native_layer_norm", "group_norm", "native_group_norm"),
        *("batch_norm", "native_batch_norm", "cudnn_batch_norm", "cudnn_batch_norm_backward", "instance_norm"),
        *("native_layer_norm_backward", "native_group_norm_backward", "native_batch_norm_backward"),
        *("cat", "concat", "softmax", "_softmax", "log_softmax", "_log_softmax", "max_pool2d", "max_pool3d"),
        *("avg_pool2d", "avg_pool3d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "pixel_shuffle"),
        *("upsample_nearest2d", "upsample_bilinear2d", "upsample_nearest3d", "upsample_trilinear3d"),
    )
)
_OPERATOR = re.compile(r"(?P<namespace>[A-Za-z_]\w*)(?:[.:]+\w+)*::\w+(?:\.\w+)?")
_LIBRARY_NAMESPACES = frozenset({"aten", "prims", "c10d", "torch", "autograd", "inductor", "profiler", "quantized"})
"""Namespaces of torch itself; an operator of any other namespace is a custom one."""


@dataclass(frozen=True, slots=True)
class Blame:
    """Per operator of a tree, with `NONE` for none: the outermost hot operator at or above it, and the outermost
    operator that requests a copy, below that hot one if there is one. `other` is True at and below any operator that
    is neither: its copies are by design."""

    hot: tuple[int, ...]
    asker: tuple[int, ...]
    other: tuple[bool, ...]


def blame_copies(tree: TraceTree) -> Blame:
    """Blame copies in one pass from callers to callees."""
    hot: list[int] = []
    asker: list[int] = []
    other: list[bool] = []
    for index, (operator, parent) in enumerate(zip(tree.operators, tree.parents, strict=True)):
        above = (hot[parent], asker[parent], other[parent]) if parent != NONE else (NONE, NONE, False)
        hot_above, asker_above, other_above = above
        asks = operator.name in EXPLICIT or operator.name in RESHAPES
        begins_hot = hot_above == NONE and not operator.annotation and is_hot_name(operator.name)
        hot.append(index if begins_hot else hot_above)
        asker.append(index if asks and asker_above == NONE else asker_above)
        unrelated = not asks and not begins_hot and hot_above == NONE and asker_above == NONE
        other.append(other_above or (unrelated and is_operator(operator)))
    return Blame(tuple(hot), tuple(asker), tuple(other))


def find_outermost(tree: TraceTree) -> tuple[int, ...]:
    """Return, by operator, the outermost dispatched operator at or above it, or itself."""
    found: list[int] = []
    dispatched: list[bool] = []
    for index, (operator, parent) in enumerate(zip(tree.operators, tree.parents, strict=True)):
        below = parent != NONE and dispatched[parent]
        found.append(found[parent] if below else index)
        dispatched.append(below or is_operator(operator))
    return tuple(found)


def is_operator(operator: Operator) -> bool:
    """Return True for a dispatched operator; False for autograd's nodes and named ranges."""
    return not operator.annotation and _parse_namespace(operator.name) is not None


def is_hot_name(name: str) -> bool:
    """Return True for operators whose inner copies are worth a finding, custom ones included."""
    namespace = _parse_namespace(name)
    return name in _HOT or (namespace is not None and namespace not in _LIBRARY_NAMESPACES)


@functools.lru_cache(maxsize=4096)
def _parse_namespace(name: str) -> str | None:
    return match["namespace"] if (match := _OPERATOR.fullmatch(name)) else None


def iterate_upwards(tree: TraceTree, operator: int) -> Iterator[int]:
    """Yield the operator and those that called it, the innermost first; nothing for `NONE`."""
    while operator != NONE:
        yield operator
        operator = tree.parents[operator]


def get_phase(tree: TraceTree, operator: int) -> Phase:
    """Return the phase of an operator; the forward for `NONE`."""
    return Phase.BACKWARD if operator != NONE and tree.backward_of[operator] is not None else Phase.FORWARD
