"""Volumes that stay plain because a kernel is wrong on channels-last ones, and their neighbours, which do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from frx_graph.capture.captured_graph import Phase

DEPTH = 2
REASON = "oneDNN's gradient of its weight is wrong on channels-last volumes this shallow"


def program() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv3d(4, 4, 1), nn.ReLU(), nn.Conv3d(4, 8, 3, padding=1)).to(torch.bfloat16)


def conversions(rewrite: Any, model: nn.Module, volume: torch.Tensor, train: bool) -> tuple[set[int], bool]:
    """Channel strides of the images that the convolutions of the forward read, and whether the reason was given."""
    graph = rewrite(model, volume, train=train).graph(Phase.FORWARD)
    calls = [node for node in graph.after.nodes if str(node.target) == "aten.convolution.default"]
    strides = {call.args[0].meta["val"].stride(1) for call in calls}
    return strides, any(refusal.reason == REASON for refusal in graph.done.refused)


def test_a_shallow_volume_in_bf16_stays_plain_where_it_is_trained_on(rewrite: Any) -> None:
    volume = torch.randn(2, 4, DEPTH, 5, 4, dtype=torch.bfloat16)
    assert conversions(rewrite, program(), volume, train=True) == ({1, DEPTH * 5 * 4}, True)


@pytest.mark.parametrize(
    ("depth", "dtype", "train"),
    [(3, torch.bfloat16, True), (DEPTH, torch.float32, True), (DEPTH, torch.bfloat16, False)],
    ids=["as deep as the kernel", "fp32", "inference"],
)
def test_others_are_converted(rewrite: Any, depth: int, dtype: torch.dtype, train: bool) -> None:
    volume = torch.randn(2, 4, depth, 5, 4, dtype=dtype)
    assert conversions(rewrite, program().to(dtype), volume, train) == ({1}, False)


def test_without_padding_the_kernel_fits(rewrite: Any) -> None:
    model = nn.Sequential(nn.Conv3d(4, 4, 1), nn.ReLU(), nn.Conv3d(4, 8, (2, 3, 3))).to(torch.bfloat16)
    volume = torch.randn(2, 4, DEPTH, 5, 4, dtype=torch.bfloat16)
    assert conversions(rewrite, model, volume, train=True) == ({1}, False)
