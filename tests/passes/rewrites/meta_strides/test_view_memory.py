"""Views are told by their fake tensors to lie in the memory of what they are views of, whatever they were traced as."""

from __future__ import annotations

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from frx_graph.passes.rewrites.meta_strides.view_memory import settle_views


def rerouted(program, *inputs: Tensor) -> fx.Graph:
    """The graph of `program`, in which what reads the one clone reads what it is a clone of."""
    with FakeTensorMode() as mode:
        graph = make_fx(program, tracing_mode="fake")(*map(mode.from_tensor, inputs)).graph
    (clone,) = graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)
    clone.replace_all_uses_with(clone.args[0])
    graph.erase_node(clone)
    return graph


def memory(node: fx.Node) -> int:
    return node.meta["val"].untyped_storage()._cdata


def named(graph: fx.Graph) -> dict[str, fx.Node]:
    return {node.name: node for node in graph.nodes}


def test_a_chain_of_views() -> None:
    graph = rerouted(lambda x: x.exp().clone()[1:].t().unsqueeze(0).sin(), torch.randn(4, 5))
    nodes = named(graph)
    assert memory(nodes["slice_1"]) != memory(nodes["exp"])
    settle_views(graph)
    for name in ("slice_1", "t", "unsqueeze"):
        assert memory(nodes[name]) == memory(nodes["exp"]), name
    assert nodes["unsqueeze"].meta["val"].shape == (1, 5, 3)
    assert nodes["unsqueeze"].meta["val"].stride() == torch.randn(4, 5)[1:].t().unsqueeze(0).stride()
    assert nodes["unsqueeze"].meta["val"].storage_offset() == 5
    assert memory(nodes["sin"]) != memory(nodes["exp"])


def test_a_view_that_does_not_say_that_it_is_one() -> None:
    graph = rerouted(lambda x: torch.ops.aten._unsafe_view(x.exp().clone(), [20]).sin(), torch.randn(4, 5))
    nodes = named(graph)
    settle_views(graph)
    assert memory(nodes["_unsafe_view"]) == memory(nodes["exp"])


def test_parts() -> None:
    graph = rerouted(lambda x: torch.split(x.exp().clone(), 2)[1].sin(), torch.randn(4, 5))
    nodes = named(graph)
    settle_views(graph)
    part = nodes["getitem_1"]
    assert memory(part) == memory(nodes["exp"])
    assert part.meta["val"].storage_offset() == 10


def test_a_copy_that_is_made_only_where_it_is_needed() -> None:
    """A dense operand may be given back as it is; one with gaps never is."""
    for cut, shares in ((lambda x: x.t(), True), (lambda x: x[:, ::2], False)):
        graph = rerouted(lambda x: cut(x.exp().clone()).neg(), torch.randn(4, 5))  # noqa: B023
        (pin,) = graph.find_nodes(op="call_function", target=torch.ops.aten.neg.default)
        pin.target = torch.ops.aten.contiguous.default
        settle_views(graph)
        assert (memory(pin) == memory(named(graph)["exp"])) is shares


def test_what_is_right_is_left_alone() -> None:
    with FakeTensorMode() as mode:
        given = mode.from_tensor(torch.randn(4, 5))
        graph = make_fx(lambda x: x.exp().t().sin(), tracing_mode="fake")(given).graph
    before = {node.name: node.meta.get("val") for node in graph.nodes}
    settle_views(graph)
    assert all(node.meta.get("val") is before[node.name] for node in graph.nodes)
