"""Images that stay plain because a kernel is wrong on channels-last ones, and their neighbours, which do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from frx_graph.capture.captured_graph import Phase

DEPTH = 2
REASON = "oneDNN computes wrong values on channels-last images of these sizes"


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


def grouped(dtype: torch.dtype, channels: int = 1) -> nn.Conv3d:
    torch.manual_seed(0)
    return nn.Conv3d(2 * channels, 4 * channels, 3, padding=1, groups=2).to(dtype)


def skip_if_eager_is_wrong(model: nn.Conv3d, volume: torch.Tensor) -> None:
    """With AMX, oneDNN computes such convolutions wrongly on plain images too (torch 2.15)."""
    with torch.no_grad():
        exact = nn.functional.conv3d(
            volume.double(), model.weight.double(), model.bias.double(), padding=1, groups=model.groups
        )
        if not torch.allclose(model(volume).double(), exact, rtol=0.05, atol=0.05):
            pytest.skip("eager computes wrong values on this CPU")


@pytest.mark.parametrize(
    ("model", "stays"),
    [
        (grouped(torch.bfloat16), True),
        (grouped(torch.bfloat16, 2), False),
        (grouped(torch.float32), False),
        (nn.Conv3d(4, 4, 3, padding=1, groups=4).to(torch.bfloat16), False),
    ],
    ids=["one channel in a group", "two channels", "fp32", "depthwise"],
)
def test_groups_of_one_channel_in_bf16_stay_plain(rewrite: Any, model: nn.Conv3d, stays: bool) -> None:
    channels, dtype = model.in_channels, model.weight.dtype
    volume = torch.randn(1, channels, 1, 5, 5, dtype=dtype)
    skip_if_eager_is_wrong(model, volume)
    before = nn.Conv3d(channels, channels, 1).to(dtype)
    found = conversions(rewrite, nn.Sequential(before, nn.ReLU(), model), volume, train=False)
    assert found == ({1, 25} if stays else {1}, stays)


def test_they_are_not_packed_either(freeze: Any) -> None:
    volume = torch.randn(1, 2, 1, 5, 5, dtype=torch.bfloat16)
    model = grouped(torch.bfloat16)
    skip_if_eager_is_wrong(model, volume)
    frozen = freeze(model, tolerance=0.05)
    frozen.run(volume)
    assert "oneDNN computes wrong values with weights packed for these sizes" in frozen.reasons("blocked_layout")


@pytest.mark.parametrize("width", [2, 3])
def test_an_image_that_is_narrower_than_the_kernel_stays_plain(rewrite: Any, width: int) -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 3, padding=1)).to(torch.bfloat16)
    image = torch.randn(2, 4, 6, width, dtype=torch.bfloat16)
    stays = width < 3
    assert conversions(rewrite, model, image, train=True) == ({1, 6 * width} if stays else {1}, stays)


@pytest.mark.parametrize("padding", [0, 1])
def test_so_does_one_that_a_transposed_convolution_reads(rewrite: Any, padding: int) -> None:
    model = nn.Sequential(nn.Conv3d(2, 2, 1), nn.ConvTranspose3d(2, 3, 5, padding=padding))
    volume = torch.randn(1, 2, 6, 3, 6)
    assert conversions(rewrite, model, volume, train=True)[1] is (padding > 0)
