"""Rewrite Dynamo's graph before autograd, so that the backward is derived from the rewritten forward.

The graph is traced to eager ATen, changed in place, and traced again. If the program could see a difference in its
outputs, the changes are undone. A step that fails leaves the graph as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from frx_graph.capture.aten_trace import UntracedGraph, trace_eager
from frx_graph.capture.captured_graph import CapturedGraph, Phase
from frx_graph.capture.graph_signature import hash_graph
from frx_graph.capture.recorder import explain_unanalysable
from frx_graph.capture.tracing_context import disable_guards
from frx_graph.compiler.attention_times import time_attention
from frx_graph.compiler.rewrite_pipeline import RewrittenGraph
from frx_graph.errors import RewriteError
from frx_graph.facts.build import build_graph_facts
from frx_graph.measure.measurement_cache import MeasuredOperators
from frx_graph.passes.rewrites.attention_from_views import (
    NAME,
    FusedAttention,
    insert_fused_attention,
    remove_written_attention,
    undo_fused_attention,
)
from frx_graph.passes.rewrites.written_attention import WrittenAttention, find_written_attention
from frx_graph.plan import RECORDED, Plan
from frx_graph.records import Candidate, Refusal
from frx_graph.support.torch_internals import CompileContext, FakeTensor, FakeTensorMode, get_storage_id, pytree

_MATH = frozenset({"aten._softmax", "aten._safe_softmax"})
"""Operators of `scaled_dot_product_attention` if torch has no fused kernel for it."""


Compiled = Callable[..., Any]
OnRewrite = Callable[[RewrittenGraph], None]
OnFailure = Callable[[Exception], None]


def rewrite_or_leave(
    dynamo: fx.GraphModule, inner: str, plan: Plan, on_rewrite: OnRewrite, on_failure: OnFailure
) -> None:
    """Rewrite `dynamo` for the compiler `inner` and report it to `on_rewrite`; report any failure to `on_failure`."""
    try:
        done = rewrite_dynamo_graph(dynamo, inner=inner, plan=plan)
    except Exception as error:  # noqa: BLE001 - any failure of this package leaves the graph to the inner compiler as it was
        on_failure(error)
        return
    if done is not None:
        on_rewrite(done)


def rewrite_dynamo_graph(dynamo: fx.GraphModule, *, inner: str, plan: Plan) -> RewrittenGraph | None:
    """Replace attentions that `dynamo` writes out by fused calls, in place; return None if there are none.

    If the plan measures times, replace only those for which they show a gain under the compiler `inner`.
    """
    if (
        not plan.can_make(NAME)
        or not any("softmax" in str(node.target) for node in dynamo.graph.nodes)
        or explain_unanalysable(dynamo) is not None
    ):
        return None
    graph_id = str(CompileContext.current_compile_id() or "graph")
    signature = hash_graph(dynamo.graph)
    examples = [node.meta.get("example_value") for node in dynamo.graph.nodes]
    # Not `detect_fake_mode`: it prefers the backend's fake mode, and these values belong to Dynamo's own.
    mode = next((fake.fake_mode for fake in examples if isinstance(fake, FakeTensor)), None) or FakeTensorMode()
    traced = _trace(dynamo, mode, graph_id, train=False)
    found = list(find_written_attention(dynamo.graph, build_graph_facts(traced), _map_origins(traced)))
    if not found:
        return None
    refused = [one for one in found if isinstance(one, Refusal)]
    written = [one for one in found if isinstance(one, WrittenAttention)]
    recorded = {candidate.nodes: candidate.predicted_seconds for candidate in plan.select_candidates(signature, NAME)}
    if plan.policy == RECORDED:
        written = [one for one in written if one.names in recorded]
    before = _describe_visible(dynamo, mode, graph_id) if written else []
    on_gpu = any(isinstance(value, Tensor) and value.device.type == "cuda" for value in examples)
    measured = MeasuredOperators("cuda" if on_gpu else "cpu") if plan.measures else None
    forward_mode = any("_enter_dual_level" in str(node.target) for node in dynamo.graph.nodes)
    fused: list[_TimedFusion] = []
    for one in written:
        try:
            if forward_mode:
                raise RewriteError("fused kernels have no derivative in forward mode")
            fused.append(_insert_fused(dynamo, one, mode, inner, measured, predicted=recorded.get(one.names)))
        except RewriteError as error:
            refused.append(_make_refusal(one, str(error)))
    applied, taken_back = _keep_supported(dynamo, mode, before, fused, graph_id)
    dynamo.recompile()
    return RewrittenGraph(graph_id, Phase.FORWARD, applied, (*refused, *taken_back), signature=signature)


@dataclass(frozen=True)
class _TimedFusion:
    attention: FusedAttention
    seconds: float | None


def _insert_fused(
    dynamo: fx.GraphModule,
    found: WrittenAttention,
    mode: FakeTensorMode,
    inner: str,
    measured: MeasuredOperators | None,
    predicted: float | None,
) -> _TimedFusion:
    """Insert a fused call; return it with its gain, or raise `RewriteError` if it is impossible or not faster."""
    with disable_guards(mode):
        fused = insert_fused_attention(dynamo.graph, found, inner)
    if measured is None:
        return _TimedFusion(fused, predicted)
    written, single = time_attention(dynamo, fused, mode, inner, measured)
    if written is None or single is None or single >= written:
        undo_fused_attention(dynamo.graph, fused)
        known = written is not None and single is not None
        reason = f"it takes {single:.2e} s in one call and {written:.2e} s as written" if known else "it was not timed"
        raise RewriteError(reason)
    return _TimedFusion(fused, written - single)


def _keep_supported(
    dynamo: fx.GraphModule, mode: FakeTensorMode, before: object, fused: Sequence[_TimedFusion], graph_id: str
) -> tuple[tuple[Candidate, ...], tuple[Refusal, ...]]:
    """Keep the calls that torch has a fused kernel for, if the program sees no difference; else none."""
    kept = list(fused)
    refused: list[Refusal] = []
    try:
        operators = _group_operators(_trace(dynamo, mode, graph_id, train=False)) if kept else {}
        for one in fused:
            if operators.get(one.attention.call.name, _MATH) & _MATH:
                kept.remove(one)
                undo_fused_attention(dynamo.graph, one.attention)
                refused.append(_make_refusal(one.attention.written, "torch has no fused kernel for it on this device"))
        if kept and _describe_visible(dynamo, mode, graph_id) != before:
            raise RewriteError("outputs or gradients would have other strides or share other memory")
        if kept and _has_aliased_outputs(dynamo, mode, graph_id):
            raise RewriteError("AOTAutograd cannot repeat views of a fused kernel's result")
    except Exception as error:
        for one in kept:
            undo_fused_attention(dynamo.graph, one.attention)
        if not isinstance(error, RewriteError):
            raise
        return (), (*refused, *(_make_refusal(one.attention.written, str(error)) for one in kept))
    for one in kept:
        remove_written_attention(dynamo.graph, one.attention)
    applied = (Candidate(NAME, graph_id, one.attention.written.names, predicted_seconds=one.seconds) for one in kept)
    return tuple(applied), tuple(refused)


def _make_refusal(written: WrittenAttention, reason: str) -> Refusal:
    site = written.attention.softmax.site
    return Refusal(f"attention at {site}", reason, written.names, site)


def _trace(dynamo: fx.GraphModule, mode: FakeTensorMode, graph_id: str, *, train: bool) -> CapturedGraph:
    fakes = [node.meta.get("example_value") for node in dynamo.graph.find_nodes(op="placeholder")]
    needed = torch.is_grad_enabled() and any(isinstance(fake, Tensor) and fake.requires_grad for fake in fakes)
    return trace_eager(UntracedGraph(graph_id, dynamo, fakes, train and needed), mode)


def _map_origins(captured: CapturedGraph) -> Mapping[str, str]:
    """The Dynamo node that each ATen node was traced from, by name."""
    named = ((node.name, node.meta.get("from_node")) for node in captured.aten.graph.nodes)
    return {name: sources[-1].name for name, sources in named if sources}


def _group_operators(captured: CapturedGraph) -> Mapping[str, frozenset[str]]:
    """The operators that each Dynamo node was taken apart into."""
    origins = _map_origins(captured)
    found: dict[str, set[str]] = {}
    for node in captured.aten.graph.nodes:
        if node.op == "call_function" and node.name in origins:
            packet = getattr(node.target, "overloadpacket", node.target)
            found.setdefault(origins[node.name], set()).add(str(packet))
    return {name: frozenset(operators) for name, operators in found.items()}


def _describe_visible(dynamo: fx.GraphModule, mode: FakeTensorMode, graph_id: str) -> list[tuple[Any, ...] | None]:
    """Return what the program can see of each output and gradient besides values: type, shape, strides, aliasing."""
    graph = _trace(dynamo, mode, graph_id, train=True).aten.graph
    storages: dict[int, int] = {}

    def describe(node: Any) -> tuple[Any, ...] | None:
        if not isinstance(node, fx.Node) or (memory := _identify_memory(node)) is None:
            return None
        value, number = node.meta["val"], storages.setdefault(memory, len(storages))
        return (value.dtype, tuple(value.shape), value.stride(), value.storage_offset(), number)

    inputs = graph.find_nodes(op="placeholder")
    return [describe(node) for node in (*inputs, *pytree.tree_leaves(graph.output_node().args))]


def _has_aliased_outputs(dynamo: fx.GraphModule, mode: FakeTensorMode, graph_id: str) -> bool:
    """Return True if several outputs are views of one value that is not returned itself.

    AOTAutograd returns that value and makes the views from it, which fails behind `scaled_dot_product_attention` (one
    head, `flatten`, `detach`; torch 2.15).
    """
    graph = _trace(dynamo, mode, graph_id, train=False).aten.graph
    returned = {node for node in pytree.tree_leaves(graph.output_node().args) if isinstance(node, fx.Node)}
    makers: dict[int, fx.Node] = {}
    for node in graph.nodes:
        if (memory := _identify_memory(node)) is not None:
            makers.setdefault(memory, node)
    counted = Counter(memory for node in returned if (memory := _identify_memory(node)) is not None)
    parts = (makers[memory] for memory, count in counted.items() if count > 1)
    return any(maker.op != "placeholder" and maker not in returned for maker in parts)


def _identify_memory(node: fx.Node) -> int | None:
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return None
    return get_storage_id(value.untyped_storage())
