"""What an arm judges: differences that rounding makes are nobody's fault, others are the candidate's."""

from __future__ import annotations

import contextvars
import copy
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frx_graph.measure.page_faults import COUNTED_CALLS
from frx_graph.support.torch_internals import inductor_config
from frx_graph.trial_worker import worker
from frx_graph.trial_worker.worker import TrialArm
from frx_graph.trial_worker.workload import LoadedWorkload
from frx_graph.trials.arm_messages import (
    CountedFaults,
    CountFaults,
    Examine,
    Judge,
    Judged,
    Load,
    Measure,
    Measured,
    TargetWorkload,
)
from frx_graph.trials.results import Program, StepResults, observe_step, permute_inputs, write_results

SEED = 3


def network() -> tuple[nn.Module, Tensor]:
    """Deep enough that some ReLU's input is on the other side of 0 in another layout."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(12):
        layers += [nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*layers).train(), torch.randn(2, 16, 24, 24)


@pytest.fixture
def arm() -> TrialArm:
    """The baseline's."""
    model, x = network()
    arm = TrialArm(load=lambda _: LoadedWorkload(model, (x,), {}))
    arm.answer(Load(TargetWorkload("a test"), True, "eager", SEED, random=False))
    return arm


def judged(arm: TrialArm, folder: Path, candidate: nn.Module, x: Tensor, draws: int = 2) -> Judged:
    model, _ = network()
    files = []
    for name, module, image in (("ours", model, network()[1]), ("theirs", candidate, x)):
        files.append(folder / name)
        for draw in range(draws):
            run = Program(module, module, permute_inputs((image,), draw), {}, True)
            write_results(files[-1], draw, observe_step(run, SEED))
    found = arm.answer(Judge(str(files[0]), str(files[1]), draws, 2.0, 3.0))
    assert isinstance(found, Judged)
    return found


@pytest.mark.integration
def test_rounding_in_a_deep_network_is_not_a_difference(arm: TrialArm, tmp_path: Path, monkeypatch) -> None:
    model, x = network()
    found = judged(arm, tmp_path, model.to(memory_format=torch.channels_last), x)
    assert found.exact
    assert found.values == ()
    # Without knowing what rounding does it would be one.
    monkeypatch.setattr(TrialArm, "_estimate_noise", lambda self, draw: {})
    found = judged(arm, tmp_path, model, x)
    assert any(difference.name.startswith("gradient") for difference in found.values)
    assert not any(difference.name.startswith("output") for difference in found.values)


def test_judged_program_is_left_unchanged(arm: TrialArm, tmp_path: Path) -> None:
    model, x = network()
    before = copy.deepcopy(model.state_dict())
    wrong = copy.deepcopy(model)
    with torch.no_grad():
        wrong[0].weight.mul_(1.5)  # type: ignore[operator]
        wrong[1].weight.mul_(1.5)  # type: ignore[operator]
    assert judged(arm, tmp_path, wrong, x).values
    assert arm._workload is not None
    assert isinstance(arm._workload.model, nn.Module)
    for name, value in arm._workload.model.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.integration
def test_only_one_draw_is_in_memory_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def noted(*how: Any) -> StepResults:
        found = observe_step(*how)
        made.append(weakref.ref(found.values["output 0"]))
        alive.append(sum(one() is not None for one in made))
        return found

    monkeypatch.setattr(worker, "observe_step", noted)
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    arm = TrialArm(load=lambda _: LoadedWorkload(model, (x,), {}))
    arm.answer(Load(TargetWorkload("a test"), True, "eager", SEED, random=False))
    arm.answer(Examine(str(tmp_path / "ours"), 2))
    assert alive == [1, 1]
    with torch.no_grad():
        model.weight.mul_(2.0)
    arm.answer(Examine(str(tmp_path / "theirs"), 2))
    with torch.no_grad():
        model.weight.div_(2.0)
    alive.clear()
    found = arm.answer(Judge(str(tmp_path / "ours"), str(tmp_path / "theirs"), 2, 2.0, 3.0))
    assert isinstance(found, Judged)
    assert {difference.draw for difference in found.values} == {0, 1}
    # Each draw is run in float64, in eager, without noise, and five times with noise, which are let go one by one; then
    # in eager again.
    assert alive == [1, 2, 3, 4, 4, 4, 4, 4, 3] * 2
    assert sum(one() is not None for one in made) == 0


def test_what_rounding_does_not_make_is_one(arm: TrialArm, tmp_path: Path) -> None:
    model, x = network()
    wrong = copy.deepcopy(model)
    with torch.no_grad():
        wrong[-3].weight[3, 4, 1, 1] += 1e-2  # type: ignore[index]
    found = judged(arm, tmp_path, wrong, x)
    assert any(difference.name.startswith("gradient") for difference in found.values)
    assert any(difference.name.startswith("output") for difference in found.values)


def test_the_step_that_is_timed_ends_with_the_optimizers() -> None:
    model, x = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    arm = TrialArm(load=lambda _: LoadedWorkload(model, (x,), {}, optimizer=optimizer))
    arm.answer(Load(TargetWorkload("a test"), True, "eager", SEED, random=False))
    before = copy.deepcopy(model.state_dict())
    arm.answer(Measure(2))
    assert not torch.equal(model[0].weight, before["0.weight"])  # type: ignore[index, union-attr]


def test_a_block_of_no_steps_tells_the_distance(arm: TrialArm, monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter((1.1, 2.0, 1.2, 1.3))
    monkeypatch.setattr(worker, "measure_distance", lambda: next(found))
    assert arm.answer(Measure(0)) == Measured((), distance=2.0)
    measured = arm.answer(Measure(2))
    assert isinstance(measured, Measured)
    assert (len(measured.seconds), measured.distance) == (2, 1.3)


def test_page_faults_of_each_step_are_counted(arm: TrialArm) -> None:
    found = arm.answer(CountFaults())
    assert isinstance(found, CountedFaults)
    # Some sandboxes count none.
    assert found.faults is None or len(found.faults.calls) == COUNTED_CALLS


class ChangedByItsFirstRun(nn.Module):
    """Runs another operator from its second call on."""

    def __init__(self) -> None:
        super().__init__()
        self.has_run = False

    def forward(self, x: Tensor) -> Tensor:
        was, self.has_run = self.has_run, True
        return x.relu() if was else x.relu() + 1


@pytest.mark.parametrize("proposes", [None, ("propagate_layout",)])
def test_inductor_does_not_keep_what_the_first_times_decide(proposes: tuple[str, ...] | None) -> None:
    def load() -> bool:
        model, x = network()
        arm = TrialArm(load=lambda _: LoadedWorkload(model, (x,), {}))
        arm.answer(Load(TargetWorkload("a test"), True, "inductor", SEED, proposes=proposes, random=False))
        return bool(inductor_config.fx_graph_cache)

    before = inductor_config.fx_graph_cache
    # Inductor's settings belong to the context.
    assert contextvars.copy_context().run(load) is (before and proposes is None)
    assert inductor_config.fx_graph_cache is before


@pytest.mark.parametrize("random", [None, False])
def test_the_search_for_random_numbers_does_not_change_what_is_compiled(random: bool | None) -> None:
    model = ChangedByItsFirstRun()
    arm = TrialArm(load=lambda _: LoadedWorkload(model, (torch.ones(3),), {}))
    arm.answer(Load(TargetWorkload("a test"), False, "eager", SEED, random=random))
    assert model.has_run is False


def test_a_program_that_cannot_be_copied_is_searched_itself() -> None:
    class Uncopied(ChangedByItsFirstRun):
        def __deepcopy__(self, _: object) -> Uncopied:
            raise TypeError("not to be copied")

    model = Uncopied()
    arm = TrialArm(load=lambda _: LoadedWorkload(model, (torch.ones(3),), {}))
    arm.answer(Load(TargetWorkload("a test"), False, "eager", SEED))
    assert model.has_run is True


@pytest.mark.parametrize("timed", [False, True])
def test_a_program_is_timed_with_its_own_random_numbers(timed: bool) -> None:
    def load() -> bool:
        inductor_config.fallback_random = False
        arm = TrialArm(load=lambda _: LoadedWorkload(nn.Dropout(), (torch.ones(8),), {}))
        arm.answer(Load(TargetWorkload("a test"), True, "eager", SEED, random=True, timed=timed))
        return bool(inductor_config.fallback_random)

    assert contextvars.copy_context().run(load) is not timed


def test_eager_is_the_reference_for_what_a_program_compiles_by_itself(tmp_path: Path) -> None:
    def make_wrong(_: torch.fx.GraphModule, __: list[Tensor]) -> Any:
        return lambda *args: (args[0] * 2,)

    inner = torch.compile(lambda x: x.sin(), backend=make_wrong)
    wrong = nn.Module()
    wrong.forward = lambda x: inner(x) + 1  # type: ignore[method-assign]
    x = torch.ones(4)
    arm = TrialArm(load=lambda _: LoadedWorkload(wrong, (x,), {}))
    arm.answer(Load(TargetWorkload("a test"), False, "eager", SEED, random=False, plain=True))
    file = tmp_path / "ours"
    write_results(file, 0, observe_step(Program(wrong, wrong, (x,), {}, False), SEED))
    found = arm.answer(Judge(str(file), str(file), 1, 2.0, 3.0))
    assert isinstance(found, Judged)
    assert [difference.name for difference in found.departed] == ["output 0"]
