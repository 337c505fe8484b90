"""A forward that was rewritten saves in another order; its backward must be right also where it is left alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from frx_graph import rewriting
from frx_graph.capture.captured_graph import Phase
from frx_graph.errors import RewriteError
from frx_graph.passes.rewrites import order_choice, propagate_layout


@pytest.fixture
def no_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewriting, "REWRITES", (propagate_layout.REWRITE,))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1))


@pytest.mark.usefixtures("no_backward")
def test_gradients_keep_their_strides(rewrite: Any) -> None:
    # The fixture compares them: the 1x1 weight's would be (8, 1, 8, 8).
    graph = rewrite(model(), torch.randn(2, 4, 6, 5), train=True).graph(Phase.BACKWARD)
    saved = [tuple(n.meta["val"].stride()) for n in graph.after.find_nodes(op="placeholder") if n.name == "relu"]
    assert saved == [(96, 1, 24, 8)]
    assert not graph.done.applied


@pytest.mark.usefixtures("no_backward")
def test_what_cannot_run_on_them_gets_them_as_they_were(rewrite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own, asked = order_choice.relayout, list[bool]()

    def relayout(graph: Any, demands: Any, **how: Any) -> tuple[str, ...]:
        if how["given"]:
            asked.append(bool(demands))
            if not demands:
                raise RewriteError("planted")
        return own(graph, demands, **how)

    monkeypatch.setattr(order_choice, "relayout", relayout)
    graph = rewrite(model(), torch.randn(2, 4, 6, 5), train=True).graph(Phase.BACKWARD)
    assert asked == [False, True]
    assert graph.done.conversions
    (call, *_) = [n for n in graph.after.nodes if str(n.target) == "aten.convolution_backward.default"]
    assert call.args[1].meta["val"].stride() == (96, 12, 3, 1)
