"""Padding that an argument of the convolution would save: symmetric, zero, and read by convolutions alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frx_graph.passes.detectors.padding_copy import DETECTOR
from frx_graph.records import Finding


class Padded(nn.Module):
    """Pads by hand, then convolves; `times` in a row, at one call site."""

    def __init__(self, pad: tuple[int, ...], *, value: float = 0.0, own: int = 0, times: int = 1) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=own) for _ in range(times))
        self.pad, self.value = pad, value

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(F.pad(x, self.pad, value=self.value)))
        return x


@pytest.fixture
def detected(analyse):
    def detect(model: nn.Module, *args: Tensor, **fields) -> list[Finding]:
        return list(DETECTOR.detect(analyse(model, *args, **fields)))

    return detect


def image() -> Tensor:
    return torch.randn(2, 4, 16, 16)


@pytest.mark.parametrize("inner", ["eager", "inductor"])
@pytest.mark.parametrize("train", [False, True])
def test_symmetric_zeros(detected, inner: str, train: bool) -> None:
    (finding,) = detected(Padded((1, 1, 2, 2), own=1).train(train), image(), inner=inner)
    assert (finding.rule, finding.count_per_step) == ("FRX016", 1)
    assert finding.bytes_per_step == 4 * 2 * 4 * (16 * 16 + 20 * 18)
    assert finding.fix.endswith("padding=(3, 2)")
    assert finding.site.file.endswith("test_padding_copy.py")


def test_one_site_is_one_finding(detected) -> None:
    (finding,) = detected(Padded((1, 1, 1, 1), times=3), image())
    assert finding.count_per_step == 3


@pytest.mark.parametrize(
    "model",
    [
        Padded((0, 1, 0, 1)),
        Padded((1, 1, 1, 1), value=1.0),
        Padded((0, 0, 0, 0)),
        Padded((-1, -1, 0, 0)),
        nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(4, 4, 3)),
        nn.Sequential(nn.ZeroPad2d(1), nn.MaxPool2d(3)),
        nn.Sequential(nn.ZeroPad2d(1), nn.ConvTranspose2d(4, 4, 3)),
        nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()),
    ],
)
def test_padding_that_no_argument_adds(detected, model: nn.Module) -> None:
    assert detected(model, image()) == []


def test_a_padded_image_that_others_read(detected) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(4, 4, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            padded = F.pad(x, (1, 1, 1, 1))
            return self.layer(padded), padded.sum()

    assert detected(Twice(), image()) == []


class Readers(nn.Module):
    """Two convolutions of one padded image, with padding of their own."""

    def __init__(self, *own: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=one) for one in own)

    def forward(self, x: Tensor) -> list[Tensor]:
        padded = F.pad(x, (1, 1, 1, 1))
        return [layer(padded) for layer in self.layers]


@pytest.mark.parametrize(
    ("own", "fix"),
    [
        ((1, 1), "give the convolution behind it padding=(2, 2)"),
        ((1, 2), "add (1, 1) to the padding of each convolution behind it"),
    ],
)
def test_every_reader_gets_its_padding(detected, own: tuple[int, ...], fix: str) -> None:
    (finding,) = detected(Readers(*own), image())
    assert finding.fix == f"leave out the padding, and {fix}"
    assert finding.evidence[0].text.startswith("1 padded copy that only convolutions read: ")
