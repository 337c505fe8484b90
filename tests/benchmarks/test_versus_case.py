"""The step of a comparison, and the check that every arm has to pass."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from versus_arms import Inner
from versus_case import Case, Expected, Mode, build, loss, outcome, step_of, without_dropout
from zoo_entry import BATCH, Built, Group, ZooEntry, seeded

CPU = torch.device("cpu")


class Small(nn.Module):
    """A convolution whose bias a batch norm takes away again, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 4)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        features = self.drop(torch.relu(self.norm(self.conv(x))))
        return {"logits": self.head(features.mean((2, 3))) * scale, "index": features.flatten(1).argmax(1)}


def small(train: bool = False, batch: int = BATCH) -> Built:
    with seeded():
        return Small().train(train), (torch.randn(batch, 3, 9, 9),), {"scale": 2.0}


ENTRY = ZooEntry("small", small, Group.WRITTEN)
CASE = Case(ENTRY, Mode.TRAINING, 4, "fp32", Inner.EAGER)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("mode", list(Mode))
def test_plain_eager_passes_its_own_check(mode: Mode, dtype: str) -> None:
    case = replace(CASE, mode=mode, dtype=dtype)
    network = build(case, CPU)
    expected = Expected.of(network, case.train)
    assert expected.difference(outcome(network[0], network, case.train), 1e-4) is None


class Wrong(nn.Module):
    """The network with a part of what it returns, or of a gradient, changed."""

    def __init__(self, inner: nn.Module, what: str) -> None:
        super().__init__()
        self.inner, self.what = inner, what

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        output = dict(self.inner(*args, **kwargs))
        if self.what == "value":
            output["logits"] = output["logits"] * 1.001
        if self.what == "dtype":
            output["logits"] = output["logits"].double()
        if self.what == "index":
            output["index"] = output["index"] + 1
        if self.what == "number":
            del output["index"]
        if self.what == "gradient":
            output["logits"] = output["logits"] + (self.inner.head.bias - self.inner.head.bias.detach())
        if self.what == "new gradient":
            output["logits"] = output["logits"] + 0 * self.inner.unused.sum()
        return output


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("value", "output 0"),
        ("dtype", "output 0"),
        ("index", "output 1"),
        ("number", "1 outputs instead of 2"),
        ("gradient", "gradient of head.bias"),
        ("new gradient", "gradient of unused: not expected"),
    ],
)
def test_difference_of_an_arm_is_named(what: str, said: str) -> None:
    network = build(CASE, CPU)
    expected = Expected.of(network, True)
    made = outcome(Wrong(network[0], what), network, True)
    assert expected.difference(made, 1e-4) == said


def test_gradients_may_be_as_far_off_as_eagers_own_in_another_layout() -> None:
    network = build(CASE, CPU)
    expected = Expected.of(network, True)
    assert 0 < expected.noise < 1e-3
    made = outcome(Wrong(network[0], "gradient"), network, True)
    exact, name = expected.double.gradients["head.bias"], "head.bias"
    error = float((made.gradients[name].double() - exact).square().mean().sqrt() / exact.abs().max())
    assert replace(expected, noise=error / 2.9).difference(made, 1e-4) is None
    assert replace(expected, noise=error / 3.1).difference(made, 1e-4) == "gradient of head.bias"


def test_a_missing_gradient_is_named() -> None:
    network = build(CASE, CPU)
    expected = Expected.of(network, True)
    made = outcome(network[0], network, True)
    without = replace(made, gradients={k: v for k, v in made.gradients.items() if k != "conv.weight"})
    assert expected.difference(without, 1e-4) == "gradient of conv.weight: missing"


def test_a_network_that_is_random_cannot_be_checked() -> None:
    model, calls = build(CASE, CPU)
    model.drop.p = 0.5
    with pytest.raises(ValueError, match="random"):
        Expected.of((model, calls), True)


def test_dropout_is_off_and_other_settings_are_left_alone() -> None:
    lookalike = nn.Identity()
    lookalike.p = 3.0
    depth = nn.Identity()
    depth.drop_prob = 0.1
    without_dropout(nn.Sequential(dropout := nn.Dropout2d(0.3), lookalike, depth))
    assert (dropout.p, lookalike.p, depth.drop_prob) == (0.0, 3.0, 0.0)


def test_the_loss_is_the_scalar_output_or_sends_back_every_output_itself() -> None:
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    scalar, other = (x * 3).sum(), x * 5
    assert torch.equal(loss([other, scalar, torch.ones(3)]), scalar)
    loss([x * 1, torch.ones(3), x.argmax()]).backward()
    assert torch.equal(x.grad, x.detach())


def test_a_step_leaves_no_gradients_and_a_training_step_makes_them() -> None:
    model, calls = build(CASE, CPU)
    seen: list[Tensor] = []
    model.head.weight.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.grad))
    step_of(model, model, calls, True)()
    assert len(seen) == 1
    assert all(parameter.grad is None for parameter in model.parameters())
    step_of(model, model, calls, False)()
    assert len(seen) == 1


def test_an_entry_that_alternates_is_called_with_both_layouts() -> None:
    case = replace(CASE, entry=replace(ENTRY, alternates=True))
    _, (((plain,), keywords), ((other,), _)) = build(case, CPU)
    assert (plain.is_contiguous(), other.is_contiguous()) == (True, False)
    assert torch.equal(plain, other)
    assert keywords == {"scale": 2.0}


def test_bf16_reaches_weights_and_inputs() -> None:
    model, (((image,), _),) = build(replace(CASE, dtype="bf16"), CPU)
    assert {image.dtype, model.conv.weight.dtype} == {torch.bfloat16}


def test_copies_of_a_network_have_the_same_weights() -> None:
    network = build(CASE, CPU)
    other = copy.deepcopy(network)
    assert torch.equal(network[0].conv.weight, other[0].conv.weight)
    assert network[0].conv.weight is not other[0].conv.weight
