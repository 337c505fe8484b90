"""Views in a graph as it was traced are told by their fakes to lie as they do when the graph is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from frx_graph.passes.rewrites.meta_strides.fix_view_strides import fix_view_storages, fix_view_strides


def traced(program: Callable[..., Any], value: Tensor) -> fx.GraphModule:
    with FakeTensorMode() as mode:
        return make_fx(program)(mode.from_tensor(value))


def as_told(module: fx.GraphModule) -> dict[str, tuple[int, ...]]:
    return {n.name: n.meta["val"].stride() for n in module.graph.nodes if isinstance(n.meta.get("val"), Tensor)}


def as_it_runs(module: fx.GraphModule, value: Tensor) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}

    class Run(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            result = super().run_node(n)
            if isinstance(result, Tensor) and n.op != "output":
                found[n.name] = result.stride()
            return result

    Run(module).run(value)
    return found


def half(x: Tensor) -> Tensor:
    return x.chunk(2, 1)[0].view(1, -1)


def behind_half(x: Tensor) -> Tensor:
    return half(x).unsqueeze(2).mT.sin().view(-1, 1)


@pytest.mark.parametrize("program", [half, behind_half])
def test_a_view_of_one_image(program: Callable[[Tensor], Tensor]) -> None:
    image = torch.randn(1, 8, 4, 5)
    module = traced(program, image)
    assert as_told(module) != as_it_runs(module, image), "torch's fakes are right by now"
    fix_view_strides(module.graph, {})
    assert as_told(module) == as_it_runs(module, image)


def test_an_input_that_has_changed_its_strides_is_what_it_was_when_traced() -> None:
    image = torch.randn(1, 8, 4, 5)
    module = traced(half, image)
    (node,) = module.graph.find_nodes(op="placeholder")
    was = node.meta["val"]
    node.meta["val"] = now = was.new_empty_strided(was.shape, (160, 1, 40, 8))
    fix_view_strides(module.graph, {node.name: was})
    assert node.meta["val"] is now
    told = as_told(module)
    assert {name: told[name] for name in told if name != node.name} == {
        name: strides for name, strides in as_it_runs(module, image).items() if name != node.name
    }


def test_correct_strides_are_left_unchanged() -> None:
    module = traced(lambda x: x.view(2, -1).t().sin(), torch.randn(2, 8, 4, 5))
    before = {node: node.meta.get("val") for node in module.graph.nodes}
    fix_view_strides(module.graph, {})
    assert all(node.meta.get("val") is value for node, value in before.items())


def test_symbolic_sizes_stay_as_they_were_traced() -> None:
    module = make_fx(lambda x: x[:, : x.shape[1] // 2].view(x.shape[0], -1).sin(), tracing_mode="symbolic")(
        torch.randn(1, 8, 4, 5)
    )
    before = {node: node.meta.get("val") for node in module.graph.nodes}
    fix_view_strides(module.graph, {})
    assert all(node.meta.get("val") is value for node, value in before.items())


@given(
    st.lists(st.integers(1, 3), min_size=2, max_size=4),
    st.permutations(range(4)),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_views_of_all_kinds_of_images(sizes: list[int], order: list[int], cut: int, joined: int) -> None:
    rank = len(sizes)
    value = torch.randn(sizes).permute([dim for dim in order if dim < rank])

    def program(x: Tensor) -> tuple[Tensor, ...]:
        part = x.narrow(cut % rank, 0, max(1, x.shape[cut % rank] - 1))
        first = joined % (rank - 1)
        return part, part.flatten(first, first + 1).unsqueeze(0), part.reshape(-1)

    module = traced(program, value)
    fix_view_strides(module.graph, {})
    assert as_told(module) == as_it_runs(module, value)


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
    fix_view_storages(graph)
    for name in ("slice_1", "t", "unsqueeze"):
        assert memory(nodes[name]) == memory(nodes["exp"]), name
    assert nodes["unsqueeze"].meta["val"].shape == (1, 5, 3)
    assert nodes["unsqueeze"].meta["val"].stride() == torch.randn(4, 5)[1:].t().unsqueeze(0).stride()
    assert nodes["unsqueeze"].meta["val"].storage_offset() == 5
    assert memory(nodes["sin"]) != memory(nodes["exp"])


def test_unsafe_view_shares_memory_with_its_operand() -> None:
    graph = rerouted(lambda x: torch.ops.aten._unsafe_view(x.exp().clone(), [20]).sin(), torch.randn(4, 5))
    nodes = named(graph)
    fix_view_storages(graph)
    assert memory(nodes["_unsafe_view"]) == memory(nodes["exp"])


def test_parts() -> None:
    graph = rerouted(lambda x: torch.split(x.exp().clone(), 2)[1].sin(), torch.randn(4, 5))
    nodes = named(graph)
    fix_view_storages(graph)
    part = nodes["getitem_1"]
    assert memory(part) == memory(nodes["exp"])
    assert part.meta["val"].storage_offset() == 10


def test_a_copy_that_is_made_only_where_it_is_needed() -> None:
    """A dense operand may be given back as it is; one with gaps never is."""
    for cut, shares in ((lambda x: x.t(), True), (lambda x: x[:, ::2], False)):
        graph = rerouted(lambda x: cut(x.exp().clone()).neg(), torch.randn(4, 5))  # noqa: B023
        (pin,) = graph.find_nodes(op="call_function", target=torch.ops.aten.neg.default)
        pin.target = torch.ops.aten.contiguous.default
        fix_view_storages(graph)
        assert (memory(pin) == memory(named(graph)["exp"])) is shares


def test_views_in_their_operands_memory_are_left_alone() -> None:
    with FakeTensorMode() as mode:
        given = mode.from_tensor(torch.randn(4, 5))
        graph = make_fx(lambda x: x.exp().t().sin(), tracing_mode="fake")(given).graph
    before = {node.name: node.meta.get("val") for node in graph.nodes}
    fix_view_storages(graph)
    assert all(node.meta.get("val") is before[node.name] for node in graph.nodes)
