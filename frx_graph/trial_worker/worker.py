"""What answers for one arm of a trial, in a process of its own or in that of the program: it loads a workload, compiles
it, tells what it does, and measures it, as `frx_graph.trials.arm_messages` asks.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor, fx, nn

from frx_graph.capture.capture_facts import observe_capture
from frx_graph.capture.graph_signature import compiled_signature
from frx_graph.compiler.aot_context import graph_id
from frx_graph.compiler.inner_compiler import planned_backend
from frx_graph.compiler.plans import proposing_plan, recorded_plan
from frx_graph.compiler.rewrite_log import LOG, RewriteLog
from frx_graph.errors import FrxError, TrialError, first_line
from frx_graph.measure.inductor.compilations import compilations, compiled_between
from frx_graph.measure.memory_use import MemoryRecord, observe_memory
from frx_graph.measure.operators.kernel_identities import observe_kernels
from frx_graph.options import backend_options
from frx_graph.plan import Plan
from frx_graph.support.out_of_memory import out_of_memory
from frx_graph.support.torch_internals import inductor_config, pytree
from frx_graph.trial_worker.workload import Loadable, load_workload
from frx_graph.trials.arm_messages import (
    QUESTION,
    Answer,
    Examine,
    Examined,
    Judge,
    Judged,
    Load,
    Loaded,
    MadeGraph,
    Measure,
    Measured,
    Question,
    Warm,
    Warmed,
    Workload,
)
from frx_graph.trials.block_watch import block_watch, watched
from frx_graph.trials.environment import trial_environment
from frx_graph.trials.numerics import Errors, Multipliers
from frx_graph.trials.results import (
    Compared,
    Program,
    StepResults,
    compare,
    noise_of,
    observe_step,
    read_result,
    redrawn,
    same_results,
    same_step,
    seed_everything,
    write_result,
)
from frx_graph.trials.rounding_noise import RoundingNoise

_MOST_WARM_STEPS = 10
"""A program that still compiles something after so many steps does so in every one: its blocks will be void."""
_OBSERVED_STEPS = 3
_ROUNDINGS = 5
"""Runs with noise, whose largest error counts as the program's own."""


class TrialArm:
    """One program of a trial, from its workload to the last block.

    `load` finds the workload, if it is not one that travels; what is made of graphs is noted in `log`. `alone` says
    that the process has no other tensors than the arm's.
    """

    def __init__(
        self, load: Callable[[Workload], Loadable] | None = None, log: RewriteLog = LOG, *, alone: bool = True
    ) -> None:
        self._load_workload = load
        self._log = log
        self._alone = alone
        self._program: Program | None = None
        self._workload: Loadable | None = None
        self._process = contextlib.ExitStack()
        self._seed = 0
        self._signatures: dict[str, str] = {}
        self._failures: list[str] = []

    def answer(self, question: Question) -> Answer:
        """What is asked for. Raises whatever the workload raises."""
        match question:
            case Load():
                return self._load(question)
            case Warm():
                return self._warm(question)
            case Examine():
                return self._examine(question)
            case Judge():
                return self._judge(question)
            case Measure():
                return self._measure(question)

    def _load(self, asked: Load) -> Loaded:
        # Both arms make the same weights and inputs.
        seed_everything(asked.seed)
        workload = self._workload = (self._load_workload or load_workload)(asked.workload)
        # For as long as this process lives: to set threads and settings back and forth would disturb what is timed.
        self._process.enter_context(workload.process())
        self._seed = asked.seed
        with workload.surroundings():
            draws, repeats = (
                _probed(self._eager(asked.train), asked.seed) if asked.random is None else (asked.random, True)
            )
        if draws:
            # Inductor's own generator gives every element a number by its place in the loop: another layout, another
            # mask. As eager draws them they are the same in both arms.
            inductor_config.fallback_random = True
        options = backend_options({"inner": asked.inner}, asked.inner_mode)
        inner = planned_backend(
            options, _plan(asked), lambda error: self._failures.append(first_line(error)), self._log
        )

        def backend(dynamo: fx.GraphModule, example_inputs: list[Any], **how: Any) -> Any:
            self._signatures[graph_id()] = compiled_signature(dynamo.graph, asked.inner, asked.inner_mode)
            return inner(dynamo, example_inputs, **how)

        model = workload.model
        self._program = Program(
            call=torch.compile(model, backend=backend),
            model=model if isinstance(model, nn.Module) else None,
            args=workload.args,
            kwargs=workload.kwargs,
            train=asked.train,
            optimizer=workload.optimizer,
        )
        return Loaded(draws, trial_environment(_device_of(workload)), repeats)

    def _warm(self, asked: Warm) -> Warmed:
        program, workload = self._ready()
        started = time.perf_counter()
        first = 0.0
        with workload.surroundings():
            for step in range(max(asked.steps, _MOST_WARM_STEPS)):
                before = compilations()
                self._step(program)
                program.update()
                first = first or time.perf_counter() - started
                if step + 1 >= asked.steps and compiled_between(before, compilations()) is None:
                    break
        return Warmed(first, self._graphs(), tuple(self._failures))

    def _examine(self, asked: Examine) -> Examined:
        program, workload = self._ready()
        with workload.surroundings():
            capture = observe_capture(lambda _: self._step(program), steps=_OBSERVED_STEPS)
            kernels = observe_kernels(lambda: self._step(program))
            memory = observe_memory(lambda: self._step(program))
            if not self._alone:
                memory = _of_program(memory, program)
            for draw in range(asked.draws):
                write_result(Path(asked.file), draw, self._result(program, draw))
        return Examined(self._graphs(), tuple(self._failures), capture, kernels, memory)

    def _judge(self, asked: Judge) -> Judged:
        program, workload = self._ready()
        with workload.surroundings():
            exact = _in_fp64(self._eager(program.train))
            draws = [self._compared(asked, draw, exact) for draw in range(asked.draws)]
        return Judged(
            values=tuple(difference for found in draws for difference in found.values),
            forms=tuple(difference for found in draws for difference in found.forms),
            compared=sum(found.compared for found in draws),
            exact=all(found.exact for found in draws),
            placed=sum(found.placed for found in draws),
            share=max((found.share for found in draws if found.share is not None), default=None),
        )

    def _compared(self, asked: Judge, draw: int, exact: Program | None) -> Compared:
        """One draw, whose results are let go before the next one's are made: each set of them is as large as all
        parameters and gradients."""
        reference = None if exact is None else self._exact(exact, draw)
        ours, theirs = read_result(Path(asked.ours), draw), read_result(Path(asked.theirs), draw)
        allowed = Multipliers(asked.multiplier, asked.multiplier_half)
        return compare(draw, ours, theirs, reference, allowed, lambda: self._noisy(draw))

    def _measure(self, asked: Measure) -> Measured:
        program, workload = self._ready()
        device = _device_of(workload)
        seconds = []
        with workload.surroundings(), block_watch(watched(device, asked.ours)) as disturbance:
            for _ in range(asked.steps):
                _finish(device)
                started = time.perf_counter()
                program.step()
                program.update()
                _finish(device)
                seconds.append(time.perf_counter() - started)
                program.forget_gradients()
            found = disturbance()
        return Measured(tuple(seconds), found)

    def _ready(self) -> tuple[Program, Loadable]:
        if self._program is None or self._workload is None:
            raise TrialError("an arm was asked before it had loaded anything")
        return self._program, self._workload

    def _step(self, program: Program) -> None:
        program.forget_gradients()
        program.step()
        _finish(_device_of(self._ready()[1]))

    def _graphs(self) -> tuple[MadeGraph, ...]:
        """Dynamo's graphs, in the order in which they were compiled, with what was made of each."""
        made = {number: MadeGraph(signature) for number, signature in self._signatures.items()}
        for done in self._log.all():
            if (graph := made.get(done.graph_id)) is not None:
                applied = (replace(candidate, graph_id=done.signature) for candidate in done.applied)
                refused = (f"{refusal.subject}: {refusal.reason}" for refusal in done.refused)
                made[done.graph_id] = replace(
                    graph,
                    applied=(*graph.applied, *applied),
                    # A program's forward and backward may name the same.
                    untried=tuple(dict.fromkeys((*graph.untried, *done.untried))),
                    refused=(*graph.refused, *refused),
                )
        return tuple(made.values())

    def _result(self, program: Program, draw: int, within: AbstractContextManager[object] | None = None) -> StepResults:
        args, kwargs = redrawn((program.args, program.kwargs), draw)
        return observe_step(replace(program, args=args, kwargs=kwargs), self._seed, within)

    def _eager(self, train: bool) -> Program:
        assert self._workload is not None
        model = self._workload.model
        module = model if isinstance(model, nn.Module) else None
        workload = self._workload
        return Program(model, module, workload.args, workload.kwargs, train, workload.optimizer)

    def _exact(self, program: Program, draw: int) -> StepResults | None:
        """Of the program in float64, by eager; None where it does not run so."""
        try:
            return self._result(program, draw)
        except Exception:  # noqa: BLE001 - the workload's own code, in a type that it was not written for
            return None

    def _noisy(self, draw: int) -> Mapping[str, Errors]:
        """What rounding may make of a draw, by eager: by a run without noise, then some with; nothing where that cannot
        be told. Each runs a copy, so that a state that the program keeps is the same in all of them."""
        plain = self._eager(self._ready()[0].train)
        noises = (None, *map(RoundingNoise, range(_ROUNDINGS)))
        try:
            return noise_of(self._result(_copied(plain), draw, noise).values for noise in noises)
        except Exception:  # noqa: BLE001 - an operator of the workload's own may not run under a mode
            return {}


def _plan(asked: Load) -> Plan | None:
    if asked.proposes is not None:
        return proposing_plan(asked.proposes, asked.candidates)
    return recorded_plan(asked.candidates) if asked.candidates else None


def _probed(program: Program, seed: int) -> tuple[bool, bool]:
    """Whether it draws random numbers, which is so if two seeds make a difference; and whether the first seed computes
    the same again."""
    first = observe_step(program, seed)
    if same_results(first, observe_step(program, seed + 1)):
        return False, True
    return True, same_step(first, observe_step(program, seed))


def _copied(program: Program) -> Program:
    """With a model, and an optimizer, of its own; functions cannot be copied."""
    if program.model is None:
        return program
    model, optimizer = copy.deepcopy((program.model, program.optimizer))
    return replace(program, call=model, model=model, optimizer=optimizer)


def _in_fp64(program: Program) -> Program | None:
    """A copy of it; None where it cannot be had."""

    def widened(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        return value.detach().double().requires_grad_(value.requires_grad)

    try:
        program = _copied(program)
        call = program.call if program.model is None else program.model.double()
        args, kwargs = pytree.tree_map(widened, (program.args, dict(program.kwargs)))
    except Exception:  # noqa: BLE001 - the workload's own code, in a type that it was not written for
        return None
    return replace(program, call=call, args=args, kwargs=kwargs)


def _of_program(seen: MemoryRecord, program: Program) -> MemoryRecord:
    """Where there are others' tensors in the process, too: with what only this program's own take, since a peak is
    judged by its ratio to another."""
    tensors = [t for t in pytree.tree_leaves((program.args, dict(program.kwargs))) if isinstance(t, Tensor)]
    if program.model is not None:
        tensors += [*program.model.parameters(), *program.model.buffers()]
    storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors}
    live = {kind: sum(s.nbytes() for s in storages.values() if s.device.type == kind) for kind in ("cpu", "cuda")}
    device = None if seen.device is None else replace(seen.device, live_bytes=live["cuda"])
    return replace(seen, host=replace(seen.host, live_bytes=live["cpu"]), device=device)


def _device_of(workload: Loadable) -> torch.device:
    tensors = [t for t in pytree.tree_leaves((workload.args, dict(workload.kwargs))) if isinstance(t, Tensor)]
    if isinstance(workload.model, nn.Module):
        tensors.extend(workload.model.parameters())
    return next((tensor.device for tensor in tensors if tensor.device.type == "cuda"), torch.device("cpu"))


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def answer_to(arm: TrialArm, message: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `arm` answers to a message, as it travels; what fails an arm fails its trial, which is told."""
    try:
        answer = arm.answer(QUESTION.validate_python(message))
        found: Mapping[str, Any] = TypeAdapter(type(answer)).dump_python(answer, mode="json")
    except FrxError as error:
        return {"error": error.message, "hint": error.hint}
    except Exception as error:  # noqa: BLE001 - the workload's own code
        return {"error": first_line(error), "out_of_memory": out_of_memory(error)}
    return found
