"""Find values whose fake strides may differ from the kernels', and correct those that are known.

A rewrite predicts strides by running operators on fakes. Where an operator makes other strides than its fake, the
operators planned after it would read something else: views fail, and callers see strides that eager does not have.
"""

from __future__ import annotations

import operator
import re
from typing import Any

import torch
from torch import Tensor, fx

from frx_graph.capture.kernel_strides import correct_strides, knows_result_strides, restride_fake
from frx_graph.errors import RewriteError
from frx_graph.passes.layouts.dimension_map import compute_view_strides
from frx_graph.passes.rewrites.layout.conversion import MEMORY_FORMATS
from frx_graph.passes.rewrites.meta_strides.fake_values import find_fake_mode, has_fixed_sizes, run_fakes_unguarded
from frx_graph.support.size_hint import get_shape_hint, get_stride_hint
from frx_graph.support.torch_internals import OpOverload, get_schema, pytree

_CALLED = re.compile("roll|channel_shuffle")
"""Names by which programs call operators whose kernels make other strides; padding is apart, since it has a mode."""
_NORM_GRADIENTS = frozenset({torch.ops.aten.native_batch_norm_backward.default})
RESHAPING_VIEWS = frozenset({torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default})
"""Views that raise if their operand has unsuitable strides."""


def has_unreliable_meta_strides(node: fx.Node) -> bool:
    """Return True if the strides in `node.meta["val"]` may differ when the node is run.

    All strides may differ if dimensions of size 1 make an order ambiguous, since operators and fakes then choose
    differently. Examples are `1 - x` and a 3-D convolution after a convolution to one channel in channels-last.
    """
    value = node.meta["val"]
    if not isinstance(value, Tensor):
        return False
    call = node.args[0] if node.target is operator.getitem else node
    assert isinstance(call, fx.Node)
    if isinstance(call.target, OpOverload):
        if is_view(call):
            return False
        if not _has_known_strides(call):
            return True
    values = [value, *(source.meta.get("val") for source in call.all_input_nodes[:2])]
    # A batch of one is outermost in every order that is asked for.
    return any(isinstance(v, Tensor) and v.dim() == value.dim() > 2 and 1 in v.shape[1:] for v in values)


def _has_known_strides(call: fx.Node) -> bool:
    """Return False if this kernel makes other strides than its fake, and cannot be run to see which."""
    args, kwargs = pytree.tree_map_only(fx.Node, lambda node: node.meta.get("val"), (call.args, call.kwargs))
    return knows_result_strides(call.target, args, kwargs)


def calls_unreliable_operator(dynamo: fx.GraphModule) -> bool:
    """Return True if a Dynamo graph, or a graph in it, calls one of these operators: decisions by the fakes' strides
    would be wrong."""
    graphs = (module.graph for module in dynamo.modules() if isinstance(module, fx.GraphModule))
    return any(_is_unreliable_call(node) for graph in graphs for node in graph.nodes if node.op.startswith("call"))


def _is_unreliable_call(node: fx.Node) -> bool:
    name = str(getattr(node.target, "__name__", node.target))
    modes = [value for value in (*node.args, *node.kwargs.values()) if isinstance(value, str)]
    return _CALLED.search(name) is not None or ("pad" in name and modes not in ([], ["constant"]))


def fix_fake_strides(node: fx.Node, value: Any) -> Any:
    """Return the fake's `value` of `node` with its strides at run time, as far as they are known.

    Kernels that make other strides than their fakes are run to see which (`capture/kernel_strides.py`). Fakes of views
    have other strides in dimensions of size 1, and some are views although a copy is needed, as of (6, 1, 6) with
    strides (1, 36, 6) for (36,) (torch 2.15). Raises `RewriteError` for those, and for strides that are not known for
    all sizes.
    """
    if node.target not in RESHAPING_VIEWS:
        args, kwargs = pytree.tree_map_only(fx.Node, lambda source: source.meta.get("val"), (node.args, node.kwargs))
        with run_fakes_unguarded(find_fake_mode(node.graph)):
            return correct_strides(node.target, args, kwargs, value, restride_fake)
    if 0 in get_shape_hint(value):
        return value
    source = node.all_input_nodes[0].meta["val"]
    strides = compute_view_strides(get_shape_hint(source), get_stride_hint(source), get_shape_hint(value))
    if strides is None:
        raise RewriteError(f"{node.name} would need a copy")
    if strides == get_stride_hint(value):
        return value
    if not has_fixed_sizes(value):
        raise RewriteError(f"{node.name} has other strides than its fake, for sizes that may change")
    return value.as_strided(value.shape, strides, value.storage_offset())


def is_view(node: fx.Node) -> bool:
    """Return True for operators whose schema aliases an operand: views and in-place operators."""
    target = node.target
    return isinstance(target, OpOverload) and any(r.alias_info is not None for r in get_schema(target).returns)


def shares_operand_memory(node: fx.Node) -> bool:
    """Return True for operators whose result is in an operand's memory. `_unsafe_view` does not declare that, and
    autograd takes its result for no view."""
    return is_view(node) or node.target is torch.ops.aten._unsafe_view.default


def find_misread_gradient(node: fx.Node) -> fx.Node | None:
    """Return the gradient that a batch norm's backward reads by wrong strides.

    That happens if it is plain and the input channels-last, or the reverse, and dimensions of size 1 have other strides
    than a new tensor's (torch 2.15, CPU).
    """
    if node.target not in _NORM_GRADIENTS:
        return None
    gradient, image = node.args[:2]
    if not (isinstance(gradient, fx.Node) and isinstance(image, fx.Node)):
        return None
    values = [gradient.meta["val"], image.meta["val"]]
    if values[0].dim() not in MEMORY_FORMATS or all(1 not in value.shape for value in values):
        return None
    alike = any(
        all(value.is_contiguous(memory_format=layout) for value in values)
        for layout in (torch.contiguous_format, MEMORY_FORMATS[values[0].dim()])
    )
    return None if alike else gradient
