"""Correct the strides and the memory of views' fakes.

Beside dimensions of size 1, fakes of `view` give results other strides than the operator does (torch 2.15). For one
image of 8 channels, `chunk(2, 1)[0].flatten(1)` is traced with the stride of the whole image. A rewrite that trusts
them brings what is returned to strides that no eager program sees.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

from frx_graph.errors import RewriteError, summarize_error
from frx_graph.facts.layout import is_dense
from frx_graph.passes.rewrites.meta_strides.fake_values import (
    find_fake_mode,
    has_fixed_sizes,
    identify_storage,
    run_fakes_unguarded,
    run_on_fakes,
)
from frx_graph.passes.rewrites.meta_strides.unreliable_strides import fix_fake_strides, shares_operand_memory
from frx_graph.support.size_hint import get_shape_hint, get_stride_hint
from frx_graph.support.torch_internals import pytree


def fix_view_strides(graph: fx.Graph, given: Mapping[str, Tensor]) -> None:
    """Give views and what follows the strides of an actual run; `given` holds inputs as traced whose values changed."""
    now = {node: node.meta["val"] for node in graph.find_nodes(op="placeholder") if node.name in given}
    for node in now:
        node.meta["val"] = given[node.name]
    corrected: set[fx.Node] = set()
    try:
        for node in graph.nodes:
            if node.op == "call_function" and _correct_view(
                node, follows=not corrected.isdisjoint(node.all_input_nodes)
            ):
                corrected.add(node)
    finally:
        for node, value in now.items():
            node.meta["val"] = value


def _correct_view(node: fx.Node, *, follows: bool) -> bool:
    """Return True if the value was changed: not if a fake refuses the strides, or if sizes may change."""
    traced = node.meta.get("val")
    try:
        value = _run_again(node) if follows else traced
        value = fix_fake_strides(node, value) if isinstance(value, Tensor) and has_fixed_sizes(value) else value
    except RewriteError:
        return False
    if value is traced:
        return False
    node.meta["val"] = value
    return True


def _run_again(node: fx.Node) -> Any:
    try:
        with run_fakes_unguarded(find_fake_mode(node.graph)):
            return run_on_fakes(node)
    # A fake operator may refuse strides with any exception.
    except Exception as error:
        raise RewriteError(f"{node.name} cannot be traced again: {summarize_error(error)}") from error


def fix_view_storages(graph: fx.Graph) -> None:
    """Give every view's fake its operand's memory, with the view's shape and strides.

    Fakes tell which values share memory. After a rewrite has rerouted the readers of a node, views among them still are
    fakes in the old node's memory. A write into their true memory would seem to affect nothing.
    """
    moved: set[fx.Node] = set()
    for node in graph.nodes:
        if node.target is operator.getitem and node.args[0] in moved:
            node.meta["val"] = node.args[0].meta["val"][node.args[1]]
        elif node.op == "call_function" and shares_operand_memory(node) and _is_in_other_storage(node):
            with run_fakes_unguarded(find_fake_mode(graph)):
                node.meta["val"] = _move_into_operand(node)
            moved.add(node)


def _is_in_other_storage(node: fx.Node) -> bool:
    source = node.args[0].meta.get("val") if node.args and isinstance(node.args[0], fx.Node) else None
    if not isinstance(source, Tensor) or source.layout is not torch.strided:
        return False
    if _is_conditional_copy(node) and not is_dense(get_shape_hint(source), get_stride_hint(source)):
        return False
    views = [value for value in pytree.tree_leaves(node.meta.get("val")) if isinstance(value, Tensor)]
    return any(identify_storage(value) != identify_storage(source) for value in views)


def _is_conditional_copy(node: fx.Node) -> bool:
    """Return True for a copy made only in a wrong order: it may return a dense operand, whatever fakes predict."""
    return node.target is torch.ops.aten.contiguous.default


def _move_into_operand(node: fx.Node) -> Any:
    source, value = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
    if _is_conditional_copy(node):
        return source.as_strided(value.shape, value.stride(), source.storage_offset())
    views = run_on_fakes(node)
    if isinstance(value, Tensor):
        return views.as_strided(value.shape, value.stride(), views.storage_offset())
    return [
        view.as_strided(old.shape, old.stride(), view.storage_offset()) for view, old in zip(views, value, strict=True)
    ]
