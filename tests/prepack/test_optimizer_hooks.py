"""Optimizers that go by memory update weights that were stored anew as they would those that were not."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adagrad, Adam, AdamW, Optimizer

from frx_graph.prepack.prepare import store

CHANNELS_LAST = (0, 2, 3, 1)
IMAGE = torch.randn(2, 3, 7, 7, generator=torch.Generator().manual_seed(0))
Make = Callable[..., Optimizer]

FUSED = {
    "SGD": lambda parameters: SGD(parameters, lr=0.1, momentum=0.9, fused=True),
    "Adam": lambda parameters: Adam(parameters, lr=0.1, amsgrad=True, fused=True),
    "AdamW": lambda parameters: AdamW(parameters, lr=0.1, fused=True),
    "Adagrad": lambda parameters: Adagrad(parameters, lr=0.1, fused=True),
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Conv2d(4, 5, 1), nn.Conv2d(5, 2, (2, 1)))


def stored_anew(model: nn.Sequential) -> nn.Sequential:
    for layer in model:
        if isinstance(layer, nn.Conv2d):
            store(layer.weight, CHANNELS_LAST)
    return model


def assigned(model: nn.Module, optimizer: Optimizer) -> None:
    """A step on gradients that lie as those of plain weights do, as after they were reduced in one flat buffer."""
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(model(IMAGE).square().mean(), parameters)
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    for parameter, gradient in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = gradient.view(parameter.shape)
    optimizer.step()


def computed(model: nn.Module, optimizer: Optimizer) -> None:
    optimizer.zero_grad()
    model(IMAGE).square().mean().backward()
    optimizer.step()


def in_closure(model: nn.Module, optimizer: Optimizer) -> None:
    """As `assigned`, in what the step calls."""

    def closure() -> Tensor:
        loss = model(IMAGE).square().mean()
        for parameter, gradient in zip(model.parameters(), torch.autograd.grad(loss, model.parameters()), strict=True):
            parameter.grad = gradient.contiguous()
        return loss.detach()

    optimizer.step(closure)


def in_one_flat(parameters: list[nn.Parameter]) -> Tensor:
    """The memory of all gradients."""
    flat = torch.zeros(sum(parameter.numel() for parameter in parameters))
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view(parameter.shape)
    return flat


def gradients_lie_in(flat: Tensor, parameters: list[nn.Parameter]) -> bool:
    return all(
        p.grad is not None and p.grad.untyped_storage()._cdata == flat.untyped_storage()._cdata for p in parameters
    )


def parameters_after(make: Make, steps: list[Callable[[nn.Module, Optimizer], None]], stored: bool) -> list[Tensor]:
    model = stored_anew(network()) if stored else network()
    optimizer = make(model.parameters())
    for step in steps:
        step(model, optimizer)
    return list(model.parameters())


def assert_equal(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize(
    "steps",
    [[assigned] * 2, [computed, assigned, computed], [in_closure] * 3],
    ids=["assigned", "computed and assigned", "assigned in a closure"],
)
def test_gradients_may_lie_as_before(name: str, steps: list[Callable[[nn.Module, Optimizer], None]]) -> None:
    assert_equal(parameters_after(FUSED[name], steps, stored=True), parameters_after(FUSED[name], steps, stored=False))


@pytest.mark.parametrize("name", FUSED)
def test_averages_may_come_from_a_checkpoint(name: str) -> None:
    plain = network()
    optimizer = FUSED[name](plain.parameters())
    computed(plain, optimizer)
    state, averages = copy.deepcopy(plain.state_dict()), copy.deepcopy(optimizer.state_dict())
    computed(plain, optimizer)

    resumed = stored_anew(network())
    resumed.load_state_dict(state)
    optimizer = FUSED[name](resumed.parameters())
    optimizer.load_state_dict(averages)
    computed(resumed, optimizer)
    assert resumed[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert_equal(list(resumed.parameters()), list(plain.parameters()))


def test_what_lies_alike_and_optimizers_that_are_not_fused_are_left_alone() -> None:
    model = stored_anew(network())
    for optimizer in (SGD(model.parameters(), lr=0.1, momentum=0.9), FUSED["SGD"](model.parameters())):
        computed(model, optimizer)
        before = [parameter.grad for parameter in model.parameters()]
        optimizer.step()
        assert all(parameter.grad is own for parameter, own in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("make", FUSED.values(), ids=FUSED)
def test_gradients_stay_where_the_program_has_put_them(make: Make) -> None:
    model = stored_anew(network())
    optimizer = make(model.parameters())
    flat = in_one_flat(list(model.parameters()))
    parts = flat.split([parameter.numel() for parameter in model.parameters()])
    for _ in range(2):
        flat.zero_()
        model(IMAGE).square().mean().backward()
        assert flat.count_nonzero() == flat.numel()
        optimizer.step()
    for parameter, part in zip(model.parameters(), parts, strict=True):
        assert parameter.grad is not None
        assert parameter.grad.data_ptr() == part.data_ptr()


@pytest.mark.parametrize("keyword", [False, True])
def test_gradients_that_a_closure_replaces_are_not_written(keyword: bool) -> None:
    model = stored_anew(network())
    optimizer = FUSED["SGD"](model.parameters())
    kept = model[0].weight.grad = torch.ones(model[0].weight.shape)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(IMAGE).square().mean()
        loss.backward()
        return loss

    loss = optimizer.step(closure=closure) if keyword else optimizer.step(closure)
    assert loss.requires_grad
    assert (kept == 1).all()
    assert model[0].weight.grad is not kept


def test_gradients_stay_where_a_closure_raises() -> None:
    model = stored_anew(network())
    optimizer = FUSED["SGD"](model.parameters())
    kept = model[0].weight.grad = torch.ones(model[0].weight.shape)

    def closure() -> float:
        raise ValueError("no batch")

    with pytest.raises(ValueError, match="no batch"):
        optimizer.step(closure)
    assert model[0].weight.grad is kept


class Overridden(SGD):
    """A step that takes something else than a closure, and takes the step that it overrides: torch sees both."""

    def step(self, factor: float = 1.0) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["lr"] = 0.1 * factor
        super().step()


def test_a_step_may_take_the_step_that_it_overrides() -> None:
    # Torch watches a class's steps from when it is first made.
    SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    plain, model = network(), stored_anew(network())
    for chosen in (plain, model):
        optimizer = Overridden(chosen.parameters(), lr=0.1, fused=True)
        flat = in_one_flat(list(chosen.parameters()))
        for factor in (0.5, 1.0, 2.0):
            flat.zero_()
            chosen(IMAGE).square().mean().backward()
            optimizer.step(factor)
        assert gradients_lie_in(flat, list(chosen.parameters()))
    assert_equal(list(model.parameters()), list(plain.parameters()))


def test_the_step_after_one_that_raised_puts_gradients_back() -> None:
    model = stored_anew(network())
    optimizer = FUSED["SGD"](model.parameters())
    flat = in_one_flat(list(model.parameters()))
    model(IMAGE).square().mean().backward()

    def raises(*_: object) -> None:
        raise ValueError("no step")

    hook = optimizer.register_step_pre_hook(raises)
    with pytest.raises(ValueError, match="no step"):
        optimizer.step()
    hook.remove()
    optimizer.step()
    assert gradients_lie_in(flat, list(model.parameters()))


def test_lbfgs_finds_gradients_in_one_line() -> None:
    plain, model = network(), stored_anew(network())
    for chosen in (plain, model):
        optimizer = LBFGS(chosen.parameters(), lr=0.1, max_iter=3)

        def closure(chosen: nn.Module = chosen, optimizer: Optimizer = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = chosen(IMAGE).square().mean()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)
    assert not model[0].weight.is_contiguous()
    assert_equal(list(model.parameters()), list(plain.parameters()))
