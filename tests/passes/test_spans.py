"""The picture of a graph: where its spans begin, how many there are, and that they hold all of the step."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from frx_graph.capture.captured_graph import Phase
from frx_graph.passes.costs.operator_costs import count_step_traffic
from frx_graph.passes.spans import MAX_SPANS, NO_LAYOUT, build_layout_spans
from frx_graph.records import Basis, Copy, CopyKind, OperandRole

IMAGE = torch.randn(2, 8, 6, 6)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)))


class Network(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def test_spans_follow_modules_as_deep_as_the_limit_allows(analyse):
    spans = build_layout_spans(analyse(Network(2), IMAGE).facts, ())

    assert [span.module_path for span in spans] == [
        "model.blocks.0.conv",
        "model.blocks.0.norm",
        "model.blocks.0",
        "model.blocks.1.conv",
        "model.blocks.1.norm",
        "model.blocks.1",
        "model",
        "model.head",
    ]
    assert [span.layout for span in spans[-2:]] == [NO_LAYOUT, NO_LAYOUT]


def test_backward_spans_follow_modules_too(analyse):
    spans = build_layout_spans(analyse(Network(1), IMAGE, train=True).facts, ())

    backward = {span.module_path for span in spans if span.phase is Phase.BACKWARD}
    assert backward >= {"model.blocks.0.conv", "model.blocks.0.norm", "model.head"}


def test_a_deep_network_is_shown_by_its_blocks(analyse):
    blocks = MAX_SPANS // 3 + 1

    spans = build_layout_spans(analyse(Network(blocks), IMAGE).facts, ())

    assert [span.module_path for span in spans] == [
        *(f"model.blocks.{index}" for index in range(blocks)),
        "model",
        "model.head",
    ]


@pytest.mark.integration
def test_no_picture_is_larger_than_the_limit(analyse):
    spans = build_layout_spans(analyse(Network(MAX_SPANS + 1), IMAGE).facts, ())

    assert [span.module_path for span in spans] == ["model.blocks", "model", "model.head"]


@pytest.mark.parametrize("train", [False, True])
def test_spans_hold_the_traffic_of_the_whole_step(analyse, train):
    facts = analyse(Network(3), IMAGE, train=train).facts

    spans = build_layout_spans(facts, ())

    assert sum(span.bytes for span in spans) == count_step_traffic(facts)
    assert {span.phase for span in spans} == ({Phase.FORWARD, Phase.BACKWARD} if train else {Phase.FORWARD})


def test_spans_count_every_run_of_the_graph(analyse):
    facts = analyse(Network(1), IMAGE).facts

    once, twice = (build_layout_spans(replace(facts, calls=calls), ()) for calls in (1, 2))

    assert [span.bytes for span in twice] == [2 * span.bytes for span in once]


def test_a_change_of_layout_begins_a_span(analyse):
    class Changes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = (x + 1).to(memory_format=torch.channels_last)
            return torch.relu(y).contiguous() * 2

    spans = build_layout_spans(analyse(Changes(), IMAGE).facts, ())

    assert [(span.layout, span.ops) for span in spans] == [("plain", 1), ("channels_last", 2), ("plain", 2)]


def test_an_image_of_one_pixel_names_no_layout(analyse):
    spans = build_layout_spans(analyse(nn.ReLU(), torch.randn(2, 8, 1, 1)).facts, ())

    assert [span.layout for span in spans] == [NO_LAYOUT]


def test_copies_are_counted_where_they_are_made(analyse):
    facts = analyse(Network(1), IMAGE).facts
    convolution, norm = (op for op in facts.ops if op.operator in ("aten.convolution", "aten.native_batch_norm"))

    def copy(op, kind):
        return Copy(
            node=op.node,
            site=op.site,
            operator=op.operator,
            kind=kind,
            role=OperandRole.INPUT,
            value=op.inputs[0],
            bytes=1000,
            count=2,
            phase=op.phase,
            basis=Basis.PREDICTED,
            cause="",
        )

    plain = build_layout_spans(facts, ())
    spans = build_layout_spans(facts, (copy(convolution, CopyKind.REORDER), copy(norm, CopyKind.EXPLICIT)))

    assert [(span.copies, span.copy_bytes) for span in spans[:3]] == [(2, 1000), (2, 1000), (0, 0)]
    # What an operator copies inside comes on top; an explicit copy is an operator of the graph and counted already.
    assert [after.bytes - before.bytes for before, after in zip(plain, spans, strict=True)][:3] == [1000, 0, 0]
