from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import FEW_EXAMPLES
from torch import Tensor, nn

from frx_graph.capture.model import capture_model
from frx_graph.facts.build import build_graph_facts
from frx_graph.facts.graph_facts import GraphFacts, OpFacts
from frx_graph.facts.layout import make_contiguous_strides, make_ordered_strides
from frx_graph.passes.copies.stride_replay import (
    find_order_for_strides,
    have_same_strides,
    replay_chain,
    replay_operator,
)
from frx_graph.passes.copies.view_chain import trace_views

SHAPE = (2, 8, 6, 4)
CHANNELS_LAST = make_ordered_strides(SHAPE, (0, 2, 3, 1))


class Model(nn.Module):
    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)


def op_of(analyse: Any, operator: str, body: Any) -> tuple[Any, OpFacts]:
    facts = analyse(Model(body), torch.randn(SHAPE)).facts
    return facts, next(op for op in facts.ops if op.operator == operator)


def test_a_convolution_hands_channels_last_on(analyse: Any) -> None:
    facts, op = op_of(analyse, "aten.convolution", lambda m, x: m.conv(x))
    assert replay_operator(op, facts, {op.inputs[0]: CHANNELS_LAST}) == (CHANNELS_LAST,)


def test_a_view_that_would_need_a_copy_has_no_strides(analyse: Any) -> None:
    facts, op = op_of(analyse, "aten.view", lambda m, x: x.view(2, -1))
    assert replay_operator(op, facts, {"arg0_1": CHANNELS_LAST}) is None
    assert replay_operator(op, facts, {"arg0_1": make_contiguous_strides(SHAPE)}) == ((192, 1),)


def test_all_results_are_answered_for(analyse: Any) -> None:
    facts, op = op_of(analyse, "aten.split", lambda m, x: torch.cat(x.chunk(2, dim=1), dim=2))
    assert replay_operator(op, facts, {"arg0_1": CHANNELS_LAST}) == (CHANNELS_LAST, CHANNELS_LAST)


def test_replay_is_unknown_if_the_fake_differs_from_the_capture(analyse: Any) -> None:
    facts, op = op_of(analyse, "aten.relu", lambda m, x: x.relu())
    result = op.outputs[0]
    lying = replace(facts, values={**facts.values, result: replace(facts.values[result], strides=CHANNELS_LAST)})
    assert replay_operator(op, facts, {"arg0_1": CHANNELS_LAST}) == (CHANNELS_LAST,)
    assert replay_operator(op, lying, {"arg0_1": CHANNELS_LAST}) is None


@settings(FEW_EXAMPLES)
@given(order=st.permutations(range(4)), dims=st.permutations(range(4)))
def test_a_chain_gives_what_torch_gives(order: list[int], dims: list[int]) -> None:
    stored = make_ordered_strides(SHAPE, order)
    facts = permuted(tuple(dims))
    chain = trace_views(facts, facts.outputs[0])
    expected = torch.empty_strided(SHAPE, stored).permute(dims).unsqueeze(1).stride()
    assert replay_chain(facts, chain, stored) == expected


@functools.cache
def permuted(dims: tuple[int, ...]) -> GraphFacts:
    torch._dynamo.reset()
    capture = capture_model(Model(lambda m, x: x.permute(dims).unsqueeze(1)), (torch.randn(SHAPE),))
    return build_graph_facts(capture.graphs[0])


def test_the_order_that_makes_a_patch_embedding_contiguous(analyse: Any) -> None:
    facts, op = op_of(analyse, "aten.transpose", lambda m, x: m.conv(x).flatten(2).transpose(1, 2))
    value = op.outputs[0]
    assert find_order_for_strides(facts, value, make_contiguous_strides(facts.values[value].shape)) == (0, 2, 3, 1)


def test_no_order_makes_a_window_partition_contiguous(analyse: Any) -> None:
    facts, op = op_of(analyse, "aten.permute", lambda m, x: x.view(2, 8, 2, 3, 2, 2).permute(0, 1, 2, 4, 3, 5))
    value = op.outputs[0]
    assert find_order_for_strides(facts, value, make_contiguous_strides(facts.values[value].shape)) is None


def test_dimensions_of_size_one_have_no_stride() -> None:
    assert have_same_strides((2, 1, 3), (3, 3, 1), (3, 99, 1))
    assert not have_same_strides((2, 2, 3), (6, 3, 1), (6, 99, 1))
