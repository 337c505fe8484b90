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

from frx_graph.passes.rewrites.meta_strides.fix_view_strides import correct_views


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
    correct_views(module.graph, {})
    assert as_told(module) == as_it_runs(module, image)


def test_an_input_that_has_changed_its_strides_is_what_it_was_when_traced() -> None:
    image = torch.randn(1, 8, 4, 5)
    module = traced(half, image)
    (node,) = module.graph.find_nodes(op="placeholder")
    was = node.meta["val"]
    node.meta["val"] = now = was.new_empty_strided(was.shape, (160, 1, 40, 8))
    correct_views(module.graph, {node.name: was})
    assert node.meta["val"] is now
    told = as_told(module)
    assert {name: told[name] for name in told if name != node.name} == {
        name: strides for name, strides in as_it_runs(module, image).items() if name != node.name
    }


def test_what_is_right_is_left_alone() -> None:
    module = traced(lambda x: x.view(2, -1).t().sin(), torch.randn(2, 8, 4, 5))
    before = {node: node.meta.get("val") for node in module.graph.nodes}
    correct_views(module.graph, {})
    assert all(node.meta.get("val") is value for node, value in before.items())


def test_symbolic_sizes_stay_as_they_were_traced() -> None:
    module = make_fx(lambda x: x[:, : x.shape[1] // 2].view(x.shape[0], -1).sin(), tracing_mode="symbolic")(
        torch.randn(1, 8, 4, 5)
    )
    before = {node: node.meta.get("val") for node in module.graph.nodes}
    correct_views(module.graph, {})
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
    correct_views(module.graph, {})
    assert as_told(module) == as_it_runs(module, value)
