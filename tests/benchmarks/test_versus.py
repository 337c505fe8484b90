"""The whole of a comparison on a small network, what it sees in a step, and its command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import versus
from torch import nn
from versus import cases, main, run
from versus_arms import EAGER_ARMS, INDUCTOR_ARMS, Arm, Inner, Kind, Program, selected
from versus_case import Case, Mode
from versus_evidence import Conversions, ScheduleReader, highest_sum, peak_memory
from versus_measure import Settings, measure
from versus_results import CaseResult
from versus_timing import Step
from zoo_entry import BATCH, Built, Group, ZooEntry, seeded

from frx_graph.support.allocator import Allocation

CPU = torch.device("cpu")


def small(train: bool = False, batch: int = BATCH) -> Built:
    with seeded():
        model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(400, 4))
        return model.train(train), (torch.randn(batch, 3, 9, 9),), {}


ENTRY = ZooEntry("small", small, Group.WRITTEN)
CASE = Case(ENTRY, Mode.TRAINING, 4, "fp32", Inner.EAGER)


def counting(step: Step, count: int) -> float:
    """A clock to which every step is equally long."""
    for _ in range(count):
        step()
    return 1.0


SETTINGS = Settings(CPU, rounds=2, block_seconds=1.0, patience_s=0.0, clock=counting, progress=lambda text: None)


def doubling(model: nn.Module) -> Program:
    return lambda x: model(x) * 2


def failing(model: nn.Module) -> Program:
    raise NotImplementedError("not here\nnor there")


def test_arms_that_are_wrong_or_fail_are_reported_and_the_others_measured() -> None:
    arms = (*EAGER_ARMS[:2], Arm("wrong", Kind.VARIANT, doubling), Arm("failing", Kind.VARIANT, failing))
    result = measure(CASE, arms, SETTINGS)
    reference, variant, wrong, failed = result.arms
    assert (reference.seconds, reference.error) == ((1.0, 1.0), None)
    assert variant.ratio is not None
    assert variant.ratio.median == 1.0
    assert reference.compile_s is None
    assert reference.peak_bytes is not None
    assert reference.peak_bytes > 0
    assert (wrong.error, wrong.ratio) == ("wrong output 0", None)
    assert failed.error == "NotImplementedError: not here"


def test_wrong_reference_is_not_used() -> None:
    result = measure(CASE, (Arm("wrong", Kind.REFERENCE, doubling), EAGER_ARMS[1]), SETTINGS)
    assert [(arm.arm, arm.error, arm.seconds) for arm in result.arms] == [("wrong", "wrong output 0", ())]


@pytest.mark.integration
def test_inference_under_inductor_and_its_hand_tuned_variants() -> None:
    case = next(cases([ENTRY], [Mode.INFERENCE], [2], ["fp32"], [Inner.INDUCTOR]))
    arms = tuple(arm for arm in INDUCTOR_ARMS if arm.name in ("inductor", "channels-last", "freezing"))
    result = measure(case, arms, SETTINGS)
    assert [(arm.arm, arm.error) for arm in result.arms] == [(arm.name, None) for arm in arms]
    by_name = {arm.arm: arm for arm in result.arms}
    assert by_name["inductor"].compile_s is not None
    assert by_name["freezing"].conversion_bytes is not None
    # The weight is converted on every call, except where it is a constant.
    assert (by_name["inductor"].conversion_bytes or 0) > by_name["freezing"].conversion_bytes


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:frx applies rewrites that no trial has proved:RuntimeWarning")
def test_every_arm_that_this_build_has_runs_and_is_right() -> None:
    case = next(cases([ENTRY], [Mode.INFERENCE], [2], ["fp32"], [Inner.EAGER]))
    arms = selected(Inner.EAGER, None)
    assert [(arm.arm, arm.error) for arm in measure(case, arms, SETTINGS).arms] == [(arm.name, None) for arm in arms]


def random(train: bool = False, batch: int = BATCH) -> Built:
    model, args, _ = small(train, batch)
    model.register_forward_hook(lambda module, args, output: output + torch.rand(()))
    return model, args, {}


def test_a_network_that_cannot_be_checked_is_reported() -> None:
    result = measure(replace(CASE, entry=replace(ENTRY, build=random)), EAGER_ARMS[:2], SETTINGS)
    (only,) = result.arms
    assert (only.arm, only.seconds) == ("eager", ())
    assert only.error is not None
    assert only.error.startswith("ValueError: two equal steps in plain eager differ")


def test_inference_only_arm_is_left_out_of_training() -> None:
    arms = (EAGER_ARMS[0], Arm("frozen", Kind.VARIANT, EAGER_ARMS[0].compile, frozen=True))
    assert [arm.arm for arm in measure(CASE, arms, SETTINGS).arms] == ["eager"]


def test_a_kernel_that_only_moves_data_is_counted_as_often_as_it_runs() -> None:
    torch._dynamo.reset()
    reader, x = ScheduleReader(), torch.ones(32, 48)
    program = torch.compile(lambda x: x.t().contiguous())
    with reader.compiling():
        program(x)
    bytes_moved = 2 * 32 * 48 * 4
    assert reader.conversions(lambda: program(x)) == Conversions(1, bytes_moved)
    assert reader.conversions(lambda: (program(x), program(x))) == Conversions(2, 2 * bytes_moved)
    assert reader.conversions(lambda: None) == Conversions(0, 0)


def test_a_graph_that_was_compiled_elsewhere_makes_the_count_unknown() -> None:
    torch._dynamo.reset()
    reader, x = ScheduleReader(), torch.ones(32, 48)
    program = torch.compile(lambda x: x.t().contiguous() + 1)
    program(x)
    assert reader.conversions(lambda: program(x)) is None


def test_copies_of_eager_are_counted() -> None:
    x = torch.ones(32, 48)
    assert ScheduleReader().conversions(lambda: x.t().contiguous()) == Conversions(1, 2 * 32 * 48 * 4)


def test_peak_memory_is_what_is_held_at_one_time() -> None:
    x = torch.ones(1 << 18)
    megabyte = 4 << 18

    def step() -> None:
        y = x + 1
        del y
        z = x + 1
        z + 1

    peak = peak_memory(step, CPU)
    assert peak is not None
    assert 2 * megabyte <= peak < 2.1 * megabyte


@pytest.mark.parametrize(("changes", "highest"), [([4, -4, 3, 2, -5], 5), ([-4, 2], 0), ([1], 1), ([], None)], ids=str)
def test_highest_sum(changes: list[int], highest: int | None) -> None:
    assert highest_sum(changes) == highest


def result_of(title: str) -> CaseResult:
    return CaseResult(title, ENTRY.group, Mode.INFERENCE, 1, "fp32", Inner.EAGER, 1, 0, ())


def test_no_case_is_begun_when_the_budget_is_spent() -> None:
    planned = list(cases([ENTRY], list(Mode), [1, 8], ["fp32"], [Inner.EAGER]))
    assert [(case.mode.value, case.batch) for case in planned] == [("inference", 1), ("inference", 8), ("training", 4)]
    both = [Allocation.POOLED, Allocation.DEFAULT]
    pooled = [case.allocation for case in cases([ENTRY], list(Mode), [1], ["fp32"], [Inner.EAGER], both)]
    # A process that pools memory cannot go back.
    assert pooled == [Allocation.DEFAULT] * 2 + [Allocation.POOLED] * 2
    (training,) = cases([ENTRY], [Mode.TRAINING], [1, 8], ["fp32"], [Inner.EAGER], train_batch=16)
    assert training.batch == 16
    times = iter([0.0, 0.0, 5.0, 10.0])
    reports: list[int] = []
    results, left_out = run(
        planned,
        lambda case: result_of(case.entry.name),
        10.0,
        lambda results, left: reports.append(len(results)),
        now=lambda: next(times),
    )
    assert len(results) == 2
    assert left_out == [planned[2].title]
    assert reports == [1, 2]


def test_the_command_line_measures_prints_and_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versus, "zoo_entry", lambda name: ENTRY)
    file = tmp_path / "versus.json"
    code = main(["--quick", "--inners", "eager", "--modes", "inference", "--arms", "eager", "--json", str(file)])
    shown = capsys.readouterr()
    assert code == 0
    assert "small, inference, batch 1, fp32, inner eager" in shown.out
    assert "compiling eager" in shown.err
    written = json.loads(file.read_text())
    assert written["environment"]["torch"] == torch.__version__
    (case,) = written["cases"]
    assert [len(arm["seconds"]) for arm in case["arms"]] == [3]
    assert written["left_out"] == []


@pytest.mark.integration
def test_a_run_goes_on_where_the_last_one_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versus, "zoo_entry", lambda name: ENTRY)
    file = tmp_path / "versus.json"
    arguments = ["--quick", "--inners", "eager", "--modes", "inference", "--arms", "eager", "--json", str(file)]
    main([*arguments, "--resume"])
    first = json.loads(file.read_text())["cases"]
    main([*arguments, "--batches", "1,2", "--resume"])
    both = json.loads(file.read_text())["cases"]
    assert [case["batch"] for case in both] == [1, 2]
    assert both[0] == first[0]
    file.write_text(file.read_text().replace(torch.__version__, "1.0.0"))
    with pytest.raises(SystemExit):
        main([*arguments, "--resume"])
    assert "was not measured in this environment" in capsys.readouterr().err


@pytest.fixture(autouse=True)
def default_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versus, "read_allocation", lambda: Allocation.DEFAULT)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--entries", "resnet19"], "no network 'resnet19'"),
        (["--dtypes", "fp8"], "no dtype fp8; there are fp32, bf16"),
        (["--modes", "dreaming"], "'dreaming' is not a valid Mode"),
        (["--arms", "magic"], "no arm 'magic'"),
        (["--resume"], "--resume needs the --json FILE"),
        (["--allocations", "mine"], "this process has default memory, and cannot measure mine"),
    ],
)
def test_what_there_is_not_is_named(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2
    assert said in capsys.readouterr().err
