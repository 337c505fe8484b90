"""Matrix products of single precision, and convolutions of single pixels, computed by oneDNN's matrix product.

Why: torch leaves such products to MKL, which is less than half as fast as oneDNN on some processors; a convolution that
looks at single pixels is such a product of an image in channels-last, without the weight's reorder in every call.
How: the operator gives way to `frx_graph::product` on the same operands; an image is viewed as a matrix.
Assumes: a CPU, single precision, and weights in two dimensions; for images that they lie in channels-last.
Safe: the same sums in another order, as between two versions of a library; the result has the same strides. It is done
where the product was measured to be faster on this machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx

from frx_graph.errors import RewriteError
from frx_graph.facts.graph_facts import OpFacts
from frx_graph.facts.layout import Layout
from frx_graph.facts.operator_signature import OperatorSignature, signature_of
from frx_graph.passes.layouts.layout_choice import NOISE_SHARE
from frx_graph.passes.layouts.memory_order import memory_order
from frx_graph.passes.rewrites.product_calls import pixel_product_call, product_call
from frx_graph.passes.rewrites.rewrite import Rewrite, RewriteSubject
from frx_graph.records import Candidate, Refusal

NAME = "onednn_products"
_TO_NHWC, _TO_NCHW = [0, 2, 3, 1], [0, 3, 1, 2]


def asks(subject: RewriteSubject) -> Iterator[tuple[OperatorSignature, ...]]:
    """Each product as it is, and as oneDNN's."""
    for _, call, product in _products(subject):
        yield call, product


def propose(subject: RewriteSubject) -> Iterator[Candidate | Refusal]:
    """One candidate for all products of the graph that are faster so."""
    timed = subject.timed
    faster: dict[str, float] = {}
    unknown: list[str] = []
    for op, call, product in _products(subject):
        if subject.everything:
            faster[op.node] = 0.0
        elif call not in timed or product not in timed:
            unknown.append(op.node)
        elif timed[product] < (1 - NOISE_SHARE) * timed[call]:
            faster[op.node] = timed[call] - timed[product]
    if unknown:
        yield Refusal(NAME, "its time in either form could not be measured", tuple(unknown))
    if faster:
        saved = None if subject.everything else sum(faster.values())
        yield Candidate(NAME, subject.facts.graph_id, tuple(faster), predicted_seconds=saved)


def apply(subject: RewriteSubject, module: fx.GraphModule, candidate: Candidate) -> tuple[str, ...]:
    """Put the product in each operator's place; no conversion is inserted."""
    chosen = set(candidate.nodes)
    for node in list(module.graph.nodes):
        if node.name not in chosen:
            continue
        with module.graph.inserting_before(node), node.meta["val"].fake_mode:
            made = _pixels(node, subject) if node.target == torch.ops.aten.convolution.default else _product(node)
        if tuple(made.meta["val"].stride()) != tuple(node.meta["val"].stride()):
            raise RewriteError(f"the product that would replace {node.name} has other strides")
        node.replace_all_uses_with(made)
        module.graph.erase_node(node)
    return ()


REWRITE = Rewrite(NAME, propose, apply, asks)


def _products(subject: RewriteSubject) -> Iterator[tuple[OpFacts, OperatorSignature, OperatorSignature]]:
    facts = subject.facts
    for op in facts.ops:
        call = signature_of(op, facts)
        product = product_call(call)
        if product is None and _in_channels_last(op, subject):
            product = pixel_product_call(op, facts)
        if product is not None:
            yield op, call, product


def _in_channels_last(op: OpFacts, subject: RewriteSubject) -> bool:
    """True where the image lies so, and Inductor, which would lay it out anew, has left the choice to us."""
    values = (*subject.facts.input_values(op)[:1], *subject.facts.output_values(op))
    return bool(values) and all(memory_order(value) is Layout.CHANNELS_LAST for value in values)


def _product(node: fx.Node) -> fx.Node:
    x, w, *_ = node.args[-2:]
    bias = node.args[0] if len(node.args) == 3 else None
    return _call(node, torch.ops.frx_graph.product.default, x, w, bias)


def _pixels(node: fx.Node, subject: RewriteSubject) -> fx.Node:
    image, weight, bias = node.args[:3]
    assert isinstance(image, fx.Node) and isinstance(weight, fx.Node)
    batch, _, height, width = image.meta["val"].shape
    channels_out, channels_in = weight.meta["val"].shape[:2]
    aten = torch.ops.aten
    if subject.generates_loops:
        # Without it Inductor computes the image twice, once as a matrix, where others read it, too.
        strides = list(image.meta["val"].stride())
        image = _call(node, torch.ops.prims.inductor_force_stride_order.default, image, strides)
    pixels = _call(node, aten.reshape.default, _call(node, aten.permute.default, image, _TO_NHWC), [-1, channels_in])
    matrix = _call(node, aten.permute.default, _call(node, aten.squeeze.dims, weight, [2, 3]), [1, 0])
    product = _call(node, torch.ops.frx_graph.product.default, pixels, matrix, bias)
    shape = [batch, height, width, channels_out]
    return _call(node, aten.permute.default, _call(node, aten.view.default, product, shape), _TO_NCHW)


def _call(at: fx.Node, target: Any, *args: Any) -> fx.Node:
    """A node with its value, in front of the operator that it replaces part of."""
    made = at.graph.call_function(target, args)
    made.meta["val"] = target(*(arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args))
    made.meta["stack_trace"] = at.meta.get("stack_trace")
    assert isinstance(made.meta["val"], Tensor)
    return made
