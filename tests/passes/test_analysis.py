"""Precision settings are read whichever of torch's two interfaces a program used."""

from __future__ import annotations

import pytest
import torch

from frx_graph.passes.analysis import PrecisionSettings


@pytest.mark.parametrize(("set_to", "tf32"), [("tf32", True), ("ieee", False)])
def test_the_newer_switches_are_read(set_to: str, tf32: bool) -> None:
    torch.backends.cuda.matmul.fp32_precision = set_to
    torch.backends.cudnn.conv.fp32_precision = set_to
    settings = PrecisionSettings.read_current("cpu")
    assert settings.matmul_tf32 is tf32
    assert settings.cudnn_tf32 is tf32


def test_autocast_is_seen() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert PrecisionSettings.read_current("cpu").autocast
    assert not PrecisionSettings.read_current("cpu").autocast


def test_without_either_switch_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise RuntimeError("mixed")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuse)
    monkeypatch.setattr(torch.backends.cuda, "matmul", object())
    monkeypatch.setattr(torch.backends, "cudnn", object())
    settings = PrecisionSettings.read_current("cpu")
    assert not settings.matmul_tf32
    assert not settings.cudnn_tf32
