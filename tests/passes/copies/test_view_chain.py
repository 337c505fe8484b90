from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from frx_graph.capture.call_site import UNKNOWN_SITE, CallSite
from frx_graph.passes.copies.view_chain import (
    compute_value_key,
    describe_origin,
    find_stride_origin,
    format_call,
    format_location,
    trace_views,
)

X = torch.randn(2, 6, 4, 8)


class Views(nn.Module):
    def __init__(self, views: Any) -> None:
        super().__init__()
        self.views = views

    def forward(self, x: Tensor) -> Any:
        return self.views(x)


def outputs(analyse: Any, views: Any, x: Tensor = X) -> tuple[Any, tuple[str, ...]]:
    facts = analyse(Views(views), x).facts
    return facts, facts.outputs


def test_chain_ends_at_the_first_non_view(analyse: Any) -> None:
    facts, (value,) = outputs(analyse, lambda x: (x + 1).flatten(1, 2).transpose(1, 2)[:, 1:])
    chain = trace_views(facts, value)
    assert chain.base == "add"
    assert [op.operator for op in chain.views] == ["aten.view", "aten.transpose", "aten.slice"]
    assert chain.value == value


def test_unsafe_view_is_a_view(analyse: Any) -> None:
    facts, (value,) = outputs(analyse, lambda x: x.transpose(1, 2).reshape(-1))
    assert [op.operator for op in trace_views(facts, value).views] == ["aten._unsafe_view"]
    assert trace_views(facts, value).base == "clone"


def test_the_same_elements_have_the_same_identity_whatever_they_are_called(analyse: Any) -> None:
    facts, _ = outputs(analyse, lambda x: x.mT.sum() + x.expand(2, 6, 4, 8).mT.sum())
    first, second = (op.outputs[0] for op in facts.ops if op.operator == "aten.transpose")
    assert compute_value_key(facts, first) == compute_value_key(facts, second)


def test_parts_of_one_tensor_have_different_identities(analyse: Any) -> None:
    facts, values = outputs(analyse, lambda x: (*x.chunk(2, dim=1), x[:, 1:4], *x.unbind(0)))
    assert len({compute_value_key(facts, value) for value in values}) == len(values) == 5


def test_the_origin_of_strides_is_the_view_that_broke_them(analyse: Any) -> None:
    facts, (value,) = outputs(analyse, lambda x: (x + 1).flatten(1, 2).transpose(1, 2).unsqueeze(0).relu() * 2)
    origin = find_stride_origin(facts, value)
    assert origin is not None and origin.op is not None
    assert format_call(origin.op) == "transpose(1, 2)"
    assert origin.value == "view"
    assert describe_origin(facts, origin).startswith("made so by `transpose(1, 2)` in test_view_chain.py:")


def test_origin_may_be_outside_the_graph(analyse: Any) -> None:
    facts, (value,) = outputs(analyse, lambda x: x.relu(), torch.randn(2, 3, 4).transpose(1, 2))
    origin = find_stride_origin(facts, value)
    assert origin is not None
    assert origin.op is None
    assert describe_origin(facts, origin) == "it comes into the graph that way as x"


def test_contiguous_values_have_no_origin(analyse: Any) -> None:
    facts, (value,) = outputs(analyse, lambda x: x.transpose(1, 2).transpose(1, 2))
    assert find_stride_origin(facts, value) is None


def test_calls_read_as_they_are_written(analyse: Any) -> None:
    facts, (value,) = outputs(analyse, lambda x: x.permute(0, 2, 3, 1))
    assert format_call(facts.get_producer(value)) == "permute(0, 2, 3, 1)"


def test_a_site_without_a_line_is_named_by_its_module() -> None:
    assert format_location(CallSite("/a/net.py", 7, "forward", "model.norm")) == "net.py:7"
    assert format_location(CallSite("<unknown>", 0, "<unknown>", "model.norm")) == "`model.norm`"
    assert format_location(UNKNOWN_SITE) == "code that torch runs for it"
