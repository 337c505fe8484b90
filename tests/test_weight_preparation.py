"""What `prepare` left as it was comes with the reason."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import frx_graph
from frx_graph import anchor_times
from frx_graph.errors import EvidenceError

IMAGE = torch.ones(1, 8, 6, 6)


def reasons(monkeypatch: pytest.MonkeyPatch, **given: object) -> dict[str, str]:
    """By what was left, with these functions of `anchor_times` in place of those that measure."""
    for name, function in given.items():
        monkeypatch.setattr(anchor_times, name, function)
    prepared = frx_graph.prepare(nn.Sequential(nn.Conv2d(8, 8, 3)), (IMAGE,))
    assert prepared.converted == {}
    return {refusal.subject: refusal.reason for refusal in prepared.refused}


def test_an_unknown_bandwidth_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_device: str) -> None:
        raise EvidenceError("it cannot be measured")

    found = reasons(monkeypatch, device_profile=unknown)
    assert list(found) == ["preconvert_weights"]
    assert "bandwidth is not known" in found["preconvert_weights"]


def test_a_convolution_that_was_not_timed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    found = reasons(monkeypatch, bandwidth_of=lambda _facts: 1e10, anchor_seconds=lambda *_args, **_how: {})
    assert list(found) == ["model.0.weight"]
    assert "could not be measured" in found["model.0.weight"]


def test_of_a_weight_that_lies_best_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain_is_faster(subject, *, prepared):
        return {anchor.op.node: {(0, 1, 2, 3): 1.0, (0, 2, 3, 1): 2.0} for anchor in subject.anchors}

    assert reasons(monkeypatch, bandwidth_of=lambda _facts: 1e10, anchor_seconds=plain_is_faster) == {}


def test_a_function_has_no_weights() -> None:
    prepared = frx_graph.prepare(torch.relu, (IMAGE,))
    assert [refusal.reason for refusal in prepared.refused] == ["a function has no parameters: give the module itself"]
