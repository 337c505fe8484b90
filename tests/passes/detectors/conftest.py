"""Programs that are really compiled again: what the rules on compile events start from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx

from frx_graph.capture.recorder import GraphRecorder
from frx_graph.facts.build import build_graph_facts
from frx_graph.passes.analysis import Analysis, CompileEvents

Recompile = Callable[..., list[Analysis]]


@pytest.fixture
def recompile() -> Recompile:
    """`recompile(function, call, call, ...)` compiles the function, makes the calls (tuples of arguments, or functions
    that make one themselves), and analyses the last version of every frame, as `advise` does."""

    def run(function: Callable[..., Any], *calls: Any, cudagraph_skips: int = 0) -> list[Analysis]:
        recorder = GraphRecorder("program")

        def backend(dynamo: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
            recorder.record(dynamo, example_inputs, "eager")
            return dynamo.forward

        torch._dynamo.reset()
        compiled = torch.compile(function, backend=backend)
        for call in calls:
            call(compiled) if callable(call) else compiled(*call)
        capture = recorder.capture()
        assert not capture.failures
        events = CompileEvents(capture.breaks, capture.recompiles, cudagraph_skips)
        latest = {graph.graph_id.rpartition("/")[0]: graph for graph in capture.graphs}
        return [Analysis(build_graph_facts(graph), (), 1_000_000, events=events) for graph in latest.values()]

    return run
