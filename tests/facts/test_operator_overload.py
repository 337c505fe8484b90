"""What a call gives for an argument, by the argument's name."""

from typing import Any

import pytest
import torch

from frx_graph.capture.call_site import UNKNOWN_SITE
from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import OpFacts, ValueRef
from frx_graph.facts.operator_overload import find_overload, get_argument


def call(target: str, *args: Any, **kwargs: Any) -> OpFacts:
    return OpFacts(
        node="node",
        target=target,
        operator=target.rpartition(".")[0],
        args=(ValueRef("x"), *args),
        kwargs=kwargs,
        inputs=("x",),
        outputs=("out",),
        mutates=(),
        phase=Phase.FORWARD,
        site=UNKNOWN_SITE,
    )


@pytest.mark.parametrize(
    ("op", "name", "value"),
    [
        (call("aten.mean.dim", (1, 2), True), "keepdim", True),
        (call("aten.mean.dim", (1, 2)), "dim", (1, 2)),
        (call("aten.mean.dim", (1, 2)), "keepdim", False),  # the schema's default
        (call("aten.amax.default"), "dim", ()),  # a list by default
        (call("aten.mean.dim", dim=(1,)), "dim", (1,)),  # by keyword
        (call("aten.mean.default"), "dim", None),  # no such argument
        (call("aten.mean.dim"), "self", ValueRef("x")),
        (call("aten.var.correction", (1,), correction=0, keepdim=True), "keepdim", True),  # by keyword only
        (call("aten.var.correction", (1,), True, True), "keepdim", False),
        (call("mine.nothing.default", 1), "dim", None),
        (call("mine.nothing.default", dim=1), "dim", 1),
    ],
)
def test_an_argument_by_its_name(op: OpFacts, name: str, value: Any) -> None:
    assert get_argument(op, name) == value


def test_an_overload_by_its_name() -> None:
    assert find_overload("aten.sum.dim_IntList") is torch.ops.aten.sum.dim_IntList
    assert find_overload("aten.sum.sideways") is None
    assert find_overload("mine.nothing.default") is None
