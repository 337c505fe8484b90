"""Copies of Dynamo's graphs have all that inner compilers read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.distributed import DDPOptimizer

from frx_graph.capture.compiler_graphs import copy_dynamo_graph


@pytest.mark.parametrize("source", [None, "L['x']"])
def test_source_of_an_input_is_copied(source: str | None) -> None:
    """None is a source, too: `DDPOptimizer` sets it, and AOTAutograd requires the attribute."""
    module = fx.symbolic_trace(nn.ReLU())
    (placeholder,) = module.graph.find_nodes(op="placeholder")
    placeholder._dynamo_source = source
    (copied,) = copy_dynamo_graph(module).graph.find_nodes(op="placeholder")
    assert copied._dynamo_source == source


def test_node_without_a_source_stays_without() -> None:
    module = fx.symbolic_trace(nn.ReLU())
    (copied,) = copy_dynamo_graph(module).graph.find_nodes(op="placeholder")
    assert not hasattr(copied, "_dynamo_source")


def test_sources_of_weights_are_copied() -> None:
    module = fx.symbolic_trace(nn.Linear(2, 2))
    module._param_name_to_source = {"weight": "L['self'].weight"}  # type: ignore[assignment]
    assert copy_dynamo_graph(module)._param_name_to_source == {"weight": "L['self'].weight"}


@pytest.mark.integration
def test_copied_parts_of_ddp_compile() -> None:
    parts = []

    def compile_copy(graph: fx.GraphModule, inputs: list[Tensor]) -> Any:
        parts.append(graph)
        return aot_autograd(fw_compiler=lambda module, _: module)(copy_dynamo_graph(graph), inputs)

    model = nn.Sequential(*(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)) for _ in range(4)))
    optimizer = DDPOptimizer(bucket_bytes_cap=4_000, backend_compile_fn=compile_copy, first_bucket_cap=4_000)
    image = torch.randn(1, 8, 6, 6)
    expected = model(image)
    assert torch.equal(torch.compile(model, backend=optimizer.compile_fn)(image), expected)
    assert len(parts) > 1
