import copy
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import frx_graph
from frx_graph.errors import OptionError
from frx_graph.freezing.weight_guard import WeightGuard
from frx_graph.trials.policy import TrialPolicy
from frx_graph.wrapper import frozen_model

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


@pytest.mark.parametrize("options", [{}, {"mode": "autopilot"}])
def test_a_policy_means_the_autopilot(options: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    given = []
    monkeypatch.setattr(torch, "compile", lambda model, **how: given.append(how) or model)
    (tmp_path / "p.yaml").write_text("minimum_speedup: 0.07\n")
    for policy in (TrialPolicy(minimum_speedup=0.07), {"minimum_speedup": 0.07}, str(tmp_path / "p.yaml")):
        frx_graph.compile(network(), policy=policy, options={"inner": "eager", **options})
    expected = {"mode": "autopilot", "policy": TrialPolicy(minimum_speedup=0.07), "inner": "eager"}
    assert given == [{"backend": "frx", "options": expected}] * 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "apply"}, "a policy is for mode 'autopilot'"),
        ({"plan": "all"}, "the autopilot finds a plan by itself"),
        ({"policy": {"seed": 1}}, "given twice"),
        (7, "not a mapping"),
    ],
)
def test_a_policy_beside_what_contradicts_it(options: object, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        frx_graph.compile(network(), policy={"seed": 2}, options=options)  # type: ignore[arg-type]


@pytest.mark.integration
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


@pytest.mark.integration
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


@pytest.mark.parametrize(
    "options", [pytest.param({}, marks=pytest.mark.integration), {"inner": "eager", "plan": "all"}]
)
def test_frozen_weights_may_be_turned_where_they_lie(options: dict[str, str]) -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3)).eval()
    compiled = frx_graph.compile(model, options={"freeze": True, **options})
    with torch.no_grad():
        for turn in (lambda data: data, lambda data: data.transpose(2, 3), lambda data: data[:1].expand(8, 8, 3, 3)):
            model[0].weight.data = turn(model[0].weight.data)
            torch.testing.assert_close(compiled(IMAGE), model(IMAGE), rtol=1e-4, atol=1e-5)


class Attributed(nn.Module):
    """Holds tensors that are neither parameters nor buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3)
        self.offset = torch.ones(8, 1, 1)
        self.several = [torch.ones(8, 1, 1)]

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(x) * self.several[0] + self.offset


@pytest.mark.integration
@pytest.mark.parametrize("options", [{}, {"inner": "eager", "plan": "all"}])
def test_tensors_that_are_not_buffers_are_watched_too(options: dict[str, str]) -> None:
    model = Attributed().eval()
    compiled = frx_graph.compile(model, options={"freeze": True, **options})
    image = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        for change in (lambda: None, lambda: model.offset.add_(1), lambda: model.several[0].mul_(2)):
            change()
            torch.testing.assert_close(compiled(image), model(image), rtol=1e-4, atol=1e-5)


@pytest.mark.integration
def test_tensors_without_a_version_counter_are_frozen_for_one_call() -> None:
    model = Attributed().eval()
    with torch.inference_mode():
        model.offset = torch.ones(8, 1, 1)
    compiled = frx_graph.compile(model, options={"freeze": True})
    image = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        with pytest.warns(RuntimeWarning, match="frozen for one call"):
            torch.testing.assert_close(compiled(image), model(image), rtol=1e-4, atol=1e-5)
        with torch.inference_mode():
            model.offset.add_(1)
        torch.testing.assert_close(compiled(image), model(image), rtol=1e-4, atol=1e-5)


@pytest.mark.integration
def test_weights_that_change_all_the_time_are_not_frozen() -> None:
    model = network()
    compiled = frx_graph.compile(model, options={"freeze": True, "inner_options": {"max_autotune": False}})
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(5):
            torch.testing.assert_close(compiled(IMAGE), model(IMAGE), rtol=1e-4, atol=1e-5)
            model[0].weight.mul_(1.1)
    assert sum("change from call to call" in str(w.message) for w in caught) == 1


@pytest.mark.integration
def test_freezing_stops_at_the_third_change(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = []

    def counted(*args, **how):
        frozen.append(args)
        return frozen_backend(*args, **how)

    frozen_backend = frozen_model.make_frozen_backend
    monkeypatch.setattr(frozen_model, "make_frozen_backend", counted)
    model = network()
    compiled = frx_graph.compile(model, options={"inner": "eager", "plan": "all", "freeze": True})
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        said = []
        for _ in range(5):
            torch.testing.assert_close(compiled(IMAGE), model(IMAGE), rtol=1e-4, atol=1e-5)
            said.append((len(frozen), sum("not frozen" in str(w.message) for w in caught)))
            model[0].weight.mul_(1.1)
    assert said == [(1, 0), (2, 0), (3, 0), (3, 1), (3, 1)]


@pytest.mark.integration
def test_a_model_in_train_mode_is_not_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_model, "make_frozen_backend", lambda *_, **__: pytest.fail("it was frozen"))
    model = network().train()
    compiled = frx_graph.compile(model, options={"inner": "eager", "plan": "all", "freeze": True})
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            torch.testing.assert_close(compiled(IMAGE), model(IMAGE), rtol=1e-4, atol=1e-5)
    assert [str(w.message) for w in caught if "not frozen" in str(w.message)] == [
        "frx: the weights are not frozen in this call: the model is in train() mode; call eval() on the module that "
        "you compile"
    ]


@pytest.mark.integration
def test_a_call_with_gradients_in_eval_mode_says_that_it_is_not_frozen() -> None:
    model = network()
    compiled = frx_graph.compile(model, options={"inner": "eager", "plan": "all", "freeze": True})
    with pytest.warns(RuntimeWarning, match="gradients are enabled; call it under torch.no_grad"):
        torch.testing.assert_close(compiled(IMAGE), model(IMAGE), rtol=1e-4, atol=1e-5)


@pytest.mark.integration
def test_training_is_not_frozen() -> None:
    model = network().train()
    compiled = frx_graph.compile(model, options={"freeze": True})
    compiled(IMAGE).sum().backward()
    assert model[0].weight.grad is not None


@pytest.mark.parametrize("options", [{"inner": "eager"}, {"inner": "aot_eager"}, {"inner": "aot_eager", "plan": "all"}])
def test_only_inductor_and_eager_plans_freeze(options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="cannot freeze weights"):
        frx_graph.compile(network(), options={"freeze": True, **options})


def test_the_backend_by_itself_cannot_freeze() -> None:
    with pytest.raises(Exception, match="it is called after tracing"):
        torch.compile(network(), backend="frx", options={"freeze": True})(IMAGE)


@pytest.mark.parametrize("options", [{"freeze": True}, {"plan": "all"}, {"plan": "all", "freeze": True}])
def test_model_is_left_unchanged_if_compiling_is_disabled(options: dict[str, object]) -> None:
    model = network()
    compiled = frx_graph.compile(model, options={"inner": "inductor", **options}, disable=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(IMAGE), model(IMAGE))
    assert "forward" not in vars(model)


def test_a_function_has_a_plan_but_no_weights() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.relu(x) * 2

    compiled = frx_graph.compile(program, options={"plan": "all", "inner": "eager"})
    torch.testing.assert_close(compiled(IMAGE), program(IMAGE))
    with pytest.raises(OptionError, match="a function has no weights"):
        frx_graph.compile(program, options={"freeze": True})


def test_options_that_cannot_be_are_refused_before_the_first_call() -> None:
    for options in ({"inner": "inductr"}, {"inner": "eager", "inner_mode": "max-autotune"}):
        with pytest.raises(OptionError):
            frx_graph.compile(network(), options={"plan": "all", **options})


def test_options_of_the_inner_compiler_are_handed_on_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Setting:
        """To be called, not to be taken apart."""

    given: list[dict[str, object]] = []
    monkeypatch.setattr(torch, "compile", lambda model, *, options, **_how: given.append(options) or model)
    setting = Setting()
    frx_graph.compile(network(), mode="default", options={"inner_options": {"post_grad_custom_pre_pass": setting}})
    assert given[0]["inner_options"]["post_grad_custom_pre_pass"] is setting
    assert given[0].keys() == {"inner_options", "inner_mode"}


def _in_threads(program: Callable[[], object], count: int) -> list[BaseException]:
    """What the threads raised, which all begin at once."""
    raised: list[BaseException] = []
    ready = threading.Barrier(count)

    def run() -> None:
        try:
            ready.wait()
            program()
        except BaseException as error:  # noqa: BLE001 - told to the thread that waits
            raised.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_threads_that_come_first_freeze_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[WeightGuard] = []

    def slow(model: nn.Module) -> WeightGuard:
        time.sleep(0.1)
        made.append(WeightGuard(model))
        return made[-1]

    monkeypatch.setattr(frozen_model, "WeightGuard", slow)
    model = network()
    compiled = frx_graph.compile(model, options={"inner": "eager", "plan": "all", "freeze": True})

    def call() -> None:
        with torch.no_grad():
            torch.testing.assert_close(compiled(IMAGE), model(IMAGE), rtol=1e-4, atol=1e-5)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert _in_threads(call, 6) == []
    assert not any("not frozen" in str(w.message) for w in caught)
    assert len(made) == 1


@pytest.mark.filterwarnings("ignore:frx. the weights are not frozen")
def test_weights_that_cannot_be_looked_at_are_not_frozen() -> None:
    model = nn.Linear(4, 4).eval()
    compiled = frx_graph.compile(model, options={"inner": "eager", "plan": "all", "freeze": True})
    weights = {name: torch.stack([p.detach(), p.detach() * 2]) for name, p in model.named_parameters()}
    x = torch.randn(2, 4)

    def each(program: nn.Module, prefix: str) -> Tensor:
        named = {prefix + name: weight for name, weight in weights.items()}
        return torch.vmap(lambda one: torch.func.functional_call(program, one, (x,)))(named)

    with torch.no_grad():
        torch.testing.assert_close(each(compiled, "_orig_mod."), each(model, ""))
        torch.testing.assert_close(compiled(x), model(x))


class Adding(nn.Module):
    """Writes into what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x.add_(self.convolution(x))
        return x * 2


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[..., ::2]])
def test_inputs_that_are_written_are_written_once_and_learn_nothing(
    mode: Callable[[], Any],
    view: Callable[[Tensor], Tensor],
    capfd: pytest.CaptureFixture[str],
) -> None:
    model = Adding().eval()
    compiled = frx_graph.compile(model, options={"inner": "eager", "plan": "all"})
    with mode():
        image, same = IMAGE.clone(), IMAGE.clone()
        expected = model(view(same))
        result = compiled(view(image))
    assert (image.requires_grad, image.grad_fn) == (False, None)
    torch.testing.assert_close(image, same, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    assert "Traceback" not in capfd.readouterr().err


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 8, 3)
        self.shapes: list[torch.Size] = []

    def forward(self, x: Tensor, seen: list[Tensor]) -> Tensor:
        self.shapes.append(x.shape)
        seen.append(x.mean())
        return self.convolution(x)


@pytest.mark.integration
def test_what_a_program_does_besides_computing_it_does_once() -> None:
    model, seen = Remembering().eval(), list[Tensor]()
    with torch.no_grad():
        frx_graph.compile(model, options={"inner": "eager", "plan": "all"})(IMAGE, seen)
    assert (len(model.shapes), len(seen)) == (1, 1)


@pytest.mark.parametrize("how", ["deep copy", "file"])
def test_a_copy_of_a_compiled_model_computes_the_same(how: str, tmp_path: Path) -> None:
    model = network().eval()
    compiled = frx_graph.compile(model, options={"plan": "all", "inner": "eager", "pin_strides": True, "freeze": True})
    other = torch.randn(1, *IMAGE.shape[1:])
    with torch.no_grad():
        wanted = [model(image) for image in (IMAGE, other)]
        compiled(IMAGE)
        if how == "file":
            torch.save(compiled, tmp_path / "model.pt")
            copied = torch.load(tmp_path / "model.pt", weights_only=False)
        else:
            copied = copy.deepcopy(compiled)
        for program in (copied, compiled):
            for image, expected in zip((IMAGE, other), wanted, strict=True):
                result = program(image)
                torch.testing.assert_close(result, expected)
                assert result.stride() == expected.stride()


class Installing(nn.Module):
    """Does something once, under a lock."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.lock, self.installed = network(), threading.Lock(), False

    def forward(self, x: Tensor) -> Tensor:
        if not self.installed:
            with self.lock:
                self.installed = True
        result: Tensor = self.layers(x)
        return result


@pytest.mark.integration
@pytest.mark.parametrize("options", [{}, {"plan": "all", "inner": "eager"}], ids=["inductor", "eager"])
def test_what_a_program_does_once_keeps_nothing_from_being_frozen(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Installing().eval()
    compiled = frx_graph.compile(model, options={"freeze": True, **options})
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", message="frx: the weights are not frozen")
        for _ in range(2):
            expected = compiled(IMAGE)
        # A write that the watch does not see shows where a constant is read.
        monkeypatch.setattr("frx_graph.freezing.weight_guard.WeightGuard.is_unchanged", lambda _self: True)
        model.layers[0].weight.mul_(2)
        torch.testing.assert_close(compiled(IMAGE), expected)


@pytest.mark.integration
def test_a_model_that_trains_itself_makes_one_step_a_call() -> None:
    class Adapting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = network()
            self.optimizer = torch.optim.Adam(self.layers.parameters(), lr=1e-2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.layers(x)
            y.square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            return y

    model, twin = Adapting(), Adapting()
    twin.layers.load_state_dict(model.layers.state_dict())
    compiled = frx_graph.compile(model, options={"plan": "all", "inner": "eager"})
    for _ in range(3):
        torch.testing.assert_close(compiled(IMAGE), twin(IMAGE), rtol=1e-3, atol=1e-4)
    assert {float(state["step"]) for state in model.optimizer.state.values()} == {3.0}


UNDER_LIGHTNING = textwrap.dedent(
    """
    import torch
    from torch import nn
    from lightning.fabric import Fabric
    import frx_graph

    class Lone(nn.Conv2d):
        def __deepcopy__(self, memo):
            raise TypeError("there is one only")

    def step(module, backward):
        out = module(image)
        backward(out.square().mean())
        return [out.detach(), *(p.grad.clone() for p in model.parameters())]

    model, image = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), Lone(8, 8, 3)), torch.randn(2, 3, 9, 9)
    wanted = step(model, torch.Tensor.backward)
    compiled = frx_graph.compile(model, options={"plan": "all", "inner": "eager"})
    fabric = Fabric(accelerator="cpu")
    for module, backward in (compiled, torch.Tensor.backward), (fabric.setup(compiled), fabric.backward):
        model.zero_grad()
        torch.testing.assert_close(step(module, backward), wanted)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
    print("same")
    """
)


@pytest.mark.integration
@pytest.mark.zoo
def test_lightning_may_keep_what_a_model_was_compiled_with() -> None:
    """It keeps a deep copy, to compile the model anew when it is set up."""
    pytest.importorskip("lightning.fabric")
    told = subprocess.run([sys.executable, "-c", UNDER_LIGHTNING], capture_output=True, text=True, timeout=300)
    assert told.stdout.splitlines()[-1:] == ["same"], told.stderr
