"""Models that share a class, or weights: each compiled by itself, and freed when nobody needs it."""

import copy
import gc
import threading
import weakref

import pytest
import torch
from torch import Tensor, nn

import frx_graph
from frx_graph.capture.isolated_recompiles import ISOLATED

pytestmark = [
    pytest.mark.filterwarnings("ignore:frx applies rewrites"),
    pytest.mark.usefixtures("channels_last_is_fastest"),
]

IMAGE = torch.randn(2, 3, 8, 9, generator=torch.Generator().manual_seed(0))
PLAN = {"plan": "all", "inner": "eager"}


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)
        self.last = nn.Conv2d(8, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu())


class Scaled(nn.Module):
    def __init__(self, backbone: nn.Module, scale: float) -> None:
        super().__init__()
        self.backbone = backbone
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.backbone(x) * self.scale


def stored_anew(model: Network) -> bool:
    return not model.last.weight.is_contiguous()


@torch.no_grad()
@pytest.mark.parametrize("freeze", [False, True])
def test_a_compiled_model_is_freed(freeze: bool) -> None:
    model = Network().eval()
    program = frx_graph.compile(model, options={**PLAN, "freeze": freeze})
    program(IMAGE)
    model.first.weight.mul_(2)
    program(IMAGE)
    alive = weakref.ref(model)
    del model, program
    gc.collect()
    assert alive() is None


@torch.no_grad()
@pytest.mark.parametrize("first_call", ["prepared", "compiled", "frozen"])
def test_weights_and_arguments_are_freed(first_call: str) -> None:
    model, image = Network().eval(), IMAGE.clone()
    if first_call == "prepared":
        frx_graph.prepare(model, (image,), inner="eager")
    else:
        frx_graph.compile(model, options={**PLAN, "freeze": first_call == "frozen"})(image)
    assert first_call == "frozen" or stored_anew(model)
    alive = [weakref.ref(tensor) for tensor in (*model.parameters(), image)]
    del model, image
    for _ in range(3):
        # What compiled code holds is freed when the code is.
        gc.collect()
    assert [ref() for ref in alive] == [None] * len(alive)


@torch.no_grad()
@pytest.mark.skipif(not ISOLATED, reason="this torch has one limit of compilations for all models of a class")
def test_more_models_of_a_class_than_dynamo_compiles_of_one() -> None:
    models = [Network().eval() for _ in range(torch._dynamo.config.recompile_limit + 2)]
    programs = [frx_graph.compile(model, options=PLAN) for model in models]
    for model, program in zip(models, programs, strict=True):
        expected = copy.deepcopy(model)(IMAGE)
        found = program(IMAGE)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert found.stride() == expected.stride()
        assert stored_anew(model)


@torch.no_grad()
def test_programs_that_share_weights_return_what_they_did() -> None:
    backbone = Network().eval()
    one, other = (frx_graph.compile(Scaled(backbone, scale).eval(), options=PLAN) for scale in (1.0, 2.0))
    kept = backbone.state_dict()
    before = other(IMAGE)
    assert not stored_anew(backbone)
    del kept
    for _ in range(2):
        assert one(IMAGE).stride() == before.stride()
        assert stored_anew(backbone)
        found = other(IMAGE)
        assert found.stride() == before.stride()
        torch.testing.assert_close(found, before, rtol=1e-4, atol=1e-5)


class Cut(Scaled):
    """In two graphs: no weights are stored anew for it."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.backbone(x)
        torch._dynamo.graph_break()
        return y * self.scale


@pytest.mark.integration
def test_weights_stay_where_a_compiled_backward_waits_for_them() -> None:
    backbone = Network()
    twin = copy.deepcopy(backbone)
    inductor = {"plan": "all", "inner": "inductor"}
    first, then = (frx_graph.compile(kind(backbone, 2.0), options=inductor) for kind in (Cut, Scaled))
    (first(IMAGE).square().sum() + then(IMAGE).square().sum()).backward()
    assert not stored_anew(backbone)
    (2 * (2 * twin(IMAGE)).square().sum()).backward()
    for ours, own in zip(backbone.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, own.grad, rtol=1e-3, atol=1e-3)
    again = frx_graph.compile(Scaled(Network().eval(), 2.0), options=inductor)
    again(IMAGE)
    assert stored_anew(again.backbone)


@torch.no_grad()
def test_a_model_that_is_compiled_twice() -> None:
    model = Network().eval()
    expected = copy.deepcopy(model)(IMAGE)
    for program in [frx_graph.compile(model, options=PLAN) for _ in range(2)]:
        assert program(IMAGE).stride() == expected.stride()
    assert stored_anew(model)


@pytest.mark.parametrize("gradients", [False, True])
def test_first_calls_in_several_threads(gradients: bool) -> None:
    own = nn.Module.__call__
    models = [Network().train(gradients) for _ in range(4)]
    programs = [frx_graph.compile(model, options=PLAN) for model in models]
    failures: list[BaseException] = []

    def call(index: int) -> None:
        try:
            with torch.set_grad_enabled(gradients):
                expected = models[index](IMAGE)
                torch.testing.assert_close(programs[index](IMAGE), expected, rtol=1e-4, atol=1e-5)
        except BaseException as error:  # noqa: BLE001 - a thread's failure is the test's
            failures.append(error)

    threads = [threading.Thread(target=call, args=(index,)) for index in range(len(programs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert nn.Module.__call__ is own
    assert all(map(stored_anew, models))
