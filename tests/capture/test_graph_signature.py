"""A graph's name: what it is on, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

from frx_graph.capture.graph_signature import hash_graph


def signature_on(value: Tensor) -> str:
    graph = fx.symbolic_trace(nn.ReLU()).graph
    for node in graph.nodes:
        node.meta["example_value"] = value
    return hash_graph(graph)


def test_tensors_of_another_kind_are_another_graph() -> None:
    x = torch.ones(2, 3)
    plain = signature_on(x)
    assert signature_on(FakeTensorMode().from_tensor(x)) == plain
    assert signature_on(nn.Parameter(x, requires_grad=False)) == plain
    assert signature_on(TwoTensor(x, x)) != plain


def signatures(programs: Sequence[Callable[[Tensor], Tensor]]) -> list[str]:
    found: list[str] = []

    def backend(dynamo: fx.GraphModule, _: object) -> Callable[..., object]:
        found.append(hash_graph(dynamo.graph))
        return dynamo.forward

    for program in programs:
        torch._dynamo.reset()
        torch.compile(program, backend=backend)(torch.ones(3, requires_grad=True))
    return found


@pytest.mark.parametrize(
    "calling",
    [
        lambda body: lambda x: checkpoint(body, x, use_reentrant=False),
        lambda body: lambda x: torch.cond(x.sum() > 0, body, lambda y: y.exp(), (x,)),
    ],
    ids=["a checkpoint", "a branch"],
)
def test_graphs_that_are_called_are_part_of_the_graph(calling: Callable[..., Callable[[Tensor], Tensor]]) -> None:
    bodies = [torch.relu, lambda x: x.sin().cos(), torch.relu]
    relu, other, again = signatures([calling(body) for body in bodies])
    assert relu == again != other
