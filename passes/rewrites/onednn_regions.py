"""Compute convolutions and products with constant weights, and what is between them, by oneDNN's primitives.

Why: torch describes operands to oneDNN in every call, which takes as long as the sums of a small image. Between calls
it keeps images in channels-last, where oneDNN's blocked layout is faster. It packs weights of products for MKL, which
is slower than oneDNN on some processors. OpenVINO and ONNX Runtime make primitives once, and so does this rewrite.
How: one operator takes the place of the region (`frx_graph.ops.onednn_region`). It folds batch norms and padding, fuses
activations and sums, and keeps one piece of memory for all values inside.
Assumes: oneDNN's library is installed (`pip install frx-graph[onednn]`). Weights are constant, sizes fixed, and values
in single precision on a CPU.
Safe: the same sums in another order; fused activations may turn NaN into a number, as in torch's own freezing. Results
have the strides of the trace, and memory that no other value has. If oneDNN cannot run a region, torch computes it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence

import torch
from torch import fx

from frx_graph.errors import RewriteError, summarize_error
from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.freezing.constant_folding import run_undisturbed
from frx_graph.ops.onednn.library import OneDnnError, find_library
from frx_graph.ops.onednn.program import FEW_CHANNELS, Program
from frx_graph.ops.onednn.steps import write_region
from frx_graph.ops.onednn_region import OPERATOR
from frx_graph.passes.rewrites.meta_strides.fake_values import call_op, find_fake_mode, run_fakes_unguarded
from frx_graph.passes.rewrites.region_description import Constant, DescribedRegion, FoldedWeights, describe_region
from frx_graph.passes.rewrites.region_partition import divide_pieces
from frx_graph.passes.rewrites.region_pieces import Convolution, Elementwise, Piece, Product, find_pieces
from frx_graph.passes.rewrites.rewrite import Rewrite, RewriteSubject
from frx_graph.records import Candidate, Refusal
from frx_graph.support.torch_internals import sort_nodes

NAME = "onednn_regions"
_ATEN = torch.ops.aten
_LEAST_DIMENSIONS = 2
"""The constants of a region have at least as many. Inductor writes vectors of up to 8 numbers into the code, and makes
them in every call (`can_inline_constant`, torch 2.15). The program of a region belongs to the memory of the constants.
"""


def propose(subject: RewriteSubject) -> Iterator[Candidate | Refusal]:
    """Propose one candidate for all regions; its choices name the first node of each."""
    if not subject.generates_loops:
        return
    facts = subject.facts
    regions = [region for region in divide_pieces(find_pieces(subject), facts) if _has_sums(region)]
    if not regions:
        return
    library = find_library()
    if isinstance(library, str) or any(op.mutates for op in facts.ops):
        reason = library if isinstance(library, str) else "the graph writes into its inputs"
        yield Refusal(NAME, reason, tuple(region[0].nodes[0] for region in regions))
        return
    chosen: dict[str, str] = {}
    for region in regions:
        trimmed = _drop_first_loops(region)
        nodes = [node for piece in trimmed for node in piece.nodes]
        described = describe_region(trimmed, subject)
        if reason := _find_obstacle(trimmed, described, facts):
            yield Refusal(NAME, reason, tuple(nodes))
            continue
        try:
            with run_undisturbed():
                Program(library, described.region, [_make_zeros(name, facts) for name in described.constants])
        except (OneDnnError, RuntimeError) as error:
            yield Refusal(NAME, summarize_error(error), tuple(nodes))
            continue
        chosen |= dict.fromkeys(nodes, nodes[0])
    if chosen:
        yield Candidate(NAME, facts.graph_id, tuple(chosen), tuple(chosen.values()))


def _has_sums(region: Sequence[Piece]) -> bool:
    return any(isinstance(piece.work, (Convolution, Product)) for piece in region)


def _drop_first_loops(region: Sequence[Piece]) -> list[Piece]:
    """Leave out what no convolution or product of the region comes before: Inductor fuses it with other loops."""
    kept: list[Piece] = []
    made: set[str] = set()
    for piece in region:
        if not isinstance(piece.work, Elementwise) or not made.isdisjoint(piece.reads):
            kept.append(piece)
            made.add(piece.result)
    return kept


def _find_obstacle(region: Sequence[Piece], described: DescribedRegion, facts: GraphFacts) -> str:
    """Return why a region is not worth it; empty if it may be."""
    values = facts.values
    convolutions = [piece for piece in region if isinstance(piece.work, Convolution)]
    if not convolutions:
        return ""
    images = (values[name] for name in (*described.inputs, *described.outputs) if _is_image(values[name].shape))
    crossing = sum(image.bytes for image in images)
    moved = sum(values[name].bytes for piece in convolutions for name in (*piece.reads, piece.result))
    return "images would be converted too often" if 2 * crossing > moved else ""


def _is_image(shape: tuple[int, ...]) -> bool:
    return len(shape) > 3 and shape[1] >= FEW_CHANNELS


def _make_zeros(constant: Constant, facts: GraphFacts) -> torch.Tensor:
    """Return zeros in the place of a constant, whose values do not matter to whether oneDNN can run a region."""
    if isinstance(constant, str):
        value = facts.values[constant]
        zeros = torch.empty_strided(value.shape, value.strides, dtype=value.dtype, device="cpu").zero_()
        return zeros.reshape(1, -1) if len(value.shape) < _LEAST_DIMENSIONS else zeros
    shape = facts.values[constant.weights.weight].shape
    return torch.zeros((1, shape[0]) if constant.is_bias else shape, dtype=torch.float32, device="cpu")


def apply(subject: RewriteSubject, module: fx.GraphModule, candidate: Candidate) -> tuple[str, ...]:
    """Put an operator in the place of each region. Raises `RewriteError` if the candidate is of another graph,
    or oneDNN cannot be called in this process."""
    if isinstance(library := find_library(), str):
        raise RewriteError(library)
    by_node = {node: piece for piece in find_pieces(subject) for node in piece.nodes}
    if not by_node.keys() >= set(candidate.nodes):
        raise RewriteError("the candidate belongs to another graph")
    regions: dict[str, dict[Piece, None]] = {}
    for node, first in zip(candidate.nodes, candidate.choices, strict=True):
        regions.setdefault(first, {})[by_node[node]] = None
    graph = module.graph
    nodes = {node.name: node for node in graph.nodes}
    with run_fakes_unguarded(find_fake_mode(graph)):
        for region in regions.values():
            described = describe_region(list(region), subject)
            last = nodes[list(region)[-1].nodes[-1]]
            _insert_region(graph, nodes, described, last)
    sort_nodes(graph)
    graph.eliminate_dead_code()
    return ()


def _insert_region(graph: fx.Graph, nodes: dict[str, fx.Node], described: DescribedRegion, at: fx.Node) -> None:
    """Add the operator in front of `at`, and let readers of the region's outputs read its results."""
    folded: dict[FoldedWeights, tuple[fx.Node, fx.Node]] = {}
    with graph.inserting_before(at):
        constants = []
        for constant in described.constants:
            if isinstance(constant, str):
                few = nodes[constant].meta["val"].dim() < _LEAST_DIMENSIONS
                constants.append(_view(graph, nodes[constant], [1, -1]) if few else nodes[constant])
                continue
            if constant.weights not in folded:
                folded[constant.weights] = _fold_weights(graph, nodes, constant.weights)
            constants.append(folded[constant.weights][constant.is_bias])
        inputs = [nodes[name] for name in described.inputs]
        made = call_op(graph, OPERATOR, inputs, constants, write_region(described.region))
        made.meta["stack_trace"] = at.meta.get("stack_trace")
        for index, name in enumerate(described.outputs):
            result = call_op(graph, operator.getitem, made, index)
            result.meta["stack_trace"] = nodes[name].meta.get("stack_trace")
            nodes[name].replace_all_uses_with(result)
            nodes[name] = result


def _fold_weights(graph: fx.Graph, nodes: dict[str, fx.Node], folded: FoldedWeights) -> tuple[fx.Node, fx.Node]:
    """Add what computes a folded weight and bias, which freezing does once."""
    weight = nodes[folded.weight]
    shape = weight.meta["val"].shape
    scale: fx.Node | None = None
    shift = None if folded.bias is None else nodes[folded.bias]
    for one in folded.scaled:
        number = call_op(graph, _ATEN.expand.default, _view(graph, nodes[one.constant], [-1]), [shape[0]])
        match one.operation:
            case "mul":
                scale = number if scale is None else call_op(graph, _ATEN.mul.Tensor, scale, number)
                shift = None if shift is None else call_op(graph, _ATEN.mul.Tensor, shift, number)
            case "add":
                shift = number if shift is None else call_op(graph, _ATEN.add.Tensor, shift, number)
            case "sub" if shift is None:
                shift = call_op(graph, _ATEN.neg.default, number)
            case "sub":
                shift = call_op(graph, _ATEN.sub.Tensor, shift, number)
    if shift is None:
        shift = call_op(graph, _ATEN.new_zeros.default, weight, shape[:1])
    if scale is not None:
        weight = call_op(graph, _ATEN.mul.Tensor, weight, _view(graph, scale, [-1, *(1,) * (len(shape) - 1)]))
    return weight, _view(graph, shift, [1, -1])


def _view(graph: fx.Graph, node: fx.Node, shape: list[int]) -> fx.Node:
    return call_op(graph, _ATEN.reshape.default, node, shape)


REWRITE = Rewrite(NAME, propose, apply)
