"""A graph's name: what it is on, too."""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

from frx_graph.capture.graph_signature import graph_signature


def signature_on(value: Tensor) -> str:
    graph = fx.symbolic_trace(nn.ReLU()).graph
    for node in graph.nodes:
        node.meta["example_value"] = value
    return graph_signature(graph)


def test_tensors_of_another_kind_are_another_graph() -> None:
    x = torch.ones(2, 3)
    plain = signature_on(x)
    assert signature_on(FakeTensorMode().from_tensor(x)) == plain
    assert signature_on(nn.Parameter(x, requires_grad=False)) == plain
    assert signature_on(TwoTensor(x, x)) != plain
