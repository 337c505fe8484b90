"""Replace attention written as product, softmax, product by one call of `scaled_dot_product_attention`.

Why: between the two products everything reads and writes a tensor of queries × keys per head; torch's fused kernels
never store it, forward or backward.
How: on Dynamo's graph, before autograd, so that the backward is the fused one, too. The scores' operators are found in
the eager ATen graph (`attentions`), whose nodes record their Dynamo node. The second product is replaced by
`aten.scaled_dot_product_attention` on the operands of both, as views of four dimensions.
Assumes: nothing about values. `written_attention.py` lists the checks.
Safe: the same function up to the order of summation. For a query whose keys are all hidden, fused kernels give zeros,
but a softmax of minus infinities gives NaN. Unless the mask is known to be causal, the result is multiplied with 1, or
with NaN if the mask hides all keys. The result has the strides of the product's result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from frx_graph.errors import RewriteError
from frx_graph.passes.rewrites.meta_strides.fake_values import identify_storage
from frx_graph.passes.rewrites.written_attention import MaskUse, WrittenAttention, read_shape
from frx_graph.support.torch_internals import OpOverload

NAME = "attention_from_views"

_aten = torch.ops.aten


@dataclass(frozen=True)
class FusedAttention:
    """The nodes inserted for one written attention, `call` among them. `result` replaces the second product."""

    written: WrittenAttention
    inserted: tuple[fx.Node, ...]
    call: fx.Node
    result: fx.Node


def insert_fused_attention(graph: fx.Graph, written: WrittenAttention, inner: str) -> FusedAttention:
    """Put the fused call in front of the second product, whose users then read it.

    The old nodes stay until `settle` or `undo`. The caller has entered the fake mode of the graph's example values.
    Raises `RewriteError`, with the graph unchanged, if the call, compiled by `inner`, does not give what the product
    gave.
    """
    edit = _GraphEdit(graph, [])
    batch = _make_batch_and_heads(written.batch)
    second, product = written.second, written.second.meta["example_value"]
    read = (written.query, written.key_transposed, written.value, second)
    if not all(isinstance(size, int) for node in read for size in read_shape(node)):
        # Eager kernels that take numbers only (`constant_pad_nd` of an expanded tensor, torch 2.15) hide it from the
        # facts, which are traced through them.
        raise RewriteError("its sizes are symbolic")
    try:
        with graph.inserting_before(second):
            query = edit.reshape_batched(written.query, batch)
            key = edit.reshape_batched(_transpose_keys(edit, written.key_transposed), batch)
            value = edit.reshape_batched(written.value, batch)
            mask = None if written.mask is None else _make_additive_mask(edit, written.mask, product.dtype)
            call = edit.add_call(
                _aten.scaled_dot_product_attention.default,
                *(query, key, value, mask, 0.0, written.causal),
                scale=written.scale,
            )
            result = call if mask is None else _restore_nan(edit, call, mask)
            if not _has_strides_of(result, product):
                result = edit.add_call(_aten.contiguous.default, result)
            if written.returned and identify_storage(result.meta["example_value"]) == identify_storage(
                call.meta["example_value"]
            ):
                # The caller may write into it, and the fused kernel keeps it for its backward.
                if inner == "inductor":  # which takes such a copy away (`remove_noop_ops`, torch 2.15)
                    raise RewriteError(
                        "its result is returned, and kept for the backward: the caller may write into it"
                    )
                result = edit.add_call(_aten.clone.default, result, memory_format=torch.contiguous_format)
            if not _has_strides_of(result, product) or 1 in product.shape:
                # Taken apart and put together again it also has a new tensor's strides where dimensions are of size 1,
                # which the fused call takes from the query, and its fake does not (torch 2.15); `view` would make it a
                # view, which a product is not.
                result = edit.add_call(_aten._unsafe_view.default, result, [-1])
                result = edit.add_call(_aten._unsafe_view.default, result, list(product.shape))
        if result.meta["example_value"].dtype is not product.dtype or not _has_strides_of(result, product):
            raise RewriteError("the fused call's result has another type or other strides than the product's")
    except Exception:
        for node in reversed(edit.added):
            graph.erase_node(node)
        raise
    second.replace_all_uses_with(result)
    return FusedAttention(written, tuple(edit.added), call, result)


def undo_fused_attention(graph: fx.Graph, fused: FusedAttention) -> None:
    """Let readers read the second product again, and take out what `insert` put in."""
    fused.result.replace_all_uses_with(fused.written.second)
    for node in reversed(fused.inserted):
        graph.erase_node(node)


def remove_written_attention(graph: fx.Graph, fused: FusedAttention) -> None:
    """Take out the written attention, which is not read any more."""
    for node in reversed([n for n in graph.nodes if n in {*fused.written.path, fused.written.second}]):
        graph.erase_node(node)


@dataclass(frozen=True)
class _GraphEdit:
    graph: fx.Graph
    added: list[fx.Node]

    def add_call(self, target: OpOverload, *args: Any, **kwargs: Any) -> fx.Node:
        node = self.graph.call_function(target, args, kwargs)
        self.added.append(node)
        given, named = fx.map_arg((args, kwargs), lambda n: n.meta["example_value"])
        node.meta["example_value"] = target(*given, **named)
        return node

    def reshape_batched(self, node: fx.Node, batch: Sequence[int]) -> fx.Node:
        """Return `node` as a matrix for each of `batch`, its rows without gaps: fused kernels take no others."""
        shape = (*batch, *read_shape(node)[-2:])
        matrices = node if read_shape(node) == shape else self.add_call(_aten.reshape.default, node, list(shape))
        if matrices.meta["example_value"].stride(-1) == 1:
            return matrices
        return self.add_call(_aten.contiguous.default, matrices)


def _make_batch_and_heads(batch: tuple[int, ...]) -> tuple[int, ...]:
    """Return batch and heads: torch's fused kernels take nothing else."""
    if len(batch) > 2:
        return (math.prod(batch[:-1]), batch[-1])
    return (1,) * (2 - len(batch)) + batch


def _transpose_keys(edit: _GraphEdit, node: fx.Node) -> fx.Node:
    """Return the keys, row by row, from their transpose."""
    if node.op == "call_method" and node.target == "transpose" and not node.kwargs:
        source, *dims = node.args
        rank = node.meta["example_value"].dim()
        if isinstance(source, fx.Node) and sorted(int(d) % rank for d in dims) == [rank - 2, rank - 1]:  # type: ignore[arg-type]  # Dynamo gives numbers
            return source
    return edit.add_call(_aten.transpose.int, node, -2, -1)


def _make_additive_mask(edit: _GraphEdit, mask: MaskUse, dtype: torch.dtype) -> fx.Node:
    """Return the summand of the scores: the program's bias, or 0 and the fill that hides a score."""
    node = mask.node
    if mask.fill is not None:
        value: Tensor = node.meta["example_value"]
        hide = edit.add_call(_aten.logical_not.default, node) if mask.keeps else node
        zero = edit.add_call(_aten.zeros.default, list(value.shape), dtype=dtype, device=value.device)
        node = edit.add_call(_aten.masked_fill.Scalar, zero, hide, mask.fill)
    shape = read_shape(node)
    if len(shape) in (2, 4):
        return node
    return edit.add_call(_aten.reshape.default, node, [*(1,) * (4 - len(shape)), *shape])


def _restore_nan(edit: _GraphEdit, call: fx.Node, mask: fx.Node) -> fx.Node:
    """Make the result NaN for a query whose keys are all hidden by minus infinity, in the gradients, too."""
    most = edit.add_call(_aten.amax.default, mask, [-1], True)
    nothing = edit.add_call(_aten.mul.Tensor, most, 0.0)
    return edit.add_call(_aten.mul.Tensor, call, edit.add_call(_aten.add.Tensor, nothing, 1.0))


def _has_strides_of(node: fx.Node, wanted: Tensor) -> bool:
    value: Tensor = node.meta["example_value"]
    return (value.shape, value.stride()) == (wanted.shape, wanted.stride())
