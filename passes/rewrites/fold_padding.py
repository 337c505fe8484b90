"""Fold zero padding into the convolutions that read it.

Why: `F.pad` copies the whole image, to add a few zeros. A convolution adds them itself, at no cost.
How: padding that is the same on both sides of a dimension is added to the convolution's own `padding`. If it differs,
the larger side is added on both, and the kernel gets zeros that shift it back.
Assumes: every reader of the padded image is a convolution, and none is transposed; a larger kernel needs a constant
weight, and few products for each element that is no longer copied.
Safe: the same products and sums. An image that is returned or saved for the backward stays, as does padding whose
result has its dimensions in another order than the image. Zeros of a larger kernel turn an infinite pixel into NaN, so
one more row or column of results may have it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import fx

from frx_graph.errors import RewriteError
from frx_graph.facts.graph_facts import OpFacts, ValueFacts
from frx_graph.facts.layout import get_dimension_order
from frx_graph.facts.operator_overload import get_argument
from frx_graph.facts.zero_padding import OPERATOR, Sides, list_convolutions, repeat_number, split_padding
from frx_graph.passes.rewrites.meta_strides.fake_values import (
    call_op,
    find_fake_mode,
    have_equal_strides,
    run_fakes_unguarded,
)
from frx_graph.passes.rewrites.rewrite import Rewrite, RewriteSubject
from frx_graph.records import Candidate, Refusal

NAME = "fold_padding"
_MOST_ZEROS = 8
"""Products with zeros for each element of the padded image. For the four strided layers of MobileNetV2, one thread of a
Xeon with AVX-512 copied an element in 0.40 to 0.54 ns, and computed 24 to 79 such products a ns: 10 or more."""


def propose(subject: RewriteSubject) -> Iterator[Candidate | Refusal]:
    """Propose one candidate for all padding of the graph that convolutions can add."""
    folded: list[str] = []
    for op in subject.facts.ops:
        if op.operator != OPERATOR:
            continue
        if reason := _find_obstacle(op, subject):
            yield Refusal(NAME, reason, (op.node,))
        else:
            folded.append(op.node)
    if folded:
        yield Candidate(NAME, subject.facts.graph_id, tuple(folded))


def _find_obstacle(op: OpFacts, subject: RewriteSubject) -> str:
    """Return why convolutions cannot add this padding; empty if they can."""
    facts = subject.facts
    image, padded = facts.values[op.inputs[0]], facts.values[op.outputs[0]]
    if padded.name in facts.outputs or not facts.get_users(padded.name):
        return "the padded image is returned, or saved for the backward"
    convolutions = list_convolutions(padded, facts)
    if not convolutions:
        return "not only convolutions read the padded image"
    sides = split_padding(op, len(image.shape))
    if sides is None:
        return "it does more than add zeros to the sides of the image"
    if 0 in image.shape[2:]:
        return "the image has no pixels, which a convolution does not take"
    if {image.name, padded.name} & subject.doubtful or not _have_same_order(image, padded):
        return "the padded image may have its dimensions in another order"
    if all(one.symmetric for one in sides):
        return ""
    reasons = (_find_obstacle_to_shift(sides, convolution, subject) for convolution in convolutions)
    if reason := next(filter(None, reasons), ""):
        return reason
    zeros = sum(_count_zero_products(sides, convolution, subject) for convolution in convolutions)
    too_many = zeros > _MOST_ZEROS * math.prod(padded.shape)
    return "products with zeros would take longer than the copy" if too_many else ""


def _find_obstacle_to_shift(sides: tuple[Sides, ...], convolution: OpFacts, subject: RewriteSubject) -> str:
    """Return why zeros cannot shift the kernel of `convolution`; empty if they can."""
    if convolution.inputs[1] not in subject.constants:
        return "it adds more zeros on one side, and the weight is not a constant"
    dilation = repeat_number(get_argument(convolution, "dilation"), len(sides))
    if any((one.front - one.back) % by for one, by in zip(sides, dilation, strict=True)):
        return "zeros between the elements of a dilated kernel do not shift it"
    return "the image has no fixed size" if subject.facts.has_dynamic_sizes(convolution) else ""


def _count_zero_products(sides: tuple[Sides, ...], convolution: OpFacts, subject: RewriteSubject) -> int:
    """Return how many products with zeros the shifted kernel of `convolution` computes."""
    values = subject.facts.values
    weight, result = values[convolution.inputs[1]], values[convolution.outputs[0]]
    dilation = repeat_number(get_argument(convolution, "dilation"), len(sides))
    kernel = weight.shape[2:]
    larger = [size + sum(one.shift_kernel(by)) for size, one, by in zip(kernel, sides, dilation, strict=True)]
    return math.prod(result.shape) * weight.shape[1] * (math.prod(larger) - math.prod(kernel))


def _have_same_order(image: ValueFacts, padded: ValueFacts) -> bool:
    orders = {get_dimension_order(value.shape, value.strides) for value in (image, padded)}
    return image.dense and padded.dense and len(orders) == 1


def apply(subject: RewriteSubject, module: fx.GraphModule, candidate: Candidate) -> tuple[str, ...]:
    """Let convolutions read the image itself; nothing is inserted. Raises `RewriteError` if strides would change."""
    graph = module.graph
    nodes = {node.name: node for node in graph.nodes}
    made: list[tuple[fx.Node, fx.Node]] = []
    with run_fakes_unguarded(find_fake_mode(graph)):
        for name in candidate.nodes:
            sides = split_padding(subject.facts.op_by_node[name], nodes[name].meta["val"].dim())
            assert sides is not None
            image = nodes[name].args[0]
            made += [(reader, _add_padding(graph, reader, image, sides)) for reader in list(nodes[name].users)]
    if not all(have_equal_strides(old, new) for old, new in made):
        for old, new in made:
            weight = new.args[1]
            graph.erase_node(new)
            if weight is not old.args[1]:
                assert isinstance(weight, fx.Node)
                graph.erase_node(weight)
        raise RewriteError("a convolution of the image itself has other strides")
    for old, new in made:
        old.replace_all_uses_with(new)
        graph.erase_node(old)
    for name in candidate.nodes:
        graph.erase_node(nodes[name])
    return ()


def _add_padding(graph: fx.Graph, convolution: fx.Node, image: object, sides: tuple[Sides, ...]) -> fx.Node:
    _, weight, bias, stride, own, dilation, *rest = convolution.args
    both = [one + side.padding for one, side in zip(repeat_number(own, len(sides)), sides, strict=True)]
    shifts = [side.shift_kernel(by) for side, by in zip(sides, repeat_number(dilation, len(sides)), strict=True)]
    with graph.inserting_before(convolution):
        if any(map(any, shifts)):
            zeros = [count for shift in reversed(shifts) for count in shift]
            weight = call_op(graph, torch.ops.aten.constant_pad_nd.default, weight, zeros)
        made = call_op(graph, convolution.target, image, weight, bias, stride, both, dilation, *rest)
    made.meta["stack_trace"] = convolution.meta.get("stack_trace")
    return made


REWRITE = Rewrite(NAME, propose, apply)
