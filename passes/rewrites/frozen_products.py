"""Compute products with constant weights, which freezing packs for MKL, by oneDNN's matrix product instead.

Why: as in `onednn_products`; Inductor's freezing packs weights of single precision for MKL only.
How: the product reads the original weight, which the graph still holds, instead of the packed one.
Assumes: Inductor's frozen graph, as `post_grad_custom_pre_pass` gets it.
Safe: the same sums in another order; done if the product was measured to be faster on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, fx

from frx_graph.errors import RewriteError
from frx_graph.facts.operator_signature import OperatorSignature, TensorSpec, transpose_spec
from frx_graph.measure.operators.operator_inputs import PACKED_BY_MKL
from frx_graph.ops.onednn_linear import TARGET, has_onednn
from frx_graph.passes.layouts.layout_choice import NOISE_SHARE
from frx_graph.passes.rewrites.meta_strides.fake_values import has_fixed_sizes
from frx_graph.records import Candidate

NAME = "frozen_products"

Seconds = Mapping[OperatorSignature, float]
"""Seconds of the calls, as far as they could be measured."""


def use_faster_products(
    graph: fx.Graph, graph_id: str, measure: Callable[[Sequence[tuple[OperatorSignature, ...]]], Seconds]
) -> Candidate | None:
    """Replace MKL's packed products that `measure` finds slower than oneDNN's. Returns what was done."""
    found = list(_list_packed_products(graph))
    timed = measure([calls for _, calls in found])
    saved: dict[str, float] = {}
    for node, (packed, product) in found:
        if packed in timed and product in timed and timed[product] < (1 - NOISE_SHARE) * timed[packed]:
            saved[node.name] = timed[packed] - timed[product]
            _replace(node)
    return Candidate(NAME, graph_id, tuple(saved), predicted_seconds=sum(saved.values())) if saved else None


def use_recorded_products(graph: fx.Graph, candidate: Candidate) -> None:
    """Replace MKL's packed products that `candidate` names. Raises `RewriteError` if the graph has no such product."""
    products = {node.name: node for node, _ in _list_packed_products(graph)}
    if not products.keys() >= set(candidate.nodes):
        raise RewriteError("the candidate belongs to another graph")
    for name in candidate.nodes:
        _replace(products[name])


def _list_packed_products(graph: fx.Graph) -> Iterator[tuple[fx.Node, tuple[OperatorSignature, OperatorSignature]]]:
    """Return MKL's products of the graph, each with itself and oneDNN's product as calls to be timed."""
    if not has_onednn() or not hasattr(torch.ops.mkl, "_mkl_linear"):
        return
    for node in graph.nodes:
        if node.op != "call_function" or node.target not in (
            torch.ops.mkl._mkl_linear,
            torch.ops.mkl._mkl_linear.default,
        ):
            continue
        x, weight, bias = (_make_spec(node.args[position]) for position in (0, 2, 3))
        if x is None or weight is None or len(x.shape) != 2 or 0 in (*x.shape, *weight.shape):
            continue
        packed = OperatorSignature(PACKED_BY_MKL, (x, None, weight, bias, x.shape[0]))
        yield node, (packed, OperatorSignature(TARGET, (x, transpose_spec(weight), bias)))


def _make_spec(argument: object) -> TensorSpec | None:
    value = argument.meta.get("val") if isinstance(argument, fx.Node) else None
    if not isinstance(value, Tensor) or not has_fixed_sizes(value):
        return None
    return TensorSpec(tuple(value.shape), tuple(value.stride()), value.dtype, value.device.type)


def _replace(node: fx.Node) -> None:
    x, _packed, weight, bias, *_ = node.args
    assert isinstance(weight, fx.Node)
    with node.graph.inserting_before(node):
        turned = node.graph.call_function(torch.ops.aten.permute.default, (weight, [1, 0]))
        turned.meta["val"] = weight.meta["val"].t()
        product = node.graph.call_function(torch.ops.frx_graph.product.default, (x, turned, bias))
    product.meta.update(node.meta)
    node.replace_all_uses_with(product)
    node.graph.erase_node(node)
