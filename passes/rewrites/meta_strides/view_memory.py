"""Views, laid into the memory of what they are views of.

Who shares whose memory is read from the fake tensors that a graph carries. Where a rewrite has let the readers of one
node read another, the views among them still are fakes in the memory of the node that is gone, and a write into the
memory that they read in truth would seem to be seen by nobody.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

from frx_graph.facts.layout import is_dense
from frx_graph.facts.size_hint import shape_hint, stride_hint
from frx_graph.passes.rewrites.meta_strides.fake_values import fake_mode_of, run_on_fakes, running_fakes
from frx_graph.passes.rewrites.meta_strides.unreliable_strides import lies_in_operand
from frx_graph.support.torch_internals import pytree


def settle_views(graph: fx.Graph) -> None:
    """Give every view the memory of its operand, with the shape and the strides that it has."""
    moved: set[fx.Node] = set()
    for node in graph.nodes:
        if node.target is operator.getitem and node.args[0] in moved:
            node.meta["val"] = node.args[0].meta["val"][node.args[1]]
        elif node.op == "call_function" and lies_in_operand(node) and _lies_elsewhere(node):
            with running_fakes(fake_mode_of(graph)):
                node.meta["val"] = _in_memory_of_its_operand(node)
            moved.add(node)


def _lies_elsewhere(node: fx.Node) -> bool:
    source = node.args[0].meta.get("val") if node.args and isinstance(node.args[0], fx.Node) else None
    if not isinstance(source, Tensor) or source.layout is not torch.strided:
        return False
    if _may_copy(node) and not is_dense(shape_hint(source), stride_hint(source)):
        return False
    views = [value for value in pytree.tree_leaves(node.meta.get("val")) if isinstance(value, Tensor)]
    return any(value.untyped_storage()._cdata != source.untyped_storage()._cdata for value in views)


def _may_copy(node: fx.Node) -> bool:
    """True for an operator that copies what does not lie in the order that is asked for: where fakes cannot be trusted
    with strides, it may give back a dense operand whether they say so or not."""
    return node.target is torch.ops.aten.contiguous.default


def _in_memory_of_its_operand(node: fx.Node) -> Any:
    source, value = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
    if _may_copy(node):
        return source.as_strided(value.shape, value.stride(), source.storage_offset())
    views = run_on_fakes(node)
    if isinstance(value, Tensor):
        return views.as_strided(value.shape, value.stride(), views.storage_offset())
    return [
        view.as_strided(old.shape, old.stride(), view.storage_offset()) for view, old in zip(views, value, strict=True)
    ]
