"""One value that is cast again and again: reported once, with what all casts but the first move."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from frx_graph.passes.detectors.repeated_cast import DETECTOR
from frx_graph.records import Finding

BYTES = 64 * 64 * (4 + 2)


class Loop(nn.Module):
    """A parameter that is cast in each turn of a loop, or once before it."""

    def __init__(self, *, once: bool = False, turns: int = 6) -> None:
        super().__init__()
        self.once, self.turns = once, turns
        self.weight = nn.Parameter(torch.randn(64, 64))

    def forward(self, x: Tensor) -> Tensor:
        kept = self.weight.to(torch.bfloat16) if self.once else None
        for _ in range(self.turns):
            x = torch.tanh(x @ (self.weight.to(torch.bfloat16) if kept is None else kept))
        return x


class Autocast(nn.Module):
    def __init__(self, *, cache: bool) -> None:
        super().__init__()
        self.linear, self.cache = nn.Linear(64, 64, bias=False), cache

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=self.cache):
            for _ in range(3):
                x = torch.tanh(self.linear(x))
        return x


@pytest.fixture
def detected(analyse):
    def detect(model: nn.Module, *args: Tensor, **fields) -> list[Finding]:
        return list(DETECTOR.detect(analyse(model, *args, **fields)))

    return detect


def half(*shape: int) -> Tensor:
    return torch.randn(*shape).bfloat16()


def test_a_parameter_that_is_cast_in_each_turn(detected) -> None:
    (finding,) = detected(Loop().eval(), half(8, 64))
    assert (finding.rule, finding.title) == ("FRX017", "Parameter cast to bfloat16 6 times a call")
    assert (finding.count_per_step, finding.bytes_per_step) == (6, 5 * BYTES)
    assert "5 of them" in finding.evidence[0].text
    assert "`model.weight`" in finding.evidence[0].text
    assert finding.site.file.endswith("test_repeated_cast.py")
    assert "or store it as torch.bfloat16" in finding.fix


@pytest.mark.parametrize("model", [Loop(once=True), Loop(turns=1)])
def test_a_parameter_that_is_cast_once(detected, model: nn.Module) -> None:
    assert detected(model.eval(), half(8, 64)) == []


def test_casts_to_several_dtypes_are_not_the_same(detected) -> None:
    class Both(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.to(torch.bfloat16).float() + x.to(torch.float64).float()

    assert detected(Both(), torch.randn(8, 64)) == []


def test_an_activation_that_is_cast_twice(detected) -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.to(torch.float64).sin() + x.to(torch.float64).cos()

    (finding,) = detected(Twice(), torch.randn(8, 64))
    assert finding.title == "Value cast to float64 2 times a call"
    assert finding.bytes_per_step == 8 * 64 * (4 + 8)
    assert "use that in all places" in finding.fix


def test_inductor_merges_equal_casts(detected) -> None:
    assert detected(Loop().eval(), half(8, 64), inner="inductor") == []


def test_autocast_without_its_cache(detected) -> None:
    found = detected(Autocast(cache=False).eval(), torch.randn(8, 64))
    assert [one.title for one in found] == ["Parameter cast to bfloat16 3 times a call"]
    assert "cache_enabled=True" in found[0].fix
