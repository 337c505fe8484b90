"""Flatten features in their memory order, instead of copying them first.

Why: a network's head flattens an image for a matrix product. An image in channels-last is copied first, since the
product's weight is ordered by channel, row, column.
How: the weight's rows are reordered to match the image's memory, so the flattened features are a view of it.
Activations between the copy and the view read the image itself.
Assumes: a frozen graph: the weight is a constant, and rearranging it costs nothing in a call.
Safe: the same products, summed in another order. The copy and its view are read by products with constant weights only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from frx_graph.errors import RewriteError
from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts, ValueRef
from frx_graph.facts.layout import CHANNELS_LAST_ORDER, make_ordered_strides
from frx_graph.facts.operator_families import LAYOUT_COPIES
from frx_graph.passes.rewrites.meta_strides.fake_values import call_op
from frx_graph.passes.rewrites.packed_forms import find_activation_behind
from frx_graph.passes.rewrites.rewrite import Rewrite, RewriteSubject
from frx_graph.records import Candidate, Refusal

NAME = "flattened_features"
_VIEWS = frozenset({"aten.view", "aten._unsafe_view", "aten.reshape"})
_ROWS = {"aten.mm": (0, 1), "aten.addmm": (1, 2)}
"""Positions of the features and the weight of a product."""


def propose(subject: RewriteSubject) -> Iterator[Candidate | Refusal]:
    """Propose one candidate for each flattened image; its choices are the nodes' roles."""
    if not subject.frozen or subject.generates_loops:
        return
    for copy in subject.facts.ops:
        yield from _find_flattened(copy, subject)


def apply(subject: RewriteSubject, module: fx.GraphModule, candidate: Candidate) -> tuple[str, ...]:
    """Flatten the image itself; no conversion is inserted."""
    nodes = {node.name: node for node in module.graph.nodes}
    if not nodes.keys() >= set(candidate.nodes):
        raise RewriteError("the candidate belongs to another graph")
    by_role: dict[str, list[fx.Node]] = {"activation": []}
    for name, role in zip(candidate.nodes, candidate.choices, strict=True):
        by_role.setdefault(role, []).append(nodes[name])
    (copy,), (view,) = by_role["copy"], by_role["view"]
    image = copy.args[0]
    assert isinstance(image, fx.Node)
    for activation in by_role["activation"]:
        activation.update_arg(0, image)
        # The result of an activation has the strides of what it reads.
        read = image.meta["val"]
        activation.meta["val"] = activation.meta["val"].new_empty_strided(read.shape, read.stride())
        image = activation
    batch, *sizes = image.meta["val"].shape
    order = CHANNELS_LAST_ORDER[len(sizes) + 1]
    with module.graph.inserting_before(view):
        features = _add_call(_add_call(image, "permute", list(order)), "view", [batch, view.meta["val"].shape[1]])
    for product in by_role["product"]:
        features_at, weight_at = _ROWS[subject.facts.op_by_node[product.name].operator]
        weight = product.args[weight_at]
        assert isinstance(weight, fx.Node)
        columns = weight.meta["val"].shape[1]
        with module.graph.inserting_before(product):
            # Columns outermost, as in the weight of a linear layer.
            turned = _add_call(_add_call(weight, "permute", [1, 0]), "reshape", [columns, *sizes])
            sorted_rows = _add_call(turned, "permute", list(order))
            rows = _add_call(_add_call(sorted_rows, "reshape", [columns, -1]), "permute", [1, 0])
        product.update_arg(features_at, features)
        product.update_arg(weight_at, rows)
    module.graph.eliminate_dead_code()
    return ()


REWRITE = Rewrite(NAME, propose, apply)


def _find_flattened(copy: OpFacts, subject: RewriteSubject) -> Iterator[Candidate | Refusal]:
    """Yield at most one outcome: for the plain copy of an image, activations behind it, their view and its products."""
    facts = subject.facts
    image = facts.get_operand(copy, 0) if copy.operator in LAYOUT_COPIES else None
    if image is None or not copy.outputs or len(image.shape) not in (4, 5) or 0 in image.shape:
        return
    copied = facts.values[copy.outputs[0]]
    if (
        image.strides != make_ordered_strides(image.shape, CHANNELS_LAST_ORDER[len(image.shape)])
        or copied.strides != make_ordered_strides(image.shape, range(len(image.shape)))
        or copied.strides == image.strides
        or copied.dtype != image.dtype
        or copied.device != image.device
        # Dimensions of size 1 leave the order of an image open.
        or 1 in image.shape[1:]
    ):
        return
    activations, last = _follow_activations(copied, facts)
    readers = facts.get_users(last.name)
    if len(readers) != 1 or readers[0].operator not in _VIEWS or last.name in facts.outputs:
        return
    (view,) = readers
    features = facts.values[view.outputs[0]]
    if features.shape != (image.shape[0], image.numel // image.shape[0]):
        return
    nodes = (copy.node, view.node)
    products = facts.get_users(features.name)
    if image.dynamic_dims or features.dynamic_dims:
        yield Refusal(NAME, "its sizes may change", nodes)
    elif features.name in facts.outputs:
        yield Refusal(NAME, "the flattened features are returned", nodes)
    elif not all(_reads_rows(op, features, subject) for op in products):
        yield Refusal(NAME, "an operator other than a product with a constant weight reads the features", nodes)
    elif products:
        saved = subject.bandwidth_bytes_per_s and 2 * image.bytes / subject.bandwidth_bytes_per_s
        ops = (copy, *activations, view, *products)
        roles = ("copy", *("activation" for _ in activations), "view", *("product" for _ in products))
        yield Candidate(NAME, facts.graph_id, tuple(op.node for op in ops), roles, predicted_seconds=saved)


def _follow_activations(value: ValueFacts, facts: GraphFacts) -> tuple[tuple[OpFacts, ...], ValueFacts]:
    """Return the activations behind `value`, each the only reader of the one before, and the result of the last."""
    found: list[OpFacts] = []
    while (activation := find_activation_behind(value, facts)) is not None:
        found.append(activation)
        (value,) = facts.get_output_values(activation)
    return tuple(found), value


def _reads_rows(op: OpFacts, features: ValueFacts, subject: RewriteSubject) -> bool:
    if op.operator not in _ROWS:
        return False
    features_at, weight_at = _ROWS[op.operator]
    weight = op.args[weight_at]
    reads = [at for at, argument in enumerate(op.args) if argument == ValueRef(features.name)]
    return reads == [features_at] and isinstance(weight, ValueRef) and weight.name in subject.constants


def _add_call(source: fx.Node, operator: str, *args: Any) -> fx.Node:
    return call_op(source.graph, getattr(torch.ops.aten, operator).default, source, *args)
