"""Restore the strides of a graph's inputs and outputs to those that it was traced with."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from frx_graph.errors import RewriteError
from frx_graph.facts.layout import (
    CHANNELS_LAST_ORDER,
    compute_storage_extent,
    get_dimension_order,
    is_dense,
    is_expanded,
    make_ordered_strides,
)
from frx_graph.passes.layouts.dimension_map import make_plain_order
from frx_graph.passes.rewrites.layout.conversion import convert_in_aten, copy_in_aten, restore_exact_strides
from frx_graph.passes.rewrites.layout.edits import LayoutEdit, compute_copy_order, has_same_strides
from frx_graph.passes.rewrites.meta_strides.fake_values import (
    find_fake_mode,
    identify_storage,
    number_storages,
    run_fakes_unguarded,
)
from frx_graph.passes.rewrites.meta_strides.unreliable_strides import is_view
from frx_graph.passes.rewrites.meta_strides.unreliable_values import has_one_order
from frx_graph.support.size_hint import get_shape_hint, get_size_hint, get_stride_hint
from frx_graph.support.torch_internals import CustomGraphPass, pytree


def restore_outputs(edit: LayoutEdit, output: fx.Node, kept: Collection[str]) -> None:
    """Restore the strides of the outputs named in `kept`, and check that outputs which shared memory still do. Raises
    `RewriteError` if that is impossible."""
    before = [edit.before.get(node, node.meta.get("val")) for node in _list_output_nodes(output)]
    for source in output.all_input_nodes:
        original = _find_former_output(edit, source)
        # Its fake has not changed, but the values that it is made from have.
        if original is None and source in edit.behind and edit.has_uncertain_strides(source):
            original = source.meta["val"]
        if edit.find_original_name(source) not in kept or original is None:
            continue
        ours = source
        if not has_same_strides(source.meta["val"], get_stride_hint(original)):
            ours = edit.convert_for(source, compute_copy_order(source, original), output)
        if edit.pins and 0 in get_shape_hint(original):
            # Its fake is wrong about its strides, both before and after the change.
            raise RewriteError(f"{source.name} is returned without elements, in strides that only running it tells")
        computed = edit.pinned.get(source, source)
        if edit.has_uncertain_strides(source) and not _has_fresh_strides(computed, original):
            raise RewriteError(f"{source.name} is returned, and its strides were uncertain from the first")
        if get_stride_hint(ours.meta["val"]) != get_stride_hint(original):
            # What is left are strides of dimensions of size 1, which callers can see though they mean nothing.
            with edit.graph.inserting_before(output):
                exact = restore_exact_strides(edit.graph, ours, original)
            if exact is None:
                raise RewriteError(f"{source.name} is returned with symbolic strides that cannot be given back")
            edit.reroute(output, ours, exact)
            ours = exact
        if edit.pins and is_view(ours) and not is_view(computed):
            # Autograd forbids writes into a view that a compiled graph returns.
            with edit.graph.inserting_before(output):
                own = copy_in_aten(edit.graph, ours)
            edit.reroute(output, ours, own)
    now = [node.meta.get("val") for node in _list_output_nodes(output)]
    if number_storages(map(identify_storage, now)) != number_storages(map(identify_storage, before)):
        raise RewriteError("outputs that share memory would be returned in memory of their own")


def _has_fresh_strides(node: fx.Node, value: Tensor) -> bool:
    """Return True if `value` has a new tensor's strides and no other order moves anything: it has them for certain."""
    shape = get_shape_hint(value)
    orders = {make_plain_order(shape)}
    if _is_weight_gradient(node):
        # It may follow its image, whose order is uncertain.
        orders.add(CHANNELS_LAST_ORDER.get(len(shape), make_plain_order(shape)))
    return has_one_order(shape) and {make_ordered_strides(shape, order) for order in orders} == {get_stride_hint(value)}


def _is_weight_gradient(node: fx.Node) -> bool:
    """Return True for the weight gradient of a convolution, whose strides may follow the image."""
    if node.target is not operator.getitem or node.args[1] != 1:
        return False
    return node.all_input_nodes[0].target is torch.ops.aten.convolution_backward.default


def _find_former_output(edit: LayoutEdit, source: fx.Node) -> Tensor | None:
    """Return an output's former strides, as a tensor; None if unchanged. Its value may have been computed again."""
    original: Tensor | None = edit.before.get(source)
    strides, value = read_recorded_strides(source), source.meta["val"]
    if strides is None or strides == (value if original is None else original).stride():
        return original
    return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)


def _list_output_nodes(output: fx.Node) -> list[fx.Node]:
    return [node for node in pytree.tree_leaves(output.args) if isinstance(node, fx.Node)]


def convert_inputs_back(graph: fx.Graph, given: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Let all readers of an input of `given`, its former values by name, read a copy with those strides. Returns the
    names of the copies.

    A backward gets what its forward has saved, in any order. If it cannot be laid out for that, it reads these copies.
    An expanded input stays as it is. One with gaps and symbolic sizes gets back its order, which kernels depend on,
    without the gaps.
    """
    if not given:
        return ()
    copies: list[str] = []
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with run_fakes_unguarded(find_fake_mode(graph)), graph.inserting_before(first):
        for node in graph.find_nodes(op="placeholder"):
            copy = _insert_input_copy(graph, node, given[node.name]) if node.name in given else None
            if copy is not None:
                copies.append(copy.name)
    return tuple(copies)


def _insert_input_copy(graph: fx.Graph, node: fx.Node, traced: Tensor) -> fx.Node | None:
    readers = list(node.users)
    shape, strides = tuple(traced.shape), tuple(traced.stride())
    hints = get_shape_hint(traced), get_stride_hint(traced)
    if is_expanded(*hints):
        return None
    if is_dense(*hints) or not all(isinstance(n, int) for n in (*shape, *strides)):
        copy = convert_in_aten(graph, node, get_dimension_order(*hints))
        if is_dense(*hints):
            copy = restore_exact_strides(graph, copy, traced) or copy
    else:
        offset = get_size_hint(traced.storage_offset())
        size = [offset + compute_storage_extent(shape, strides)]
        room = graph.call_function(torch.ops.aten.new_empty.default, (node, size))
        place = graph.call_function(torch.ops.aten.as_strided.default, (room, shape, strides, offset))
        copy = graph.call_function(torch.ops.aten.copy_.default, (place, node))
        room.meta["val"] = traced.new_empty(size)
        copy.meta["val"] = place.meta["val"] = traced
    for reader in readers:
        reader.replace_input_with(node, copy)
    return copy


_NOTED = "frx_traced_strides"
"""Key in the meta of a joint graph's nodes, which its forward and backward inherit."""
_TOLD = "original_output_strides"
"""Key in an output node's meta under which Inductor keeps the strides of visible outputs."""


class RecordStrides(CustomGraphPass):
    """Record, in a joint graph, the strides of all its results, before any pass that changes strides.

    Inductor computes the strides of a backward's values again, from what the forward has saved. If the forward saves in
    another order than eager, gradients would be returned in that order, or in strides that no eager program has. For
    example, a 1x1 convolution of 8 channels gives its weight's gradient strides (8, 1, 8, 8) instead of (8, 1, 1, 1).
    """

    def __call__(self, graph: fx.Graph) -> None:
        """Leave the graph itself unchanged."""
        for node in pytree.tree_leaves(graph.output_node().args):
            value = node.meta.get("val") if isinstance(node, fx.Node) else None
            if isinstance(value, Tensor):
                node.meta[_NOTED] = tuple(value.stride())

    def uuid(self) -> Any:
        """Return a constant: nothing is changed, and a plan's own uuid covers its code."""
        return "frx notes strides"


def read_recorded_strides(node: fx.Node) -> tuple[Any, ...] | None:
    """Return the strides that were recorded for this node, if any."""
    noted: tuple[Any, ...] | None = node.meta.get(_NOTED)
    return noted


def return_recorded_strides(graph: fx.Graph) -> None:
    """Make Inductor return outputs with the recorded strides, or with its own choice if there are none.

    It obeys exactly for results of operators, and for views up to the strides of dimensions of size 1.
    """
    output = graph.output_node()
    told = output.meta.get(_TOLD)
    returned = output.args[0]
    if isinstance(told, list) and isinstance(returned, (list, tuple)) and len(told) == len(returned):
        noted = [read_recorded_strides(node) if isinstance(node, fx.Node) else None for node in returned]
        told[:] = [own if strides is None else strides for own, strides in zip(told, noted, strict=True)]
