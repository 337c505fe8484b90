"""Fold zero padding into the convolutions that read it.

Why: `F.pad` copies the whole image, to add a few zeros. A convolution adds them itself, at no cost.
How: padding that is the same on both sides of a dimension is added to the convolution's own `padding`.
Assumes: every reader of the padded image is a convolution, and none is transposed.
Safe: the same products and sums. An image that is returned or saved for the backward stays, as does padding whose
result has its dimensions in another order than the image.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from frx_graph.errors import RewriteError
from frx_graph.facts.graph_facts import OpFacts, ValueFacts
from frx_graph.facts.layout import get_dimension_order
from frx_graph.facts.operator_overload import get_argument
from frx_graph.passes.rewrites.meta_strides.fake_values import (
    call_op,
    find_fake_mode,
    have_equal_strides,
    run_fakes_unguarded,
)
from frx_graph.passes.rewrites.rewrite import Rewrite, RewriteSubject
from frx_graph.records import Candidate, Refusal

NAME = "fold_padding"
_CONVOLUTION = "aten.convolution"


def propose(subject: RewriteSubject) -> Iterator[Candidate | Refusal]:
    """Propose one candidate for all padding of the graph that convolutions can add."""
    folded: list[str] = []
    for op in subject.facts.ops:
        if op.operator != "aten.constant_pad_nd":
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
    readers = facts.get_users(padded.name)
    if padded.name in facts.outputs or not readers:
        return "the padded image is returned, or saved for the backward"
    if any(not _reads_as_image(reader, padded) for reader in readers):
        return "not only convolutions read the padded image"
    if _split_padding(op, len(image.shape)) is None:
        return "it does not add as many zeros on both sides of each dimension of the image"
    if {image.name, padded.name} & subject.doubtful or not _have_same_order(image, padded):
        return "the padded image may have its dimensions in another order"
    return ""


def _reads_as_image(reader: OpFacts, padded: ValueFacts) -> bool:
    return (
        reader.operator == _CONVOLUTION
        and reader.inputs.count(padded.name) == 1
        and reader.inputs[0] == padded.name
        and not get_argument(reader, "transposed")
    )


def _split_padding(op: OpFacts, rank: int) -> tuple[int, ...] | None:
    """Return how many zeros are added on each side of each dimension of the image; None for other padding."""
    pads, value = get_argument(op, "pad"), get_argument(op, "value")
    if op.symbolic or value != 0 or not isinstance(pads, (tuple, list)) or len(pads) % 2:
        return None
    sizes = [
        one
        for one, other in zip(pads[::2], pads[1::2], strict=True)
        if isinstance(one, int) and one == other and one >= 0
    ]
    spatial = rank - 2
    if 2 * len(sizes) != len(pads) or spatial < 1 or any(sizes[spatial:]):
        return None
    # The last dimension comes first, and outer ones may be missing.
    return tuple(reversed((*sizes, *(0,) * spatial)[:spatial]))


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
            padding = _split_padding(subject.facts.op_by_node[name], nodes[name].meta["val"].dim())
            assert padding is not None
            image = nodes[name].args[0]
            made += [(reader, _add_padding(graph, reader, image, padding)) for reader in list(nodes[name].users)]
    if not all(have_equal_strides(old, new) for old, new in made):
        for _, new in made:
            graph.erase_node(new)
        raise RewriteError("a convolution of the image itself has other strides")
    for old, new in made:
        old.replace_all_uses_with(new)
        graph.erase_node(old)
    for name in candidate.nodes:
        graph.erase_node(nodes[name])
    return ()


def _add_padding(graph: fx.Graph, convolution: fx.Node, image: object, padding: tuple[int, ...]) -> fx.Node:
    _, weight, bias, stride, own, *rest = convolution.args
    assert isinstance(own, (tuple, list))
    # One number stands for all dimensions.
    own = own if len(own) == len(padding) else (own[0],) * len(padding)
    both = [one + other for one, other in zip(own, padding, strict=True)]
    with graph.inserting_before(convolution):
        made = call_op(graph, convolution.target, image, weight, bias, stride, both, *rest)
    made.meta["stack_trace"] = convolution.meta.get("stack_trace")
    return made


REWRITE = Rewrite(NAME, propose, apply)
