"""`assert_no_layout_copies`: which copies fail a test, and which are allowed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from frx_graph.errors import TargetError
from frx_graph.testing import assert_no_layout_copies


class Churn(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).contiguous() + 1


class Clean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu() + 1


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("planted")


def test_a_copy_fails_and_is_named() -> None:
    with pytest.raises(AssertionError, match=r"1 layout copy in a step.*\n.*test_layout_assertion\.py:15: aten\.clone"):
        assert_no_layout_copies(Churn(), (torch.randn(2, 32, 64),))


@pytest.mark.parametrize("name", ["aten.clone", "test_layout_assertion.py", "test_layout_assertion.py:15"])
def test_a_known_copy_is_allowed(name: str) -> None:
    assert_no_layout_copies(Churn(), (torch.randn(2, 32, 64),), allow=[name])
    with pytest.raises(AssertionError, match="no layout copy has that name"):
        assert_no_layout_copies(Clean(), (torch.randn(2, 4),), allow=[name])


@pytest.mark.parametrize("train", [False, True])
def test_a_model_without_copies_passes(train: bool) -> None:
    x = torch.randn(2, 4, requires_grad=train)
    assert_no_layout_copies(Clean(), (x,), train=train)


def test_a_model_that_fails_is_no_pass() -> None:
    with pytest.raises(TargetError, match="planted"):
        assert_no_layout_copies(Fails(), (torch.randn(2, 4),))
