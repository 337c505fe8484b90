"""Trials in the process of the program, in the middle of its compilation: of a graph with an operator that only this
file knows. Nothing of the program's state is another one afterwards."""

from __future__ import annotations

import contextlib
import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo import convert_frame
from torch._dynamo import utils as dynamo_utils
from torch._inductor import config as inductor_config

from frx_graph import backend
from frx_graph.autopilot import search
from frx_graph.autopilot.proposals import propose_rewrites
from frx_graph.compiler.plans import ALL_REWRITES, filter_by_risk
from frx_graph.errors import SerializationError
from frx_graph.ledger.decision import Decision
from frx_graph.options import parse_backend_options
from frx_graph.records import Candidate, Risk
from frx_graph.trial_worker import worker
from frx_graph.trial_worker.graph_file import hold_graph, write_graph
from frx_graph.trial_worker.in_process import InProcessArms
from frx_graph.trials.arm_messages import GraphWorkload, Load, MadeGraph
from frx_graph.trials.arm_process import ArmError, Cause
from frx_graph.trials.executor import run_trial
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.process_pairs import Programs
from frx_graph.trials.trial_run import Gate, TrialRun
from frx_graph.trials.verdict import Outcome, Verdict

POLICY = TrialPolicy(process_pairs=2, quads_per_pair=3, steps_per_block=1, void_quads_allowed=0)


@torch.library.custom_op("frx_test_in_process::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _backward(ctx: Any, gradient: Tensor) -> Tensor:
    return gradient * 2


twice.register_autograd(_backward)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(twice(torch.relu(self.norm(self.first(x)))))


@pytest.fixture
def model() -> Iterator[tuple[nn.Module, Tensor]]:
    torch._dynamo.reset()
    backend.clear()
    torch.manual_seed(0)
    yield Net(), torch.randn(2, 4, 8, 8)
    torch._dynamo.reset()
    backend.clear()


def in_its_compilation(model: tuple[nn.Module, Tensor], do: Callable[[fx.GraphModule, Sequence[Any]], Any]) -> Any:
    """What `do` returns, called as a backend is, for the one graph of the model."""
    found = []

    def compiling(dynamo: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        found.append(do(dynamo, inputs))
        return dynamo.forward

    program, x = model
    torch.compile(program, backend=compiling)(x)
    (result,) = found
    return result


def state() -> tuple[Any, ...]:
    """What everybody in a process shares, and what belongs to this thread."""
    return (
        torch.get_rng_state().tolist(),
        random.getstate(),
        str(numpy.random.get_state()),
        {name: dict(found) for name, found in dynamo_utils.counters.items()},
        {name: len(seconds) for name, seconds in dynamo_utils.compilation_time_metrics.items()},
        len(dynamo_utils.get_compilation_metrics()),
        backend.rewritten(),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        inductor_config.fallback_random,
        inductor_config.fx_graph_cache,
        torch._guards.TracingContext.try_get(),
    )


def wanted(arms: InProcessArms, base: Load) -> tuple[Candidate, ...]:
    (graph,) = propose_rewrites(base, ["reuse_memory"], start=arms.start)
    assert graph.applied
    return graph.applied


def tried(model: tuple[nn.Module, Tensor], folder: Path, *, train: bool) -> TrialRun:
    program, x = model
    before = {name: value.clone() for name, value in program.state_dict().items()}
    given = x.clone()

    def trial(dynamo: fx.GraphModule, inputs: Sequence[Any]) -> TrialRun:
        with pytest.raises(SerializationError, match="twice"):
            write_graph(folder, dynamo, inputs)
        seen, nodes = state(), str(dynamo.graph)
        base = Load(GraphWorkload(str(folder)), train, "eager", seed=0)
        with InProcessArms(hold_graph(folder, dynamo, inputs)) as arms:
            programs = Programs(base, replace(base, candidates=wanted(arms, base)))
            run = run_trial(programs, POLICY, arms.start, in_process=True, pause=lambda _: None)
        assert state() == seen
        assert str(dynamo.graph) == nodes
        assert all(torch.equal(value, before[name]) for name, value in program.state_dict().items())
        assert torch.equal(x, given)
        assert all(parameter.grad is None for parameter in program.parameters())
        # The thread of the compilation has its lock again.
        convert_frame.compile_lock.release()
        convert_frame.compile_lock.acquire()
        return run

    run: TrialRun = in_its_compilation(model, trial)
    assert run.in_process
    return run


@pytest.mark.integration
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_an_operator_of_the_script_is_tried_and_nothing_of_the_program_changes(
    model, tmp_path: Path, train: bool
) -> None:
    model[0].train(train)
    with torch.set_grad_enabled(train):
        run = tried(model, tmp_path, train=train)
    assert [gate.name for gate in run.gates] == list(Gate)
    assert all(gate.passed in (True, None) for gate in run.gates[:-1]), run.gates
    assert {quad.quad.pair for quad in run.quads} == {0}
    with torch.set_grad_enabled(train):
        torch.manual_seed(1)
        found = model[0](model[1])
    assert found.requires_grad is train


@pytest.mark.integration
def test_a_wrong_candidate_is_rejected(model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = worker.make_planned_backend

    def planned(options: Any, plan: Any, *rest: Any) -> Any:
        right = plain(options, plan, *rest)

        def compiling(dynamo: fx.GraphModule, inputs: Sequence[Any]) -> Any:
            compiled = right(dynamo, inputs)
            wrong = plan is not None and plan.policy == "recorded"
            return (lambda *given: tuple(out * 1.01 for out in compiled(*given))) if wrong else compiled

        return compiling

    monkeypatch.setattr(worker, "make_planned_backend", planned)
    with torch.no_grad():
        model[0].eval()
        run = tried(model, tmp_path, train=False)
    assert run.verdict.outcome is Outcome.REJECT
    assert run.gates[-1].name is Gate.NUMERICS
    assert run.quads == ()


@pytest.mark.integration
def test_kernels_and_memory_are_seen_from_the_trials_thread(
    model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    compiled: list[Any] = []
    seen: list[Any] = []

    def note(kind: type, noted: list[Any]) -> Any:
        return lambda *fields: noted.append(kind(*fields)) or noted[-1]

    monkeypatch.setattr(worker, "Compiled", note(worker.Compiled, compiled))
    monkeypatch.setattr(worker, "Examined", note(worker.Examined, seen))
    with torch.no_grad():
        tried((model[0].eval(), model[1]), tmp_path, train=False)
    for one in seen:
        assert any("convolution" in count.kernel.name for count in one.kernels.kernels)
        assert one.memory.host.peak_bytes > one.memory.host.live_bytes > 0
        assert one.memory.host.live_bytes < 2**16
    for one in compiled:
        assert (one.capture.graphs, len(one.capture.frames), one.capture.recompiles) == (1, 1, ())
    assert len(seen) == len(compiled) == 2
    assert "ERROR" not in capfd.readouterr().err


def test_failing_arm_raises_and_slow_arm_times_out_afterwards(
    model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = in_its_compilation(model, lambda dynamo, inputs: hold_graph(tmp_path, dynamo, inputs))
    message = {"ask": "load", "workload": {"kind": "graph", "folder": "-"}, "train": False, "inner": "eager", "seed": 0}
    with InProcessArms(held) as arms:
        with pytest.raises(ArmError, match="before it had loaded") as failed:
            arms.start().ask({"ask": "warm", "steps": 1}, seconds=60)
        assert failed.value.cause is Cause.RAISED
        with pytest.raises(ArmError) as late:
            arms.start().ask(message, seconds=0.0)
        assert late.value.cause is Cause.TIMED_OUT
        assert arms.start().ask(message, seconds=600)["random"] is True


@pytest.mark.integration
def test_random_program_passes_all_gates_against_itself_under_inductor(model, tmp_path: Path) -> None:
    def trial(dynamo: fx.GraphModule, inputs: Sequence[Any]) -> TrialRun:
        seen = state()
        base = Load(GraphWorkload(str(tmp_path)), True, "inductor", seed=0)
        with InProcessArms(hold_graph(tmp_path, dynamo, inputs)) as arms:
            run = run_trial(Programs(base, base), POLICY, arms.start, in_process=True, pause=lambda _: None)
        assert state() == seen
        return run

    run = in_its_compilation((model[0].train(), model[1]), trial)
    assert [gate.name for gate in run.gates] == list(Gate)
    assert all(gate.passed in (True, None) for gate in run.gates[:-1]), run.gates


def testseveral_ranks_is_not_left_alone_with_its_collectives(
    model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "has_several_ranks", lambda: True)

    def refused(dynamo: fx.GraphModule, inputs: Sequence[Any]) -> None:
        with pytest.raises(SerializationError, match="twice"), contextlib.ExitStack() as stack:
            search._make_arms(tmp_path, dynamo, inputs, TrialPolicy(risk=Risk.HIGH), stack)

    in_its_compilation(model, refused)


def test_inputs_that_cannot_be_copied_are_not_tried(tmp_path: Path) -> None:
    graph = fx.symbolic_trace(nn.ReLU())
    with pytest.raises(SerializationError, match="not a tensor"):
        hold_graph(tmp_path, graph, [3])


MADE = Candidate("propagate_layout", "a" * 16, ("convolution",), ("0,2,3,1",))


@pytest.mark.parametrize("risk", [Risk.LOW, Risk.MEDIUM])
def test_autopilot_tries_unserializable_graphs_in_process(model, risk: Risk, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        search, "propose_rewrites", lambda *given: asked.append(given) or (MadeGraph("b" * 16, (MADE,)),)
    )

    def trial(programs: Programs, policy: TrialPolicy, start: Any, *, in_process: bool, **_: Any) -> TrialRun:
        answer = start().ask(
            {
                "ask": "load",
                "workload": {"kind": "graph", "folder": "-"},
                "train": False,
                "inner": "eager",
                "seed": 0,
            },
            seconds=600,
        )
        environment = worker.read_trial_environment(torch.device("cpu"))
        assert answer["environment"]["setup"]["processors"] == environment.setup.processors
        return TrialRun((), Verdict(Outcome.REJECT, "slower", None, early=True), (), environment, (), in_process)

    monkeypatch.setattr(search, "run_trial", trial)
    recorded: list[Decision] = []

    def trying(dynamo: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        options = parse_backend_options({"inner": "eager", "mode": "autopilot"}, None)
        return search.try_graph(
            copy.copy(dynamo),
            inputs,
            options,
            TrialPolicy(risk=risk),
            signature="c" * 16,
            environment="d" * 16,
            record=recorded.extend,
            progress=lambda _: None,
        )

    def refused(dynamo: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        with pytest.raises(SerializationError, match=r"twice.* risk LOW") as error:
            trying(dynamo, inputs)
        assert "MEDIUM" in error.value.hint

    in_its_compilation(model, refused if risk is Risk.LOW else trying)
    if risk is Risk.LOW:
        assert (asked, recorded) == ([], [])
        return
    assert asked[0][1] == filter_by_risk(ALL_REWRITES, Risk.MEDIUM, isolated=False) != ALL_REWRITES
    (document,) = [json.loads(one.trial) for one in recorded if one.trial is not None]
    assert document["in_process"] is True
