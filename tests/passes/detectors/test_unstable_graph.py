"""FRX014 on programs that Dynamo really compiles again."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frx_graph.capture.captured_graph import Recompile
from frx_graph.passes.analysis import Analysis, CompileEvents
from frx_graph.passes.detectors.unstable_graph import DETECTOR, FEWEST, detect
from frx_graph.records import Basis, Effort, Finding, Severity

X = torch.randn(2, 4)
SCALE = 1


class Counted(nn.Module):
    """An integer attribute of a module is a constant to Dynamo."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.step


def counting(model: Counted, steps: int) -> list[Any]:
    def call(step: int) -> Any:
        def run(compiled: Any) -> None:
            model.step = step
            compiled(X)

        return run

    return [call(step) for step in range(steps)]


def findings(analyses: list[Analysis]) -> list[Finding]:
    return [found for analysis in analyses for found in detect(analysis) if isinstance(found, Finding)]


def test_a_value_that_changes_at_every_call_fires(recompile: Any) -> None:
    model = Counted()
    (found,) = findings(recompile(model, *counting(model, 4)))
    assert (found.rule, found.basis, found.count_per_step) == ("FRX014", Basis.OBSERVED, None)
    assert "Python value changed between calls" in found.title
    assert "as a tensor" in found.fix
    assert "step == 0" in found.evidence[0].text
    assert found.severity is Severity.MEDIUM
    assert found.copies == ()


def test_the_line_that_reads_the_value_is_named(recompile: Any) -> None:
    model = Counted()
    (found,) = findings(recompile(model, *counting(model, 4)))
    assert (found.site.file, found.site.function) == (__file__, "forward")


def test_two_recompilations_stay_quiet(recompile: Any) -> None:
    model = Counted()
    analyses = recompile(model, *counting(model, FEWEST))
    assert len(analyses[0].events.recompiles) == FEWEST - 1
    assert findings(analyses) == []


def test_strides_are_another_rules_business(recompile: Any) -> None:
    orders = [(0, 1, 2, 3), (0, 2, 3, 1), (0, 3, 1, 2), (1, 0, 2, 3), (3, 2, 1, 0)]
    base = torch.randn(4, 4, 4, 4)
    analyses = recompile(lambda x: x * 2, *((base.permute(order),) for order in orders))
    assert len(analyses[0].events.recompiles) >= FEWEST
    assert findings(analyses) == []


def test_modes_have_their_own_fix(recompile: Any) -> None:
    def without_gradients(compiled: Any) -> None:
        with torch.no_grad():
            compiled(X)

    def in_bf16(compiled: Any) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            compiled(X)

    def both(compiled: Any) -> None:
        with torch.no_grad():
            in_bf16(compiled)

    (found,) = findings(recompile(nn.Linear(4, 4), (X,), without_gradients, in_bf16, both))
    assert "one callable for each mode" in found.fix


def with_reasons(analysis: Analysis, *reasons: str, frame: str | None = None) -> Analysis:
    frame = frame or analysis.facts.graph_id.rpartition("/")[0]
    recompiles = tuple(Recompile(f"{frame}/{i + 1}", reason) for i, reason in enumerate(reasons))
    return Analysis(analysis.facts, (), 1, events=CompileEvents(recompiles=recompiles))


SIZE = "0/0: tensor 'x' size mismatch at index 0. expected 2, actual 4"
TYPE = "0/0: expected type of 'x' to be <class 'torch.Tensor'>, but found <class 'int'>"
STRIDE = "0/0: tensor 'x' stride mismatch at index 1. expected 256, actual 1"


def test_causes_are_grouped_most_frequent_first(recompile: Any) -> None:
    (analysis,) = recompile(lambda x: x + 1, (X,))
    (found,) = detect(with_reasons(analysis, TYPE, SIZE, SIZE, SIZE))
    assert isinstance(found, Finding)
    assert "size changed" in found.title
    assert [e.text.partition(",")[0] for e in found.evidence[:2]] == ["size", "type"]
    assert found.fix.index("mark_dynamic") < found.fix.index("same type")
    assert found.effort is Effort.LOCAL


def test_sizes_alone_are_one_line(recompile: Any) -> None:
    (analysis,) = recompile(lambda x: x + 1, (X,))
    (found,) = detect(with_reasons(analysis, SIZE, SIZE, SIZE))
    assert isinstance(found, Finding)
    assert found.effort is Effort.ONE_LINE


@pytest.mark.parametrize(("strides", "severity"), [(4, Severity.MEDIUM), (5, Severity.HIGH)])
def test_all_versions_count_towards_the_limit(recompile: Any, strides: int, severity: Severity) -> None:
    (analysis,) = recompile(lambda x: x + 1, (X,))
    (found,) = detect(with_reasons(analysis, *[TYPE] * 3, *[STRIDE] * (strides - 1)))
    assert isinstance(found, Finding)
    assert found.severity is severity


@pytest.mark.parametrize(("limit", "severity"), [(5, Severity.MEDIUM), (4, Severity.HIGH)])
def test_the_limit_is_the_one_that_dynamo_is_set_to(recompile: Any, limit: int, severity: Severity) -> None:
    (analysis,) = recompile(lambda x: x + 1, (X,))
    with torch._dynamo.config.patch(recompile_limit=limit):
        (found,) = findings([with_reasons(analysis, *[TYPE] * 3)])
    assert found.severity is severity


def test_other_frames_are_other_graphs_business(recompile: Any) -> None:
    (analysis,) = recompile(lambda x: x + 1, (X,))
    assert list(detect(with_reasons(analysis, *[SIZE] * 5, frame="77"))) == []
    assert list(detect(with_reasons(analysis, *[SIZE] * 5, frame="1:0"))) == []


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2


def test_a_graph_break_that_a_step_runs_into_many_times_fires(recompile: Any) -> None:
    first, second = recompile(Noisy(), (X,))
    (found,) = detect(replace(first, facts=replace(first.facts, calls=12)))
    assert isinstance(found, Finding)
    assert found.count_per_step == 12
    assert (found.site.file, found.site.function) == (__file__, "forward")
    assert list(detect(replace(second, facts=replace(second.facts, calls=12)))) == []


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        if y.sum() > 0:
            y = y * 2
        return y - 3


def test_title_describes_the_break_in_terms_of_the_program(recompile: Any) -> None:
    first = recompile(Branching(), (X,))[0]
    (found,) = detect(replace(first, facts=replace(first.facts, calls=3)))
    assert isinstance(found, Finding)
    assert found.title == "A graph break that a step runs into 3 times: a branch depends on the value of a tensor"


def test_a_graph_break_that_a_step_runs_into_once_stays_quiet(recompile: Any) -> None:
    assert findings(recompile(Noisy(), (X,))) == []


def test_the_detector_is_registered_under_its_name() -> None:
    assert (DETECTOR.rule, DETECTOR.name) == ("FRX014", "unstable_graph")
