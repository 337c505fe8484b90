"""A small model's `Analysis`, without the command line, caches or measurements: what detector tests start from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor

from frx_graph.capture.aten_trace import trace_eager
from frx_graph.capture.call_site import module_path_from_stack
from frx_graph.capture.captured_graph import CapturedGraph, GraphInput, InputKind
from frx_graph.evidence.operator_measurement import LayoutTimes, OperatorMeasurement
from frx_graph.facts.build import build_graph_facts
from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.passes.analysis import Analysis
from frx_graph.records import Copy


def graphs_of(model: nn.Module, *args: Any, train: bool = False, dynamic: bool | None = None) -> list[CapturedGraph]:
    """Every graph that Dynamo makes of `model(*args)`, traced to eager ATen; with `train` the backward too."""
    captured: list[CapturedGraph] = []

    def recorder(dynamo: fx.GraphModule, _: Sequence[Any]) -> Any:
        placeholders = [node for node in dynamo.graph.nodes if node.op == "placeholder"]
        fakes = [node.meta["example_value"] for node in placeholders]
        # Not detect_fake_mode: inside a backend that finds the mode Dynamo made for the backend, not the fakes' own.
        fake_mode = next(fake.fake_mode for fake in fakes if isinstance(fake, FakeTensor))
        captured.append(
            trace_eager(
                dynamo,
                fakes,
                fake_mode,
                graph_id=f"{len(captured)}/0",
                origin=type(model).__name__,
                # make_fx numbers its placeholders in the order of the arguments.
                inputs=[_graph_input(f"arg{position}_1", node) for position, node in enumerate(placeholders)],
                train=train,
            )
        )
        return dynamo.forward

    torch._dynamo.reset()
    model.train(train)
    with torch.set_grad_enabled(train):
        torch.compile(model, backend=recorder, dynamic=dynamic)(*args)
    return captured


def _graph_input(name: str, node: fx.Node) -> GraphInput:
    source = node.meta["grapharg"].source.name
    source = source() if callable(source) else source
    if "_parameters[" in source:
        kind = InputKind.PARAMETER
    elif "_buffers[" in source:
        kind = InputKind.BUFFER
    else:
        return GraphInput(name, re.sub(r"^L\['(\w+)'\]", r"\1", source), InputKind.ARGUMENT)
    path = source.replace("._parameters", "").replace("._buffers", "")
    return GraphInput(name, module_path_from_stack([path]), kind)


def facts_of(model: nn.Module, *args: Any, train: bool = False, dynamic: bool | None = None) -> GraphFacts:
    """The facts of the one graph of `model(*args)`; a graph break is a mistake in the test."""
    graphs = graphs_of(model, *args, train=train, dynamic=dynamic)
    assert len(graphs) == 1, f"{len(graphs)} graphs"
    return build_graph_facts(graphs[0])


class Analyse(Protocol):
    """What the `analyse` fixture offers."""

    def __call__(
        self,
        model: nn.Module,
        *args: Tensor,
        train: bool = False,
        dynamic: bool | None = None,
        copies: Sequence[Copy] = (),
        step_bytes: int = 1_000_000,
        layout_times: Mapping[str, LayoutTimes] | None = None,
        measurements: Mapping[str, OperatorMeasurement] | None = None,
        **fields: Any,
    ) -> Analysis: ...


@pytest.fixture
def analyse() -> Analyse:
    """`analyse(model, *args, train=..., copies=...)` captures the model and builds its `Analysis`; `fields` are
    further fields of that record. `step_bytes` is what the test says, so that shares of it are exact."""

    def build(
        model: nn.Module,
        *args: Tensor,
        train: bool = False,
        dynamic: bool | None = None,
        copies: Sequence[Copy] = (),
        step_bytes: int = 1_000_000,
        layout_times: Mapping[str, LayoutTimes] | None = None,
        measurements: Mapping[str, OperatorMeasurement] | None = None,
        **fields: Any,
    ) -> Analysis:
        return Analysis(
            facts=facts_of(model, *args, train=train, dynamic=dynamic),
            copies=tuple(copies),
            step_bytes=step_bytes,
            layout_times=layout_times or {},
            measurements=measurements or {},
            **fields,
        )

    return build
