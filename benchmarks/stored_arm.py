"""Programs compiled after `frx_graph.prepare` has stored every weight that it may in another order, whatever measured
times say. They are compared with eager on weights that are stored so: `prepare` changes strides as
`model.to(memory_format=...)` does, and programs may see that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from random_program import RandomProgram
from torch import Tensor, nn
from torch._dynamo.utils import counters

import frx_graph
from frx_graph.capture.captured_graph import Phase
from frx_graph.compiler.rewrite_pipeline import RewrittenGraph
from frx_graph.errors import FrxError
from frx_graph.facts.ordered_tensor import store_in_order
from frx_graph.passes.rewrites import preconvert_weights
from frx_graph.passes.rewrites.layout.anchor_calls import list_anchor_orders
from frx_graph.passes.rewrites.rewrite import RewriteSubject
from frx_graph.prepack import prepare
from frx_graph.records import Candidate, Refusal

STORED = "eager stored"
"""In the place of an inner compiler: eager, on weights that `frx_graph.prepare` has stored."""


def stored(
    model: nn.Module,
    program: RandomProgram,
    compiled: Callable[..., Any],
    told: list[RewrittenGraph],
    listening: Callable[[], AbstractContextManager[None]],
) -> Callable[..., Any]:
    """The model, prepared in its first call and compiled by the backend `compiled`. `told` gets what was done, weights
    that were stored in another order included; preparing runs in what `listening` makes."""
    run_compiled = torch.compile(model, backend=compiled, dynamic=program.dynamic or None)
    prepared = False

    def run(*inputs: Tensor) -> Any:
        nonlocal prepared
        if not prepared:
            prepared = True
            with listening(), patch.object(prepare, "add_measured_times", _everything):
                _prepare(model, inputs, told)
        return run_compiled(*inputs)

    return run


def _prepare(model: nn.Module, inputs: Sequence[Tensor], told: list[RewrittenGraph]) -> None:
    # Capture compiles, too, which is not counted.
    graphs, breaks = counters["stats"]["unique_graphs"], counters["graph_break"].copy()
    train = model.training and torch.is_grad_enabled()
    try:
        done = frx_graph.prepare(model, inputs, train=train, inner="eager")
    except FrxError as error:
        told.append(RewrittenGraph("", Phase.FORWARD, (), (Refusal(STORED, str(error)),)))
    else:
        stored = tuple(
            Candidate(preconvert_weights.NAME, "", (name,), tuple(map(str, order)))
            for name, order in done.converted.items()
        )
        told.append(RewrittenGraph("", Phase.FORWARD, stored, done.refused))
    finally:
        counters["stats"]["unique_graphs"] = graphs
        counters["graph_break"] = breaks


def _everything(subject: RewriteSubject, *, prepared: bool) -> RewriteSubject:  # noqa: ARG001 - as what it replaces
    """As if every anchor were faster in another order than it is in, and conversions cost nothing."""
    seconds = {
        member.op.node: {order: _CHANGED if order != member.current else 1.0 for order in orders}
        for member in subject.anchors
        if (orders := list_anchor_orders(member))
    }
    return replace(subject, seconds=seconds, bandwidth_bytes_per_s=1e18)


_CHANGED = 0.1


def stored_as(model: nn.Module, told: Sequence[RewrittenGraph]) -> nn.Module:
    """The model with its weights in the orders that `told` says were chosen."""
    applied = (candidate for graph in told for candidate in graph.applied)
    for candidate in applied:
        if candidate.rewrite == preconvert_weights.NAME:
            weight = model.get_parameter(candidate.nodes[0])
            weight.data = store_in_order(weight.data, tuple(map(int, candidate.choices)))
    return model
