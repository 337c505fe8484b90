"""Two programs that differ in one thing are captured; the facts differ in that thing, and in nothing else."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import textwrap
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch._dynamo import utils as dynamo_utils
from torch._inductor import cudagraph_utils

from frx_graph.capture import capture_facts
from frx_graph.capture.capture_changes import CaptureChange, find_regressions
from frx_graph.capture.capture_facts import CaptureFacts, normalize_guard, observe_capture

BACKENDS = ("eager", pytest.param("inductor", marks=pytest.mark.integration))
FACTS = TypeAdapter(CaptureFacts)


class Net(nn.Module):
    """With `broken`, the graph ends in the middle."""

    def __init__(self, broken: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.broken = broken

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if self.broken:
            torch._dynamo.graph_break()
        return y.relu() * 2


class Counting(nn.Module):
    """Reads a number that changes with every step, so that its guard fails."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.name = "0"

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return y + 1 if self.name == "0" else y - len(self.name)


def captured(
    model: nn.Module,
    backend: str = "eager",
    image: Callable[[int], Tensor] = lambda _: torch.ones(2, 3, 8, 8),
    before: Callable[[int], Any] = lambda _: None,
    train: bool = False,
    **options: Any,
) -> CaptureFacts:
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend, **options)

    def step(number: int) -> None:
        before(number)
        with torch.set_grad_enabled(train):
            result = compiled(image(number))
        if train:
            result.sum().backward()

    return observe_capture(step)


def kinds(baseline: CaptureFacts, candidate: CaptureFacts) -> list[CaptureChange]:
    return [found.kind for found in find_regressions(baseline, candidate)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_program_twice_has_the_same_facts(backend: str, nothing_compiled: None) -> None:
    first, second = captured(Net(), backend), captured(Net(), backend)
    assert (first.graphs, first.breaks, first.recompiles, first.untold) == (1, (), (), ())
    assert [len(frame.guards) > 10 for frame in first.frames] == [True]
    assert first == second
    assert find_regressions(first, second) == ()
    assert FACTS.validate_json(FACTS.dump_json(first)) == first


class AsksForType(nn.Module):
    """As models of transformers do; Dynamo then puts the module `torch` into globals under a name made of its id."""

    def forward(self, x: Tensor) -> Tensor:
        return x.relu() if type(x) is torch.Tensor else x


def test_globals_that_are_named_by_an_id_are_the_same_guards() -> None:
    first, second = captured(AsksForType()), captured(AsksForType())
    assert any("G['_#']" in guard for frame in first.frames for guard in frame.guards)
    assert find_regressions(first, second) == ()


@pytest.mark.integration
def test_another_process_has_the_same_guards() -> None:
    script = textwrap.dedent(
        """
        import sys, torch
        from pydantic import TypeAdapter
        from frx_graph.capture.capture_facts import CaptureFacts, observe_capture
        padding = [object() for _ in range(int(sys.argv[1]))]
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
        compiled = torch.compile(model, backend="eager")
        facts = observe_capture(lambda _: compiled(torch.ones(2, 3, 8, 8)))
        sys.stdout.buffer.write(TypeAdapter(CaptureFacts).dump_json(facts))
        """
    )
    told = [
        FACTS.validate_json(subprocess.run([sys.executable, "-c", script, n], check=True, capture_output=True).stdout)
        for n in ("0", "100000")
    ]
    assert told[0].frames
    assert told[0] == told[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_graph_break_is_reported_with_its_place(backend: str, nothing_compiled: None) -> None:
    whole, broken = captured(Net(), backend), captured(Net(broken=True), backend)
    assert broken.graphs == 2
    assert kinds(broken, whole) == [CaptureChange.GUARD]  # `self.broken` is another constant: that guard is all
    found = {worse.kind: worse.detail for worse in find_regressions(whole, broken)}
    assert found.keys() >= {CaptureChange.GRAPH_BREAK, CaptureChange.MORE_GRAPHS}
    assert __file__ in found[CaptureChange.GRAPH_BREAK]
    assert found[CaptureChange.MORE_GRAPHS] == "2 instead of 1"


def test_functions_that_are_compiled_now_are_no_regression(nothing_compiled: None) -> None:
    before = captured(Net())
    (frame,) = before.frames
    more = dataclasses.replace(before, graphs=2, frames=(frame, dataclasses.replace(frame, name="gate")))
    assert kinds(before, more) == []
    same = dataclasses.replace(before, graphs=2)
    assert kinds(before, same) == [CaptureChange.MORE_GRAPHS]


def test_recompile_in_every_step_is_reported_with_its_reason() -> None:
    steady, restless = Counting(), Counting()
    baseline = captured(steady)
    candidate = captured(restless, before=lambda number: setattr(restless, "name", str(number)))
    assert [recompile.step for recompile in candidate.recompiles] == [1, 2]
    found = [w for w in find_regressions(baseline, candidate) if w.kind is CaptureChange.RECOMPILE]
    assert len(found) == 2
    assert "name" in found[0].detail
    assert CaptureChange.RECOMPILE not in kinds(candidate, candidate)
    assert CaptureChange.MORE_GRAPHS not in kinds(baseline, candidate)


def test_the_reason_of_a_recompile_ends_before_the_users_stack() -> None:
    told = types.SimpleNamespace(
        recompile_reason="0/0: tensor 'x' size mismatch at index 0\nUser stack trace:\n  File \"model.py\", line 3",
        co_name="forward",
        co_filename="model.py",
        co_firstlineno=1,
    )
    (found,) = capture_facts._read_recompiles([told], [1])
    assert found.reason == "tensor 'x' size mismatch at index 0"


def test_recompiles_shared_with_the_baseline_are_not_a_change() -> None:
    def growing(number: int) -> Tensor:
        return torch.ones(2 + number, 3, 8, 8)

    def growing_channels_last(number: int) -> Tensor:
        return growing(number).to(memory_format=torch.channels_last)

    baseline = captured(Net(), image=growing, dynamic=False)
    candidate = captured(Net(), image=growing_channels_last, dynamic=False)
    assert len(baseline.recompiles) == 2
    assert CaptureChange.RECOMPILE not in kinds(baseline, candidate)


def test_other_strides_are_new_guards() -> None:
    baseline = captured(Net())
    candidate = captured(Net().to(memory_format=torch.channels_last))
    found = find_regressions(baseline, candidate)
    assert [worse.kind for worse in found] == [CaptureChange.GUARD]
    assert "_parameters['weight']" in found[0].detail


def test_another_guard_is_worse() -> None:
    baseline = captured(Net())
    for changed in ("size=[2, 3, 8, 8]", "requires_grad=False"):
        guards = tuple(guard.replace(changed, "something else") for guard in baseline.frames[0].guards)
        assert guards != baseline.frames[0].guards
        frame = dataclasses.replace(baseline.frames[0], guards=guards)
        candidate = dataclasses.replace(baseline, frames=(frame,))
        assert kinds(baseline, candidate) == [CaptureChange.GUARD]


@pytest.mark.integration
def test_backward_is_not_a_second_graph(nothing_compiled: None) -> None:
    assert captured(Net(), "inductor", train=True).graphs == 1


@pytest.mark.integration
def test_more_compilations_than_dynamo_remembers_are_counted() -> None:
    class Many(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for function in functions:
                x = function(x)
            return x

    def one(x: Tensor) -> Tensor:
        return x + 1

    # Each function has code of its own, and is compiled by itself.
    codes = [one.__code__.replace(co_name=f"f{number}") for number in range(70)]
    functions = [torch.compile(types.FunctionType(code, globals()), backend="eager") for code in codes]
    torch._dynamo.reset()
    x, many = torch.ones(2), Many()
    facts = observe_capture(lambda _: many(x))
    assert facts.graphs == 70
    assert len(facts.frames) == 70
    assert dynamo_utils._compilation_metrics.maxlen == dynamo_utils.DEFAULT_COMPILATION_METRICS_LIMIT


@pytest.mark.integration
def test_a_skipped_cuda_graph_is_counted(nothing_compiled: None) -> None:
    """On the CPU there is nothing to record: torch counts a skip, without a reason."""
    baseline, candidate = captured(Net(), "inductor"), captured(Net(), "inductor", mode="reduce-overhead")
    assert (baseline.cudagraph_skips, candidate.cudagraph_skips) == (0, 1)
    assert kinds(baseline, candidate) == [CaptureChange.CUDAGRAPH_SKIP]
    assert kinds(candidate, baseline) == []


def test_the_reason_of_a_skip_is_kept() -> None:
    facts = observe_capture(
        lambda _: cudagraph_utils.log_cudagraph_skip_and_bump_counter("skipping cudagraphs\n due to a mutated input")
    )
    assert facts.cudagraph_skips == 3
    assert facts.cudagraph_skip_reasons == ("skipping cudagraphs due to a mutated input",)


@pytest.mark.parametrize("missing", ["graph breaks", "compilations", "guards"])
def test_facts_missing_from_torch_are_not_compared(missing: str) -> None:
    whole = captured(Net())
    broken = captured(Net(broken=True))
    quiet = dataclasses.replace(broken, untold=(missing,))
    assert len(find_regressions(whole, quiet)) < len(find_regressions(whole, broken))


def test_facts_of_other_numbers_of_steps_are_not_compared() -> None:
    facts = captured(Net())
    with pytest.raises(ValueError, match="2 steps of the baseline, 3"):
        find_regressions(dataclasses.replace(facts, steps=2), facts)
    with pytest.raises(ValueError, match="0 steps"):
        observe_capture(lambda _: None, 0)


@pytest.mark.parametrize(
    ("expression", "normalised"),
    [
        (
            "___check_obj_id(G['torch'].F, 140428489055488), type=<class 'module'>",
            "___check_obj_id(G['torch'].F), type=<class 'module'>",
        ),
        ("___check_type_id(L['x'], 94328241216224)", "___check_type_id(L['x'])"),
        ("G['__builtins_dict___12']['len']", "G['__builtins_dict']['len']"),
        ("___check_type_id(G['___unnamed_scope_140098877775872_c0']), 1", "___check_type_id(G['___unnamed_scope']), 1"),
        (
            "___check_obj_id(G['_140271496230000_c0'].Tensor, 94328241216224), type=<class 'torch.Tensor'>",
            "___check_obj_id(G['_#'].Tensor), type=<class 'torch.Tensor'>",
        ),
        ("___check_obj_id(G['mod_140271496230000_c12'].weight, 1)", "___check_obj_id(G['mod_#'].weight)"),
        ("G['x_2_c3'] == 1", "G['x_2_c3'] == 1"),
        ("L['f'] is <function f at 0x7fb75ac22930>", "L['f'] is <function f at 0x>"),
        ("L['n'] == 140428489055488", "L['n'] == #"),
        ("size=[1048576, 3], stride=[3, 1]", "size=[1048576, 3], stride=[3, 1]"),
        ("L['s']._modules['0'].k['a'] == 2", "L['s']._modules['0'].k['a'] == 2"),
    ],
)
def test_ids_and_addresses_are_taken_out_of_guards(expression: str, normalised: str) -> None:
    assert normalize_guard(expression) == normalised
