"""A small model's `Analysis`, without the command line, caches or measurements: what detector tests start from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import pytest
import torch
from torch import Tensor, fx, nn

from frx_graph.capture.captured_graph import CapturedGraph
from frx_graph.capture.model import map_parameter_paths
from frx_graph.capture.recorder import GraphRecorder
from frx_graph.facts.build import build_graph_facts
from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.measure.operators.operator_measurement import LayoutTimes, OperatorMeasurement
from frx_graph.passes.analysis import Analysis
from frx_graph.records import Basis, Copy, CopyKind, OperandRole


def graphs_of(model: nn.Module, *args: Any, train: bool = False, dynamic: bool | None = None) -> list[CapturedGraph]:
    """Every graph that Dynamo makes of `model(*args)`, traced to eager ATen; with `train` the backward too."""
    recorder = GraphRecorder(type(model).__name__, map_parameter_paths(model))

    def backend(dynamo: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        recorder.record(dynamo, example_inputs, "eager")
        return dynamo.forward

    torch._dynamo.reset()
    model.train(train)
    with torch.set_grad_enabled(train):
        torch.compile(model, backend=backend, dynamic=dynamic)(*args)
    capture = recorder.capture()
    assert not capture.failures
    return list(capture.graphs)


def facts_of(model: nn.Module, *args: Any, train: bool = False, dynamic: bool | None = None) -> GraphFacts:
    """The facts of the one graph of `model(*args)`; a graph break is a mistake in the test."""
    graphs = graphs_of(model, *args, train=train, dynamic=dynamic)
    assert len(graphs) == 1, f"{len(graphs)} graphs"
    return build_graph_facts(graphs[0])


Copies = Sequence[Copy] | Callable[[GraphFacts], Sequence[Copy]]
"""The predicted copies, or what predicts them from the facts."""


class Analyse(Protocol):
    """What the `analyse` fixture offers."""

    def __call__(
        self,
        model: nn.Module,
        *args: Tensor,
        train: bool = False,
        dynamic: bool | None = None,
        copies: Copies = (),
        step_bytes: int = 1_000_000,
        layout_times: Mapping[str, LayoutTimes] | None = None,
        measurements: Mapping[str, OperatorMeasurement] | None = None,
        **fields: Any,
    ) -> Analysis: ...


@pytest.fixture
def analyse() -> Analyse:
    """`analyse(model, *args, train=..., copies=...)` captures the model and builds its `Analysis`; `fields` are
    further fields of that record. `copies` may be a function of the facts, for records that name nodes. `step_bytes`
    is what the test says, so that shares of it are exact."""

    def build(
        model: nn.Module,
        *args: Tensor,
        train: bool = False,
        dynamic: bool | None = None,
        copies: Copies = (),
        step_bytes: int = 1_000_000,
        layout_times: Mapping[str, LayoutTimes] | None = None,
        measurements: Mapping[str, OperatorMeasurement] | None = None,
        **fields: Any,
    ) -> Analysis:
        facts = facts_of(model, *args, train=train, dynamic=dynamic)
        return Analysis(
            facts=facts,
            copies=tuple(copies(facts) if callable(copies) else copies),
            step_bytes=step_bytes,
            layout_times=layout_times or {},
            measurements=measurements or {},
            **fields,
        )

    return build


class CopyAt(Protocol):
    """What the `copy_at` fixture offers."""

    def __call__(
        self,
        facts: GraphFacts,
        node: str,
        value: str,
        *,
        kind: CopyKind = CopyKind.OPERATOR,
        role: OperandRole = OperandRole.INPUT,
        count: int = 1,
        cause: str = "",
        operator: str = "",
    ) -> Copy: ...


@pytest.fixture
def copy_at() -> CopyAt:
    """`copy_at(facts, node, value, kind=..., role=...)`: the record of `count` whole copies of `value` at `node`."""

    def build(
        facts: GraphFacts,
        node: str,
        value: str,
        *,
        kind: CopyKind = CopyKind.OPERATOR,
        role: OperandRole = OperandRole.INPUT,
        count: int = 1,
        cause: str = "",
        operator: str = "",
    ) -> Copy:
        op = facts.op_by_node[node]
        return Copy(
            node=node,
            site=op.site,
            operator=operator or op.operator,
            kind=kind,
            role=role,
            value=value,
            bytes=2 * facts.values[value].bytes * count,
            count=count,
            phase=op.phase,
            basis=Basis.PREDICTED,
            cause=cause or f"{op.operator} copies {value}",
        )

    return build
