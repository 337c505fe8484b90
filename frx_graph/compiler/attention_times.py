"""Measure an attention both as separate operators and as one fused call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from frx_graph.capture.aten_trace import UntracedGraph, trace_eager
from frx_graph.facts.build import build_graph_facts
from frx_graph.facts.graph_facts import OpFacts
from frx_graph.facts.operator_families import LAYOUT_COPIES
from frx_graph.facts.operator_signature import OperatorSignature, build_signature
from frx_graph.measure.measurement_cache import MeasuredOperators
from frx_graph.passes.copies.view_chain import is_view
from frx_graph.passes.rewrites.attention_from_views import FusedAttention
from frx_graph.support.torch_internals import FakeTensorMode

_NO_WORK = frozenset({"aten.ones_like", "aten.empty_like", "aten.detach", "aten.alias"})


def time_attention(
    dynamo: fx.GraphModule, fused: FusedAttention, mode: FakeTensorMode, inner: str, measured: MeasuredOperators
) -> tuple[float | None, float | None]:
    """Return the measured seconds as written and as one call, with the backward if gradients are needed.

    None if an operator could not be timed. Under Inductor pointwise operators and copies cost nothing: it fuses them.
    """
    written = fused.written
    forms = (((*written.path, written.second), written.second), (fused.inserted, fused.result))
    both = [_list_operator_calls(dynamo, nodes, result, mode, inner) for nodes, result in forms]
    measured.time([list(dict.fromkeys(signature for signatures in both for signature in signatures))])
    as_written, as_one = (_sum_seconds(signatures, measured) for signatures in both)
    return as_written, as_one


def _sum_seconds(signatures: Sequence[OperatorSignature], measured: MeasuredOperators) -> float | None:
    times = [measured.seconds(signature) for signature in signatures]
    known = [seconds for seconds in times if seconds is not None]
    return sum(known) if len(known) == len(times) else None


def _list_operator_calls(
    dynamo: fx.GraphModule, nodes: Sequence[fx.Node], result: fx.Node, mode: FakeTensorMode, inner: str
) -> list[OperatorSignature]:
    """Return the operator calls of `nodes`, forward and backward, without views."""
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    fakes: list[Any] = []
    members = set(nodes)
    for node in nodes:
        for given in node.all_input_nodes:
            if given not in members and given not in copied:
                copied[given] = graph.placeholder(given.name)
                fakes.append(_make_leaf(given.meta["example_value"], mode))
    # Placeholders come first.
    for node in nodes:
        copied[node] = graph.node_copy(node, copied.__getitem__)
    graph.output((copied[result],))
    train = torch.is_grad_enabled() and any(isinstance(f, Tensor) and f.requires_grad for f in fakes)
    region = fx.GraphModule(dynamo, graph)
    captured = trace_eager(UntracedGraph("", region, fakes, train), mode)
    facts = build_graph_facts(captured)
    return [build_signature(op, facts) for op in facts.ops if _takes_time(op, inner)]


def _make_leaf(value: Any, mode: FakeTensorMode) -> Any:
    """Return a leaf like `value`, at which the backward ends."""
    if not isinstance(value, Tensor):
        return value
    with mode:
        leaf = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return leaf.requires_grad_(value.requires_grad)


def _takes_time(op: OpFacts, inner: str) -> bool:
    if is_view(op) or op.operator in _NO_WORK:
        return False
    return inner != "inductor" or not (op.pointwise or op.operator in LAYOUT_COPIES)
