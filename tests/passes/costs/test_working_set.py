"""What a step goes through again and again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from frx_graph.passes.costs.working_set import estimate_working_set

WEIGHT, BIAS, IMAGE, RESULT = 8 * 4 * 9 * 4, 8 * 4, 2 * 4 * 8 * 8 * 4, 2 * 8 * 8 * 8 * 4


@pytest.mark.parametrize("layers", [1, 3])
def test_inference_uses_memory_again(analyse: Any, layers: int) -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), *(nn.Tanh() for _ in range(layers)))
    facts = analyse(model, torch.randn(2, 4, 8, 8)).facts
    assert estimate_working_set(facts) == WEIGHT + BIAS + IMAGE + 2 * RESULT


def test_training_keeps_what_the_backward_reads(analyse: Any) -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.Tanh(), nn.Tanh())
    facts = analyse(model, torch.randn(2, 4, 8, 8), train=True).facts
    assert estimate_working_set(facts) > WEIGHT + BIAS + IMAGE + 5 * RESULT
