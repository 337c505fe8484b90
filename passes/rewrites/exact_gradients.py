"""Keep gradients of channels-last convolutions in channels-last, if the weight has one memory in both orders.

Why: Inductor's lowering copies the image and the gradient into a third order for them (torch 2.15, CPU). For a
depthwise convolution these copies take longer than the convolution itself.
How: a custom operator (`frx_graph.ops.onednn_linear`), which is opaque to Inductor, replaces torch's.
Assumes: Inductor, on a CPU; known sizes.
Safe: torch's own kernel runs, on operands with the strides of the trace.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch import fx

import frx_graph.ops.onednn_linear  # noqa: F401 - the operator
from frx_graph.errors import RewriteError
from frx_graph.facts.graph_facts import GraphFacts, OpFacts
from frx_graph.facts.layout import Layout
from frx_graph.passes.rewrites.rewrite import Rewrite, RewriteSubject
from frx_graph.records import Candidate, Refusal

NAME = "exact_gradients"


def propose(subject: RewriteSubject) -> Iterator[Candidate | Refusal]:
    """Propose one candidate for all such convolutions of the graph."""
    if not subject.generates_loops:
        return
    if found := tuple(op.node for op in subject.facts.ops if _loses_order(op, subject.facts)):
        yield Candidate(NAME, subject.facts.graph_id, found)


def apply(_subject: RewriteSubject, module: fx.GraphModule, candidate: Candidate) -> tuple[str, ...]:
    """Put the operator in place; no conversion is inserted."""
    chosen = set(candidate.nodes)
    places = {node: _locate_gradients(node) for node in module.graph.nodes if node.name in chosen}
    for node, place in places.items():
        _replace(node, place)
    return ()


REWRITE = Rewrite(NAME, propose, apply)


def _loses_order(op: OpFacts, facts: GraphFacts) -> bool:
    if op.operator != "aten.convolution_backward" or len(op.inputs) != 3:
        return False
    values = facts.get_input_values(op)
    gradient, image, weight = values
    return (
        len(image.shape) == 4
        and all(value.device.type == "cpu" and not value.dynamic_dims and 0 not in value.shape for value in values)
        and gradient.layout is Layout.CHANNELS_LAST
        and image.layout is Layout.CHANNELS_LAST
        and 1 in (weight.shape[1], weight.shape[2] * weight.shape[3])
    )


def _locate_gradients(node: fx.Node) -> dict[int, int]:
    """Return each gradient's place in our operator's results; raise `RewriteError` if the graph reads others."""
    mask = node.args[-1]
    if not isinstance(mask, (list, tuple)):
        raise RewriteError(f"{node.name} does not say which gradients it computes")
    for reader in node.users:
        if reader.users and not mask[_read_index(reader)]:
            raise RewriteError(f"{reader.name} reads a gradient that is not computed")
    return {index: sum(map(bool, mask[:index])) for index, asked in enumerate(mask) if asked}


def _replace(node: fx.Node, places: dict[int, int]) -> None:
    node.target = torch.ops.frx_graph.convolution_gradients.default
    node.meta["val"] = [node.meta["val"][index] for index in places]
    for reader in list(node.users):
        index = _read_index(reader)
        if index in places:
            reader.update_arg(1, places[index])
        else:
            node.graph.erase_node(reader)


def _read_index(reader: fx.Node) -> int:
    assert reader.target is operator.getitem
    index = reader.args[1]
    assert isinstance(index, int)
    return index
