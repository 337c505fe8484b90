"""Compute 1x1 convolutions of small images as matrix products.

Why: torch describes operands and attributes to oneDNN again in every call of a convolution, which takes as long as the
sums of a small image. A product of MKL with a packed weight does not: 1.1 to 1.5 times as fast with its activation, and
more for a single pixel (two threads of a Xeon with AVX-512).
How: each pixel is a row. Inductor runs frozen convolutions in channels-last, where rows are views of the image.
Assumes: constant weights in single precision, and MKL, for which freezing packs them.
Safe: the same sums in another order. The result becomes channels-last, as Inductor makes it; values computed from it
are traced again, and the graph stays as it was if one of them has no such form, or is returned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx

from frx_graph.errors import RewriteError, summarize_error
from frx_graph.facts.graph_facts import OpFacts
from frx_graph.facts.operator_overload import get_argument
from frx_graph.facts.zero_padding import repeat_number
from frx_graph.passes.rewrites.meta_strides.fake_values import (
    find_fake_mode,
    has_fixed_sizes,
    run_fakes_unguarded,
    run_on_fakes,
)
from frx_graph.passes.rewrites.rewrite import Rewrite, RewriteSubject
from frx_graph.records import Candidate, Refusal
from frx_graph.support.torch_internals import OpOverload, pytree

NAME = "pointwise_products"
_ATEN = torch.ops.aten
_REDUCED = ("bf16", "tf32")
"""Settings under which Inductor packs products for oneDNN, in fewer bits (`fx_passes/mkldnn_fusion.py`, torch 2.15)."""
_MOST_ELEMENTS = 200_000
"""Elements that a convolution reads and writes, besides its weight. With more, the pass over the result for its
activation, which oneDNN fuses, takes longer than what a product saves: measured from 1x1 to 112x112 pixels, with one
and two threads."""


def propose(subject: RewriteSubject) -> Iterator[Candidate | Refusal]:
    """Propose a candidate for each 1x1 convolution of a small image: one may be refused when it is made."""
    if not torch.backends.mkl.is_available() or not subject.generates_loops:
        return
    for op in subject.facts.ops:
        if op.operator != "aten.convolution" or not _has_one_weight_per_channel(op, subject):
            continue
        if reason := _find_obstacle(op, subject):
            yield Refusal(NAME, reason, (op.node,))
        else:
            yield Candidate(NAME, subject.facts.graph_id, (op.node,))


def _has_one_weight_per_channel(op: OpFacts, subject: RewriteSubject) -> bool:
    """Return True if each pixel of the result is a product of the same pixel of the image."""
    weight = subject.facts.values[op.inputs[1]]
    return (
        len(weight.shape) == 4
        and weight.shape[2:] == (1, 1)
        and get_argument(op, "groups") == 1
        and not get_argument(op, "transposed")
        and repeat_number(get_argument(op, "stride"), 2) == (1, 1)
        and repeat_number(get_argument(op, "padding"), 2) == (0, 0)
    )


def _find_obstacle(op: OpFacts, subject: RewriteSubject) -> str:
    """Return why a product is not faster, or cannot take the convolution's place; empty if it can."""
    facts = subject.facts
    image, result = facts.values[op.inputs[0]], facts.values[op.outputs[0]]
    if image.dtype is not torch.float32 or image.device.type != "cpu":
        return "MKL packs weights in single precision, on processors"
    backends: Any = torch.backends
    if backends.mkldnn.matmul.fp32_precision in _REDUCED:
        return "products are allowed to round more than convolutions"
    if not subject.constants.issuperset(op.inputs[1:]):
        return "its weight or bias is not a constant"
    if facts.has_dynamic_sizes(op):
        return "the image has no fixed size"
    elements = math.prod(image.shape) + math.prod(result.shape)
    if 0 in image.shape or elements > _MOST_ELEMENTS:
        return "oneDNN is faster for an image of this size"
    return "its result is returned" if result.name in facts.outputs else ""


def apply(subject: RewriteSubject, module: fx.GraphModule, candidate: Candidate) -> tuple[str, ...]:
    """Put a product in the place of the convolution. Raises `RewriteError` if something that depends on it needs its
    strides."""
    graph = module.graph
    (convolution,) = (node for node in graph.nodes if node.name == candidate.nodes[0])
    made: list[fx.Node] = []
    before: dict[fx.Node, Any] = {}
    with run_fakes_unguarded(find_fake_mode(graph)):
        try:
            product = _add_product(graph, convolution, made)
            convolution.replace_all_uses_with(product)
            _trace_again(convolution, product, subject, before)
        except Exception as error:
            # Operators of others may raise anything on fakes.
            for node, value in before.items():
                node.meta["val"] = value
            for node in reversed(made):
                node.replace_all_uses_with(convolution)
                graph.erase_node(node)
            raise RewriteError(f"what reads its result needs its strides: {summarize_error(error)}") from error
    graph.erase_node(convolution)
    return ()


def _add_product(graph: fx.Graph, convolution: fx.Node, made: list[fx.Node]) -> fx.Node:
    """Add the product in front of the convolution; the last of `made` has the convolution's result."""
    image, weight, bias, *_ = convolution.args
    assert isinstance(image, fx.Node)
    count, channels, height, width = image.meta["val"].shape
    outputs = convolution.meta["val"].shape[1]

    def add(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        node = graph.call_function(target, args, kwargs)
        made.append(node)
        node.meta |= {"val": run_on_fakes(node), "stack_trace": convolution.meta.get("stack_trace")}
        return node

    with graph.inserting_before(convolution):
        last = add(_ATEN.permute.default, image, [0, 2, 3, 1])
        # Inductor leaves this copy out if the image is in channels-last.
        last = add(_ATEN.clone.default, last, memory_format=torch.contiguous_format)
        rows = add(_ATEN.view.default, last, [count * height * width, channels])
        matrix = add(_ATEN.permute.default, add(_ATEN.view.default, weight, [outputs, channels]), [1, 0])
        operands = [rows, matrix] if bias is None else [bias, rows, matrix]
        product = add(_ATEN.mm.default if bias is None else _ATEN.addmm.default, *operands)
        return add(
            _ATEN.permute.default, add(_ATEN.view.default, product, [count, height, width, outputs]), [0, 3, 1, 2]
        )


def _trace_again(convolution: fx.Node, product: fx.Node, subject: RewriteSubject, before: dict[fx.Node, Any]) -> None:
    """Give values that depend on the convolution the strides that they have now, with the former ones in `before`.
    Raises `RewriteError` if one is returned, differs in more, or is made by an operator that must be given its strides;
    and torch's error for one that cannot be made."""
    changed = {product} if product.meta["val"].stride() != convolution.meta["val"].stride() else set()
    node = convolution
    while (node := node.next).op != "root":
        if changed.isdisjoint(node.all_input_nodes):
            continue
        if node.op != "call_function":
            raise RewriteError("a result of the graph would have other strides")
        op = subject.facts.op_by_node.get(node.name)
        # Only what this rewrite has inserted before has no facts.
        if not isinstance(node.target, OpOverload) or (op is not None and subject.keeps_its_strides(op)):
            raise RewriteError(f"{node.target} must be given the strides that it was traced with")
        value = run_on_fakes(node)
        former = node.meta["val"]
        if _describe(value, strides=False) != _describe(former, strides=False):
            raise RewriteError(f"{node.target} returns something else for channels-last")
        if _describe(value, strides=True) != _describe(former, strides=True):
            before[node] = former
            node.meta["val"] = value
            changed.add(node)


def _describe(value: Any, *, strides: bool) -> list[object]:
    return [_describe_leaf(leaf, strides) if isinstance(leaf, Tensor) else leaf for leaf in pytree.tree_leaves(value)]


def _describe_leaf(tensor: Tensor, strides: bool) -> object:
    if not has_fixed_sizes(tensor):
        raise RewriteError("a value of no fixed size depends on it")
    return tensor.shape, tensor.dtype, tensor.device, tensor.stride() if strides else ()


REWRITE = Rewrite(NAME, propose, apply)
