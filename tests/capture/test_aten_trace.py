"""Fake results are laid out as real kernels lay theirs out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from frx_graph.capture.aten_trace import RealStrides, merge_relayouts

BACKWARD = torch.ops.aten.native_layer_norm_backward.default


def gradients(gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    _, mean, deviation = torch.ops.aten.native_layer_norm.default(x, [x.shape[-1]], weight, weight, 1e-5)
    found: tuple[Tensor, ...] = BACKWARD(
        gradient, x, [x.shape[-1]], mean, deviation, weight, weight, [True, True, True]
    )
    return found


def transposed(*sizes: int) -> Tensor:
    return torch.randn(*sizes).transpose(-1, -2)


@pytest.fixture
def arguments() -> tuple[Tensor, Tensor, Tensor]:
    return transposed(2, 8, 3), torch.randn(2, 3, 8), torch.randn(8)


def traced(arguments: tuple[Tensor, Tensor, Tensor]) -> fx.GraphModule:
    with RealStrides():
        graph: fx.GraphModule = make_fx(gradients, tracing_mode="fake")(*arguments)
    merge_relayouts(graph.graph)
    return graph


def test_the_traced_strides_are_the_kernels(arguments: tuple[Tensor, Tensor, Tensor]) -> None:
    (outputs,) = traced(arguments).graph.output_node().args
    real = gradients(*arguments)
    assert [node.meta["val"].stride() for node in outputs] == [gradient.stride() for gradient in real]


def test_no_copy_is_left_of_the_correction_and_the_values_are_the_same(
    arguments: tuple[Tensor, Tensor, Tensor],
) -> None:
    graph = traced(arguments)
    assert graph.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default) == []
    graph.graph.lint()
    graph.recompile()
    for ours, real in zip(graph(*arguments), gradients(*arguments), strict=True):
        torch.testing.assert_close(ours, real)


def test_the_operator_itself_carries_the_corrected_values(arguments: tuple[Tensor, Tensor, Tensor]) -> None:
    (backward,) = traced(arguments).graph.find_nodes(op="call_function", target=BACKWARD)
    assert backward.meta["val"][0].stride() == gradients(*arguments)[0].stride()


def test_a_copy_that_the_program_makes_stays() -> None:
    with RealStrides():
        graph = make_fx(lambda x: nn.functional.relu(x).transpose(0, 1).contiguous(), tracing_mode="fake")(
            torch.randn(3, 4)
        )
    merge_relayouts(graph.graph)
    assert len(graph.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)) == 1
