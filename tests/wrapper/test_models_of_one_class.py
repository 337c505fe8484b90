"""Models that share a class are compiled side by side, and freed when nobody needs them."""

import gc
import threading
import weakref

import pytest
import torch
from torch import Tensor, nn

import frx_graph

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


@pytest.mark.integration
@torch.no_grad()
@pytest.mark.parametrize("first_call", ["prepared", "compiled", "frozen"])
def test_weights_and_arguments_are_freed(first_call: str) -> None:
    model, image = Network().eval(), IMAGE.clone()
    if first_call == "prepared":
        frx_graph.prepare(model, (image,), inner="eager")
    else:
        frx_graph.compile(model, options={**PLAN, "freeze": first_call == "frozen"})(image)
    assert first_call != "prepared" or not model.last.weight.is_contiguous()
    alive = [weakref.ref(tensor) for tensor in (*model.parameters(), image)]
    del model, image
    for _ in range(3):
        # What compiled code holds is freed when the code is.
        gc.collect()
    assert [ref() for ref in alive] == [None] * len(alive)


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
