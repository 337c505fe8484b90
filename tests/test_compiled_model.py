import warnings

import pytest
import torch
from torch import Tensor, nn

import frx_graph
from frx_graph import compiled_model
from frx_graph.errors import OptionError
from frx_graph.weight_preparation import prepare

pytestmark = pytest.mark.filterwarnings("ignore:frx applies rewrites")


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 8, 3, padding=1)).eval()


IMAGE = torch.randn(2, 8, 12, 12)


def test_without_a_plan_it_is_the_backend() -> None:
    model = network()
    compiled = frx_graph.compile(model, options={"inner": "eager"})
    torch.testing.assert_close(compiled(IMAGE), model(IMAGE))
    assert model[0].weight.is_contiguous()


def test_the_weights_are_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(compiled_model, "prepare", lambda *_args, **how: asked.append(how))
    compiled = frx_graph.compile(network(), options={"plan": "all", "inner": "eager"})
    with torch.no_grad():
        compiled(IMAGE)
        compiled(IMAGE)
    assert asked == [{"train": False, "inner": "eager"}]


def test_a_preparation_that_fails_is_said_and_the_program_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object, **_how: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(compiled_model, "prepare", broken)
    model = network()
    with pytest.warns(RuntimeWarning, match="could not be prepared"):
        result = frx_graph.compile(model, options={"plan": "all", "inner": "eager"})(IMAGE)
    torch.testing.assert_close(result, model(IMAGE), rtol=1e-4, atol=1e-5)


def test_frozen_weights_follow_their_changes() -> None:
    model = network()
    compiled = frx_graph.compile(model, options={"freeze": True})

    def check() -> None:
        with torch.no_grad():
            torch.testing.assert_close(compiled(IMAGE), model(IMAGE), rtol=1e-4, atol=1e-5)

    check()
    with torch.no_grad():
        model[0].weight.mul_(2)
    check()
    model[2].bias.data = torch.ones(8)
    check()
    check()


def test_frozen_weights_may_give_way_to_other_tensors() -> None:
    model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16)).eval()
    compiled = frx_graph.compile(model, options={"freeze": True})
    with torch.no_grad():
        compiled(IMAGE)
        for change in (
            lambda: setattr(model[0], "weight", nn.Parameter(torch.randn(16, 8, 3, 3))),
            lambda: setattr(model[1], "running_mean", torch.randn(16)),
        ):
            change()
            # The program that notices, and the one that is frozen anew.
            for _ in range(2):
                torch.testing.assert_close(compiled(IMAGE), model(IMAGE), rtol=1e-4, atol=1e-5)


def test_weights_that_change_all_the_time_are_not_frozen() -> None:
    model = network()
    compiled = frx_graph.compile(model, options={"freeze": True, "inner_options": {"max_autotune": False}})
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(5):
            torch.testing.assert_close(compiled(IMAGE), model(IMAGE), rtol=1e-4, atol=1e-5)
            model[0].weight.mul_(1.1)
    assert sum("change from call to call" in str(w.message) for w in caught) == 1


def test_training_is_not_frozen() -> None:
    model = network().train()
    compiled = frx_graph.compile(model, options={"freeze": True})
    compiled(IMAGE).sum().backward()
    assert model[0].weight.grad is not None


@pytest.mark.parametrize("options", [{"inner": "eager"}, {"inner": "aot_eager"}, {"inner": "aot_eager", "plan": "all"}])
def test_only_inductor_and_eager_plans_freeze(options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="freezes nothing"):
        frx_graph.compile(network(), options={"freeze": True, **options})


def test_the_backend_by_itself_cannot_freeze() -> None:
    with pytest.raises(Exception, match="it is called after tracing"):
        torch.compile(network(), backend="frx", options={"freeze": True})(IMAGE)


class Shared(nn.Module):
    """One weight in a convolution and in a product."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(x).mean((1, 2, 3)) + self.convolution.weight.view(8, -1).sum()


def test_preparation_keeps_parameters_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    weight, before = model[0].weight, model[0].weight.detach().clone()
    expected = model(IMAGE)
    _fastest_in_channels_last(monkeypatch)
    prepared = prepare(model, (IMAGE,), inner="eager")
    assert prepared.converted == {"0.weight": (0, 2, 3, 1), "2.weight": (0, 2, 3, 1)}
    assert model[0].weight is weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(weight, before)
    torch.testing.assert_close(model(IMAGE), expected, rtol=1e-4, atol=1e-5)


def test_a_weight_that_something_else_reads_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Shared()
    _fastest_in_channels_last(monkeypatch)
    prepared = prepare(model, (IMAGE,), inner="eager")
    assert prepared.converted == {}
    (refusal,) = prepared.refused
    assert "something else than convolutions reads it" in refusal.reason
    assert model.convolution.weight.is_contiguous()


def _fastest_in_channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    from frx_graph import anchor_times
    from frx_graph.passes.rewrites.anchor_calls import anchor_orders

    def seconds(subject, *, prepared):
        orders = {anchor.op.node: anchor_orders(anchor) for anchor in subject.anchors}
        return {node: dict(zip(both, (1.0, 0.1), strict=True)) for node, both in orders.items()}

    monkeypatch.setattr(anchor_times, "anchor_seconds", seconds)
    monkeypatch.setattr(anchor_times, "bandwidth_of", lambda _facts: 1e10)
