"""A sample of the zoo in every way to run it, rewritten; and that the check notices what a rewrite can do wrong."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import zoo_matrix
import zoo_matrix_case
from rewrite_oracle import Outcome, Verdict
from torch import Tensor, nn
from torch._dynamo.utils import counters
from versus_case import Mode
from zoo import zoo_entry
from zoo_entry import BATCH, Built, Group, ZooEntry, seeded
from zoo_matrix import AXES, DIED, Result, cases, main, run
from zoo_matrix_case import MatrixCase, Reference, Shapes, check

INFERENCE, TRAINING = Mode.INFERENCE, Mode.TRAINING
STATIC, DYNAMIC = Shapes.STATIC, Shapes.DYNAMIC
SAMPLE = [
    MatrixCase(zoo_entry("custom_between"), "eager", TRAINING, "autocast", DYNAMIC),
    MatrixCase(zoo_entry("shufflenet"), "eager", INFERENCE, "fp32", STATIC),
    MatrixCase(zoo_entry("mixed_64_512"), "eager", INFERENCE, "bf16", STATIC),
    MatrixCase(zoo_entry("conv_flatten_linear"), "aot_eager", INFERENCE, "bf16", DYNAMIC),
    MatrixCase(zoo_entry("alternating_strides"), "aot_eager", TRAINING, "fp32", STATIC),
    MatrixCase(zoo_entry("nhwc_written"), "aot_eager", INFERENCE, "autocast", DYNAMIC),
    MatrixCase(zoo_entry("custom_between"), "inductor", INFERENCE, "fp32", DYNAMIC),
    MatrixCase(zoo_entry("alternating_strides"), "inductor", TRAINING, "bf16", STATIC),
    MatrixCase(zoo_entry("attention_block"), "inductor", INFERENCE, "autocast", STATIC),
]


def marked(case: MatrixCase) -> Any:
    """A case. Half precision is slow on CPUs without it, and training most of all."""
    slow = case.mode is TRAINING and case.precision != "fp32"
    return pytest.param(case, id=case.title, marks=[pytest.mark.nightly] if slow else [])


@pytest.mark.integration
@pytest.mark.parametrize("case", [marked(case) for case in SAMPLE])
def test_a_network_that_was_rewritten_is_the_same_network(case: MatrixCase) -> None:
    verdict = check(case, Reference.of(case))
    assert verdict.problems == ()
    assert verdict.outcome is Outcome.OK


def test_every_inner_compiler_meets_every_value_of_every_axis() -> None:
    axes = (AXES["modes"], AXES["dtypes"], AXES["dynamic"])
    met = {(case.inner, value) for case in SAMPLE for value in (case.mode, case.precision, case.shapes)}
    assert met == {(inner, value) for inner in AXES["inners"] for axis in axes for value in axis}


class Small(nn.Module):
    """Two outputs of one memory, one of another, and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.norm(self.conv(x))
        return y, y.flatten(1), y * 2


def small(train: bool = False, batch: int = BATCH) -> Built:
    with seeded():
        return Small().train(train), (torch.randn(batch, 3, 6, 5),), {}


ENTRY = ZooEntry("small", small, Group.WRITTEN)
CASE = MatrixCase(ENTRY, "eager", TRAINING, "fp32", STATIC)


def stub(after: Callable[[list[Tensor]], Sequence[Tensor]]) -> Callable[..., Any]:
    """A backend that runs a graph as it is, and changes what comes out."""
    return lambda module, _inputs: lambda *given: tuple(after(list(module(*given))))


@pytest.mark.integration
@pytest.mark.parametrize("precision", AXES["dtypes"])
@pytest.mark.parametrize("shapes", list(Shapes))
@pytest.mark.parametrize("mode", list(Mode))
def test_a_small_network_is_rewritten_and_right(mode: Mode, shapes: Shapes, precision: str) -> None:
    case = replace(CASE, mode=mode, shapes=shapes, precision=precision)
    verdict = check(case, Reference.of(case))
    assert verdict.outcome in (Outcome.OK, Outcome.REFUSED)
    assert verdict.problems == ()


def in_channels_last(outputs: list[Tensor]) -> list[Tensor]:
    return [o.contiguous(memory_format=torch.channels_last) if o.dim() == 4 else o for o in outputs]


def count_a_graph(outputs: list[Tensor]) -> list[Tensor]:
    counters["stats"]["unique_graphs"] += 1
    return outputs


def count_a_break(outputs: list[Tensor]) -> list[Tensor]:
    counters["graph_break"]["planted"] += 1
    return outputs


@pytest.mark.integration
@pytest.mark.parametrize(
    ("after", "said"),
    [
        (lambda outputs: [o * 1.01 for o in outputs], "output 0 in step 0"),
        (in_channels_last, "strides of outputs"),
        (lambda outputs: [outputs[0], *(o.clone() for o in outputs[1:])], "sharing of outputs (), not ((0, 1, 0),)"),
        (
            lambda outputs: [o.detach() + (o - o.detach()) * 2 for o in outputs],
            "gradient of inner.conv.weight in step 0",
        ),
        (count_a_graph, "(2, 3) graphs after each step, not (1, 1)"),
        (count_a_break, "(1, 2) breaks after each step, not (0, 0)"),
    ],
    ids=["value", "strides", "sharing", "gradient", "recompilation", "break"],
)
def test_what_is_wrong_is_named(after: Callable[[list[Tensor]], list[Tensor]], said: str) -> None:
    verdict = check(CASE, Reference.of(CASE), backend=stub(after))
    assert verdict.outcome is Outcome.WRONG
    assert any(said in problem for problem in verdict.problems), verdict.problems


@pytest.mark.integration
def test_statistics_that_are_not_kept_up_are_named() -> None:
    def frozen(module: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        def run_and_restore(*given: Tensor) -> Any:
            kept = [(value, value.clone()) for value in given if not value.requires_grad]
            made = module(*given)
            for value, before in kept:
                value.data.copy_(before)
            return made

        return run_and_restore

    verdict = check(CASE, Reference.of(CASE), backend=frozen)
    # The three outputs, then mean and variance.
    assert verdict.problems[0] == "output 3 in step 0"


@pytest.mark.integration
def test_a_backend_that_raises_is_wrong() -> None:
    def failing(*_: Any) -> Any:
        raise NotImplementedError("not here")

    verdict = check(CASE, Reference.of(CASE), backend=failing)
    assert verdict.outcome is Outcome.WRONG
    assert "not here" in verdict.problems[-1]


@pytest.mark.integration
def test_fault_shared_with_the_inner_compiler_is_not_attributed_to_frx(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = stub(in_channels_last)
    monkeypatch.setattr(zoo_matrix_case, "backend_alone", lambda _inner: backend)
    assert check(CASE, Reference.of(CASE), backend=backend).outcome is Outcome.BASELINE


@pytest.mark.integration
def test_graphs_that_every_backend_needs_are_not_ours() -> None:
    case = replace(CASE, entry=replace(ENTRY, alternates=True))
    verdict = check(case, Reference.of(case))
    assert (verdict.outcome, verdict.problems) == (Outcome.OK, ())


def test_a_random_network_cannot_be_checked() -> None:
    def random(train: bool = False, batch: int = BATCH) -> Built:
        model, args, kwargs = small(train, batch)
        model.register_forward_hook(lambda *given: (given[-1][0] + torch.rand(()),))
        return model, args, kwargs

    verdict = zoo_matrix.Checker("all")(replace(CASE, entry=replace(ENTRY, build=random)))
    assert verdict.outcome is Outcome.EAGER
    assert "random" in verdict.problems[0]


def everything() -> list[MatrixCase]:
    return list(cases(["custom_between"], dict(AXES)))


def test_every_combination_is_a_case_and_those_of_one_reference_follow_each_other() -> None:
    planned = everything()
    assert len({case.title for case in planned}) == len(planned) == 2 * 3 * 2 * 3
    groups = [(case.mode, case.precision, case.shapes) for case in planned]
    assert sum(a != b for a, b in itertools.pairwise(groups)) == 2 * 3 * 2 - 1


def test_run_resumes_and_reports_the_case_it_died_on() -> None:
    planned, files = everything()[:4], list[dict[str, Result]]()

    def checked(case: MatrixCase) -> Verdict:
        if case is planned[1]:
            raise KeyboardInterrupt
        refusals = Counter({"hoist_copy: conv_1 is too deep by 3": 2, "hoist_copy: conv_2 is too deep by 4": 1})
        return Verdict(Outcome.REFUSED, refusals=refusals)

    with pytest.raises(KeyboardInterrupt):
        run(planned, checked, {}, files.append)
    assert [result.outcome for result in files[-1].values()] == ["refused", DIED]
    assert files[-1][planned[0].title].refusals == {"hoist_copy: … is too deep by …": 3}
    asked: list[str] = []

    def rest(case: MatrixCase) -> Verdict:
        asked.append(case.title)
        return Verdict(Outcome.OK)

    clock = iter([0.0, 1.0, 2.0, 10.0])
    results, left_out = run(planned, rest, files[-1], files.append, budget_seconds=5, now=lambda: next(clock))
    assert asked == [planned[2].title]
    assert left_out == [planned[3].title]
    assert [result.outcome for result in results.values()] == ["refused", DIED, "ok"]
    assert zoo_matrix.failed(results) == [results[planned[1].title]]


@pytest.mark.integration
def test_the_command_reads_what_it_has_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zoo_matrix, "zoo_entry", lambda name: replace(ENTRY, name=name))
    given = ["--entries", "small", "--inners", "eager", "--modes", "inference", "--dtypes", "fp32"]
    file = tmp_path / "matrix.json"
    assert main([*given, "--json", str(file)]) == 0
    assert "2 cases: 2 ok" in capsys.readouterr().out
    monkeypatch.setattr(zoo_matrix, "check", lambda *_: Verdict(Outcome.WRONG, ("planted",)))
    assert main([*given, "--json", str(file)]) == 0
    assert len(json.loads(file.read_text())["cases"]) == 2
    assert main([*given, "--dynamic", "static"]) == 1
    assert "WRONG: small, inference, fp32, static, inner eager: wrong: planted" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--entries", "resnet51"], ["--dtypes", "fp8"], ["--dynamic", "sometimes"]])
def test_what_there_is_not_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(wrong)
    assert wrong[1] in capsys.readouterr().err
