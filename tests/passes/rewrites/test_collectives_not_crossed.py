"""What communicates between processes, and custom operators, get what they were traced with, whatever is rewritten
around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch._ops import OpOverload

from frx_graph.capture.call_site import UNKNOWN_SITE
from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.build import _read_operator
from frx_graph.facts.graph_facts import OpFacts
from frx_graph.facts.operator_families import is_collective
from frx_graph.passes.rewrites.meta_strides.stride_sensitivity import requires_traced_strides

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch was built without torch.distributed")

NAMESPACES = ("_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "_dtensor", "c10d", "symm_mem")


@pytest.fixture
def group() -> Iterator[str]:
    """The name of a process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD.group_name
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def doubled() -> Iterator[Callable[[Tensor], Tensor]]:
    """A custom operator that says it is pointwise, and does not say that it takes any layout."""
    library = torch.library.Library("frx_test_collectives", "DEF")
    library.define("doubled(Tensor x) -> Tensor", tags=(torch.Tag.pointwise,))
    library.impl("doubled", lambda x: x * 2, "CompositeExplicitAutograd")
    yield torch.ops.frx_test_collectives.doubled
    library._destroy()


def overloads() -> list[OpOverload]:
    found = []
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        if namespace in NAMESPACES:
            packet = getattr(getattr(torch.ops, namespace), name)
            found.append(getattr(packet, schema.overload_name or "default"))
    return found


class Between(nn.Module):
    """Convolutions that want channels-last, around what must not know."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.between(self.first(x).relu()).relu())


def operand_strides(graph: torch.fx.Graph, ours: Callable[[torch.fx.Node], bool]) -> list[tuple[int, ...]]:
    return [
        tuple(operand.meta["val"].stride()) for node in graph.nodes if ours(node) for operand in node.all_input_nodes
    ]


def is_opaque(node: torch.fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target.namespace not in ("aten", "prims")


STARTS: dict[str, Callable[[Tensor, str], Tensor]] = {
    "all_reduce": lambda x, name: torch.ops._c10d_functional.all_reduce(x, "sum", name),
    "all_gather": lambda x, name: torch.ops._c10d_functional.all_gather_into_tensor(x, 1, name),
    "reduce_scatter": lambda x, name: torch.ops._c10d_functional.reduce_scatter_tensor(x, "sum", 1, name),
    "broadcast": lambda x, name: torch.ops._c10d_functional.broadcast(x, 0, name),
}


def waited(kind: str, group: str) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.ops._c10d_functional.wait_tensor(STARTS[kind](x, group))


# Fakes say that `broadcast` keeps channels-last, and it makes plain: no stride of its own to compare with.
FORMATS = [
    (kind, memory_format)
    for kind in STARTS
    for memory_format in (torch.contiguous_format, torch.channels_last)
    if (kind, memory_format) != ("broadcast", torch.channels_last)
]


@pytest.mark.parametrize(("kind", "memory_format"), FORMATS)
def test_a_collective_reads_and_makes_the_strides_that_it_was_traced_with(
    rewrite, group: str, kind: str, memory_format: torch.memory_format
) -> None:
    model = Between(waited(kind, group)).eval()
    (graph,) = rewrite(model, torch.randn(2, 8, 6, 6).to(memory_format=memory_format)).graphs
    assert any(candidate.rewrite == "propagate_layout" for candidate in graph.done.applied)
    assert len(operand_strides(graph.after, is_opaque)) == 2
    assert operand_strides(graph.after, is_opaque) == operand_strides(graph.before, is_opaque)


def test_a_pointwise_custom_operator_reads_what_it_was_traced_with(rewrite, doubled) -> None:
    (graph,) = rewrite(Between(doubled).eval(), torch.randn(2, 8, 6, 6)).graphs
    assert any(candidate.rewrite == "propagate_layout" for candidate in graph.done.applied)
    assert operand_strides(graph.after, is_opaque) == operand_strides(graph.before, is_opaque) == [(288, 36, 6, 1)]


def test_without_anything_between_the_region_is_one(rewrite) -> None:
    (graph,) = rewrite(Between(lambda x: x * 2).eval(), torch.randn(2, 8, 6, 6)).graphs
    assert graph.strides("aten.mul_.Tensor") == [(288, 1, 48, 8)]
    assert graph.targets().count("aten.clone.default") == 2


@pytest.mark.parametrize("overload", overloads(), ids=str)
def test_every_collective_requires_traced_strides(overload: OpOverload) -> None:
    facts = op_facts(overload)
    assert requires_traced_strides(facts)
    assert is_collective(facts.operator)


def op_facts(overload: OpOverload) -> OpFacts:
    return OpFacts(
        node="node",
        target=str(overload),
        operator=str(overload.overloadpacket),
        args=(),
        kwargs={},
        inputs=(),
        outputs=(),
        mutates=(),
        phase=Phase.FORWARD,
        site=UNKNOWN_SITE,
        opaque=_read_operator(overload).opaque,
    )


def sent_and_read(kind: str, group: str) -> Callable[[Tensor], Tensor]:
    def program(x: Tensor) -> Tensor:
        sent = x.exp()
        started = STARTS[kind](sent, group)
        read = sent.tanh()
        return torch.ops._c10d_functional.wait_tensor(started) + read

    return program


@pytest.mark.parametrize("kind", STARTS)
def test_what_a_collective_still_reads_is_not_written_into(rewrite, group: str, kind: str) -> None:
    (graph,) = rewrite(sent_and_read(kind, group), torch.randn(4, 5)).graphs
    assert "aten.tanh.default" in graph.targets()


def test_a_view_that_a_collective_still_reads_is_not_written_through(rewrite, group: str) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        sent = x.exp()
        started = STARTS["all_gather"](sent.view(20), group)
        return sent.tanh(), torch.ops._c10d_functional.wait_tensor(started)

    (graph,) = rewrite(program, torch.randn(4, 5)).graphs
    assert "aten.tanh.default" in graph.targets()


def test_what_no_collective_reads_is_written_into_beside_one(rewrite, group: str) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.exp().tanh(), waited("all_gather", group)(x)

    (graph,) = rewrite(program, torch.randn(4, 5)).graphs
    assert "aten.tanh_.default" in graph.targets()
