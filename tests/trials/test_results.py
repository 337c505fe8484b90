from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from frx_graph.errors import TrialError
from frx_graph.trials.numerics import Multipliers, is_within_rounding
from frx_graph.trials.results import (
    Comparing,
    Program,
    StepResults,
    compare_results,
    observe_step,
    permute_inputs,
    read_results,
    write_results,
)

ALLOWED = Multipliers(2.0, 3.0)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.norm(self.linear(x))
        return y, y[:, :2]


def program(train: bool = True, call: Any = None, model: nn.Module | None = None) -> Program:
    model = Net().train(train) if model is None else model
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1)).requires_grad_(train)
    return Program(call or model, model, (x,), {}, train)


def test_a_training_step_leaves_outputs_gradients_buffers_and_parameters_after_a_step() -> None:
    found = observe_step(program(), seed=0)
    assert found.values.keys() >= {
        "output 0",
        "output 1",
        "gradient of input 0",
        "gradient of linear.weight",
        "linear.weight after a step",
        "buffer norm.running_mean",
    }
    # After the input, four parameters and three buffers.
    assert found.forms["output 0"] == "strides (4, 1), memory 8 from 0, needs a gradient"
    assert found.forms["output 1"] == "strides (4, 1), memory 8 from 0, needs a gradient"
    assert found.forms["gradient of linear.weight"] == "(4, 1)"


def test_inference_leaves_no_gradients() -> None:
    names = observe_step(program(train=False), seed=0).values
    assert not [name for name in names if "gradient" in name or "step" in name]


def test_everything_is_as_it_was_afterwards() -> None:
    tried = program()
    assert tried.model is not None
    before = {name: value.clone() for name, value in tried.model.state_dict().items()}
    first = observe_step(tried, seed=0)
    assert all(torch.equal(value, before[name]) for name, value in tried.model.state_dict().items())
    assert all(parameter.grad is None for parameter in tried.model.parameters())
    second = observe_step(tried, seed=0)
    assert all(torch.equal(value, second.values[name]) for name, value in first.values.items())


def test_an_input_that_is_written_into_is_put_back_and_seen() -> None:
    def writes(x: Tensor) -> Tensor:
        return x.mul_(2)

    x = torch.ones(3)
    found = observe_step(Program(writes, None, (x,), {}, False), seed=0)
    assert found.values["input 0 afterwards"].tolist() == [2, 2, 2]
    assert found.forms["output 0"].startswith("strides (1,), memory 0")
    assert x.tolist() == [1, 1, 1]


def test_a_draw_has_the_same_values_in_another_order() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
    tokens, mask = torch.arange(6), torch.tensor([True, False])
    first, same, other = (
        permute_inputs((x, tokens, mask), 1),
        permute_inputs((x, tokens, mask), 1),
        permute_inputs((x, tokens, mask), 2),
    )
    assert not torch.equal(first[0], x)
    assert torch.equal(first[0].flatten().sort().values, x.flatten().sort().values)
    assert first[0].stride() == x.stride()
    assert first[0].requires_grad
    assert torch.equal(first[0], same[0])
    assert not torch.equal(first[0], other[0])
    assert first[1] is tokens
    assert first[2] is mask
    assert permute_inputs(x, 0) is x


@pytest.mark.parametrize("x", [torch.randn(1, 4).expand(3, 4), torch.randn(4, 4)[:, :2]])
def test_inputs_that_share_memory_or_have_gaps_are_not_permuted(x: Tensor) -> None:
    assert permute_inputs(x, 1) is x


def compared(theirs: Program) -> tuple[list[str], list[str]]:
    ours = program()
    exact = program(model=Net().double())
    exact = replace(exact, args=(exact.args[0].detach().double().requires_grad_(),))
    own, other, reference = (observe_step(one, seed=0) for one in (ours, theirs, exact))
    found = compare_results(own, other, Comparing(0, ALLOWED, reference))
    return [difference.name for difference in found.values], [difference.name for difference in found.forms]


def test_the_same_program_does_not_differ() -> None:
    assert compared(program()) == ([], [])


def test_closeness_of_results_is_reported() -> None:
    results = [observe_step(program(), seed=0) for _ in range(2)]
    found = compare_results(*results, Comparing(0, ALLOWED))
    assert (found.placed, found.share) == (len(results[0].forms), 0.0)
    results[1].values["output 0"].mul_(1 + 2e-5)
    near = compare_results(*results, Comparing(0, ALLOWED))
    assert near.values == ()
    assert near.share is not None
    assert 0.0 < near.share < 1.0
    results[1].values["output 0"].mul_(2.0)
    far = compare_results(*results, Comparing(0, ALLOWED))
    # What is not as good does not count.
    assert [difference.name for difference in far.values] == ["output 0"]
    assert far.share == 0.0


def test_a_wrong_gradient_is_found_though_outputs_are_right() -> None:
    model = Net()

    def scaled(x: Tensor) -> tuple[Tensor, Tensor]:
        y, part = model(x)
        y.register_hook(lambda gradient: gradient * 1.01)
        return y, part

    values, forms = compared(program(call=scaled, model=model))
    assert "gradient of norm.bias" in values
    assert "norm.bias after a step" in values
    assert "output 0" not in values
    assert forms == []


def test_parameters_are_compared_after_a_step_of_the_programs_own_optimizer() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    one = replace(program(model=model), optimizer=optimizer)
    # Its momentum is no longer that of the first step.
    one.step()
    one.update()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    momentum = [state["momentum_buffer"].clone() for state in optimizer.state.values()]
    found = observe_step(one, seed=0).values
    for (name, parameter), buffer in zip(model.named_parameters(), momentum, strict=True):
        expected = before[name] - 0.5 * (0.9 * buffer + found[f"gradient of {name}"])
        torch.testing.assert_close(found[f"{name} after a step"], expected)
        assert torch.equal(parameter, before[name])
    for state, buffer in zip(optimizer.state.values(), momentum, strict=True):
        assert torch.equal(state["momentum_buffer"], buffer)


def test_without_training_no_optimizer_steps() -> None:
    model = Net().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    one = replace(program(train=False, model=model), optimizer=optimizer)
    one.step()
    one.update()
    assert not any(name.endswith("after a step") for name in observe_step(one, seed=0).values)


def test_another_memory_or_order_is_found_though_values_are_right() -> None:
    model = Net()

    def copied(x: Tensor) -> tuple[Tensor, Tensor]:
        y, part = model(x)
        return y.t().contiguous().t(), part

    assert compared(program(call=copied, model=model)) == ([], ["output 0", "output 1"])


def make_results(value: float, form: str) -> StepResults:
    return StepResults({"output 0": torch.tensor([value, 1.0])}, {"output 0": form})


@pytest.mark.parametrize(
    ("baseline", "candidate", "differ", "departed"),
    [
        (1.0, 1.0, [], []),
        (1.5, 1.0, [], ["output 0"]),
        (1.5, 1.5, ["output 0"], ["output 0"]),
        (1.0, 1.5, ["output 0"], []),
        (1.5, 2.5, ["output 0"], ["output 0"]),
    ],
)
def test_a_wrong_baseline_excuses_nothing(
    baseline: float, candidate: float, differ: list[str], departed: list[str]
) -> None:
    own, other, eager = (make_results(value, "plain") for value in (baseline, candidate, 1.0))
    found = compare_results(own, other, Comparing(0, ALLOWED, exact=eager, eager=eager))
    assert [difference.name for difference in found.values] == differ
    assert [difference.name for difference in found.departed] == departed
    if differ:
        assert "from eager's" in found.values[0].detail or "eager's" in found.values[0].detail


@pytest.mark.parametrize(("form", "differ"), [("baseline's", False), ("eager's", False), ("another", True)])
def test_strides_may_be_the_baselines_or_those_of_eager(form: str, differ: bool) -> None:
    own, other, eager = (make_results(1.0, each) for each in ("baseline's", form, "eager's"))
    found = compare_results(own, other, Comparing(0, ALLOWED, eager=eager))
    assert bool(found.forms) is differ


def test_half_precision_without_a_measure_of_rounding_is_judged_by_the_baseline() -> None:
    own, other, eager = (
        StepResults({"output 0": torch.tensor([value], dtype=torch.bfloat16)}, {}) for value in (1.0, 1.0, 1.2)
    )
    found = compare_results(own, other, Comparing(0, ALLOWED, eager=eager))
    assert found.values == ()
    assert [difference.name for difference in found.departed] == ["output 0"]


def test_a_compiler_that_adds_up_less_exactly_departs_from_nothing() -> None:
    exact, eager, own, other = (
        StepResults({"gradient of bias": torch.full((8,), value)}, {}) for value in (2.0, 2.000004, 2.00004, 2.00005)
    )
    found = compare_results(own, other, Comparing(0, ALLOWED, exact=exact, eager=eager))
    assert found.departed == ()
    assert found.values == ()


def test_where_the_baseline_departs_the_candidate_must_agree_with_eager_to_the_last() -> None:
    exact = torch.ones(100)
    own, other = exact.clone(), exact.clone()
    own[3] += 0.5
    other[7] += 9e-3
    eager = StepResults({"output 0": exact}, {})
    beside = Comparing(0, ALLOWED, exact=eager, eager=eager)
    found = compare_results(StepResults({"output 0": own}, {}), StepResults({"output 0": other}, {}), beside)
    assert [difference.name for difference in found.departed] == ["output 0"]
    assert [difference.name for difference in found.values] == ["output 0"]


@pytest.mark.parametrize("off", [0.01, float("nan")])
def test_one_wrong_element_is_a_departure(off: float) -> None:
    eager = torch.ones(100_000)
    wrong = eager.clone()
    wrong[7] += 2 * off
    assert not is_within_rounding(eager, wrong)
    assert is_within_rounding(eager, eager + 5e-5)


def test_without_eager_the_baseline_decides() -> None:
    found = compare_results(make_results(1.5, "plain"), make_results(1.0, "plain"), Comparing(0, ALLOWED))
    assert [difference.name for difference in found.values] == ["output 0"]
    assert found.departed == ()


class Cached(nn.Module):
    def __init__(self, name: str, *, copied: bool) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(3))
        self.weight = nn.Parameter(torch.ones(3), requires_grad=False)
        self.name, self.copied = name, copied

    def forward(self, x: Tensor) -> Tensor:
        self.cache.add_(x)
        kept: Tensor = getattr(self, self.name)
        return kept.clone() if self.copied else kept


@pytest.mark.parametrize("name", ["cache", "weight"])
def test_a_copy_of_what_the_model_keeps_is_another_memory(name: str) -> None:
    own, same, copied = (Cached(name, copied=copied) for copied in (False, False, True))
    found = [observe_step(Program(one, one, (torch.ones(3),), {}, False), seed=0) for one in (own, same, copied)]
    assert compare_results(found[0], found[1], Comparing(0, ALLOWED)).forms == ()
    differing = compare_results(found[0], found[2], Comparing(0, ALLOWED))
    assert differing.values == ()
    assert [difference.name for difference in differing.forms] == ["output 0"]


def test_observed_values_are_on_the_cpu() -> None:
    # What only claims to be on a GPU needs none.
    with FakeTensorMode():
        made = torch.empty(3, 4, device="cuda").t()
        found = observe_step(Program(lambda: made, None, (), {}, False), seed=0)
    assert made.device.type == "cuda"
    assert found.values["output 0"].device.type == "cpu"
    assert found.values["output 0"].stride() == made.stride()


def test_a_result_that_is_missing_is_a_difference() -> None:
    model = Net()
    values, _ = compared(program(call=lambda x: model(x)[:1], model=model))
    assert "output 1" in values


def test_results_round_trip_through_a_file(tmp_path: Path) -> None:
    results = [observe_step(program(), seed=seed) for seed in range(2)]
    results[1].values["output 0"].mul_(2.0)
    for draw, one in enumerate(results):
        write_results(tmp_path / "results", draw, one)
    for draw, one in enumerate(results):
        read = read_results(tmp_path / "results", draw)
        assert read.forms == one.forms
        assert all(torch.equal(read.values[name], value) for name, value in one.values.items())


def test_damaged_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "results.0").write_bytes(b"nothing")
    for draw in range(2):
        with pytest.raises(TrialError, match="cannot be read"):
            read_results(tmp_path / "results", draw)


@dataclass
class Detected:
    """What a detector returns: no container that pytree knows."""

    boxes: Tensor
    labels: list[Tensor]


class Hiding:
    """An object of the program's own."""

    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden


def test_tensors_in_dataclasses_are_results() -> None:
    weight = torch.ones(3, requires_grad=True)

    def detect(x: Tensor) -> Detected:
        return Detected(x * weight, [x + 1, x + 2])

    found = observe_step(Program(detect, None, (weight,), {}, True), seed=0)
    assert [name for name in found.values if name.startswith("output")] == ["output 0", "output 1", "output 2"]
    assert "gradient of input 0" in found.values


def test_a_program_that_hides_all_its_tensors_is_refused_and_one_that_hides_some_is_not() -> None:
    x = torch.ones(3)
    with pytest.raises(TrialError, match="returns a Hiding, whose tensors cannot be compared"):
        observe_step(Program(Hiding, None, (x,), {}, False), seed=0)
    some = Program(lambda x: (x + 1, Hiding(x)), None, (x,), {}, False)
    assert "output 0" in observe_step(some, seed=0).values
    nothing = Program(lambda x: None, None, (x,), {}, False)
    assert list(observe_step(nothing, seed=0).values) == ["input 0 afterwards"]
