"""What is not a call, or not one that computes anything, is refused before anything runs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import frx_graph
from frx_graph.capture.model_call import check_call
from frx_graph.errors import TargetError

META = torch.empty(2, device="meta")


@pytest.mark.parametrize(
    ("model", "args", "kwargs", "said"),
    [
        (3, (), None, "cannot be called"),
        (len, torch.ones(2), None, "args is a Tensor"),
        (len, nn.Parameter(torch.ones(2)), None, "args is a Parameter"),
        (len, {"x": 1}, None, "args is a dict"),
        (len, "x", None, "args is a str"),
        (len, (), [1], "kwargs is a list"),
        (nn.Linear(2, 2, device="meta"), (), None, "model.weight is on the meta device"),
        (nn.BatchNorm1d(2, affine=False, device="meta"), (), None, "model.running_mean is on the meta device"),
        (len, ([1, {"x": META}],), None, r"args\[0\]\[1\]\['x'\] is on the meta device"),
        (len, (), {"x": META}, r"kwargs\['x'\] is on the meta device"),
    ],
)
def test_a_wrong_call_is_one_clear_error(model: object, args: object, kwargs: object, said: str) -> None:
    with pytest.raises(TargetError, match=said) as caught:
        check_call(model, args, kwargs)
    assert "\n" not in str(caught.value)


def test_tuples_and_lists_of_anything_are_calls() -> None:
    check_call(len, (torch.ones(2), None, object()), {"x": 1})
    check_call(nn.Linear(2, 2), [torch.ones(2)], None)


def test_advise_checks_first() -> None:
    with pytest.raises(TargetError, match="for one argument write"):
        frx_graph.advise(nn.Linear(2, 2), torch.ones(1, 2))  # type: ignore[arg-type]


def test_prepare_checks_as_advise_does() -> None:
    image = torch.ones(2, 3, 8, 8)
    with pytest.raises(TargetError, match=r"args is a Tensor, .* \(for one argument write prepare\(model, \(x,\)\)\)"):
        frx_graph.prepare(nn.Conv2d(3, 3, 3), image)  # type: ignore[arg-type]
    with pytest.raises(TargetError, match="the model raised"):
        frx_graph.prepare(nn.Conv2d(3, 3, 3), (image, image))
