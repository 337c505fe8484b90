"""Answer the messages of `frx_graph.trials.arm_messages` for one arm: load, compile, observe and measure a workload."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import fx

from frx_graph.capture.capture_facts import observe_capture
from frx_graph.capture.graph_signature import hash_compilation
from frx_graph.compiler.aot_context import get_graph_id
from frx_graph.compiler.inner_compiler import make_planned_backend
from frx_graph.compiler.plans import make_proposing_plan, make_recorded_plan
from frx_graph.compiler.rewrite_log import LOG, RewriteLog
from frx_graph.compiler.step_prices import price_steps
from frx_graph.errors import FrxError, TrialError, is_out_of_memory, suggest_remedy, summarize_error
from frx_graph.measure.inductor.compilations import describe_compiled_between, read_compilations
from frx_graph.measure.machine.nvml_device import find_nvidia_device
from frx_graph.measure.machine.processor_distance import measure_distance
from frx_graph.measure.memory_use import MemoryRecord, observe_memory
from frx_graph.measure.operators.kernel_identities import observe_kernels
from frx_graph.measure.page_faults import count_page_faults
from frx_graph.options import parse_backend_options
from frx_graph.support.allocator import pool_allocations
from frx_graph.support.torch_internals import get_storage_id, inductor_config
from frx_graph.trial_worker.workload import LoadedWorkload, convert_to_fp64, copy_program, load_workload
from frx_graph.trials.arm_messages import (
    QUESTION,
    Answer,
    Compile,
    Compiled,
    CountedFaults,
    CountFaults,
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
from frx_graph.trials.block_watch import watch_block
from frx_graph.trials.environment import read_trial_environment
from frx_graph.trials.numerics import Errors, Multipliers
from frx_graph.trials.results import (
    Comparing,
    Program,
    StepResults,
    are_results_equal,
    compare_results,
    estimate_noise,
    is_same_step,
    observe_step,
    permute_inputs,
    read_results,
    seed_everything,
    write_results,
)
from frx_graph.trials.rounding_noise import RoundingNoise

_MOST_WARM_STEPS = 10
"""A program that still compiles after so many steps does so in every one; its blocks will be void."""
_OBSERVED_STEPS = 3
_ROUNDINGS = 5
"""Runs with noise. The largest error among them counts as the program's own."""


class TrialArm:
    """One program of a trial, from its workload, which `load` returns, to the last block. `log` records the rewrites.
    `alone`: the process has no tensors but the arm's."""

    def __init__(
        self, load: Callable[[Workload], LoadedWorkload] | None = None, log: RewriteLog = LOG, *, alone: bool = True
    ) -> None:
        self._load_workload = load
        self._log = log
        self._alone = alone
        self._program: Program | None = None
        self._workload: LoadedWorkload | None = None
        self._process = contextlib.ExitStack()
        self._seed = 0
        self._signatures: dict[str, str] = {}
        self._failures: list[str] = []

    def answer(self, question: Question) -> Answer:
        """Return the answer to a question. Raises what the workload raises."""
        match question:
            case Load():
                return self._load(question)
            case Compile():
                return self._compile()
            case Warm():
                return self._warm(question)
            case Examine():
                return self._examine(question)
            case Judge():
                return self._judge(question)
            case Measure():
                return self._measure(question)
            case CountFaults():
                return self._count_faults()

    def _load(self, asked: Load) -> Loaded:
        # A process that proposes pools to time operators without page faults, and stays what the user's are.
        if asked.pool and not pool_allocations(by_plan=asked.proposes is not None):
            raise TrialError("this process cannot pool its memory: another allocator is in use, or refuses mallopt")
        # Both arms make the same weights and inputs.
        seed_everything(asked.seed)
        workload = self._workload = (self._load_workload or load_workload)(asked.workload)
        # Never left: switching threads and settings back and forth would disturb the timing.
        self._process.enter_context(workload.process())
        self._seed = asked.seed
        draws, repeats = bool(asked.random), True
        if asked.random is None:
            with workload.surroundings():
                draws, repeats = _probe_randomness(_copy_if_possible(workload.make_program(asked.train)), asked.seed)
        if draws and not asked.timed:
            # Inductor's own generator depends on the order of loops, and so on the layout. Eager's numbers are the same
            # in both arms. What is timed draws as the user's program does: eager's are not fused.
            inductor_config.fallback_random = True
        if asked.plain:
            # What the program compiles by itself is compiled again where it is observed.
            torch.compiler.reset()
            self._program = workload.make_program(asked.train)
            return Loaded(draws, read_trial_environment(workload.device), repeats)
        options = parse_backend_options({"inner": asked.inner}, asked.inner_mode)
        plan = make_recorded_plan(asked.candidates) if asked.candidates else None
        if asked.proposes is not None:
            plan = make_proposing_plan(asked.proposes, asked.candidates)
            # Inductor would keep what the first times decided, even if they were taken beside other programs.
            inductor_config.fx_graph_cache = False
        inner = make_planned_backend(
            options, plan, lambda error: self._failures.append(summarize_error(error)), self._log
        )

        def backend(dynamo: fx.GraphModule, example_inputs: list[Any], **how: Any) -> Any:
            self._signatures[get_graph_id()] = hash_compilation(dynamo.graph, asked.inner, asked.inner_mode)
            return inner(dynamo, example_inputs, **how)

        compiled: Any = torch.compile(workload.model, backend=backend)
        self._program = replace(workload.make_program(asked.train), call=compiled)
        return Loaded(draws, read_trial_environment(workload.device), repeats)

    def _warm(self, asked: Warm) -> Warmed:
        program, workload = self._require_loaded()
        started = time.perf_counter()
        first = 0.0
        with workload.surroundings():
            for step in range(max(asked.steps, _MOST_WARM_STEPS)):
                before = read_compilations()
                self._step(program)
                program.update()
                first = first or time.perf_counter() - started
                if step + 1 >= asked.steps and describe_compiled_between(before, read_compilations()) is None:
                    break
        return Warmed(first, self._list_graphs(), tuple(self._failures))

    def _compile(self) -> Compiled:
        program, workload = self._require_loaded()
        with workload.surroundings():
            return Compiled(observe_capture(lambda _: self._step(program), steps=_OBSERVED_STEPS))

    def _examine(self, asked: Examine) -> Examined:
        program, workload = self._require_loaded()
        with workload.surroundings():
            kernels = observe_kernels(lambda: self._step(program))
            memory = observe_memory(lambda: self._step(program))
            if not self._alone:
                memory = _limit_to_program(memory, program)
            for draw in range(asked.draws):
                write_results(Path(asked.file), draw, self._compute_result(program, draw))
        return Examined(self._list_graphs(), tuple(self._failures), kernels, memory)

    def _judge(self, asked: Judge) -> Judged:
        program, workload = self._require_loaded()
        with workload.surroundings():
            exact = convert_to_fp64(workload.make_program(program.train))
            draws = [self._compare_draw(asked, draw, exact) for draw in range(asked.draws)]
        return Judged(
            values=tuple(difference for found in draws for difference in found.values),
            forms=tuple(difference for found in draws for difference in found.forms),
            compared=sum(found.compared for found in draws),
            exact=all(found.exact for found in draws),
            placed=sum(found.placed for found in draws),
            share=max((found.share for found in draws if found.share is not None), default=None),
            departed=tuple(difference for found in draws for difference in found.departed),
            eager=all(found.eager for found in draws),
        )

    def _compare_draw(self, asked: Judge, draw: int, exact: Program | None) -> Judged:
        """Compare one draw. Its results are freed before the next draw: they are as large as all gradients."""
        program, workload = self._require_loaded()
        reference = eager = None
        # It is the workload's own code, in a type that it was not written for.
        with contextlib.suppress(Exception), self._run_eagerly():
            reference = None if exact is None else self._compute_result(exact, draw)
        # Without a compiler it may need more memory than there is.
        with contextlib.suppress(Exception), self._run_eagerly():
            eager = self._compute_result(workload.make_program(program.train), draw)
        ours, theirs = read_results(Path(asked.ours), draw), read_results(Path(asked.theirs), draw)
        allowed = Multipliers(asked.multiplier, asked.multiplier_half)
        beside = Comparing(draw, allowed, reference, eager, lambda: self._estimate_noise(draw))
        found = compare_results(ours, theirs, beside)
        if eager is None or not (found.values or found.departed) or self._repeats_eager(beside, eager):
            return found
        return compare_results(ours, theirs, replace(beside, eager=None))

    def _repeats_eager(self, beside: Comparing, before: StepResults) -> bool:
        """Return False if state that the program keeps moves on: eager ran later than the arms."""
        program, workload = self._require_loaded()
        with self._run_eagerly():
            again = self._compute_result(workload.make_program(program.train), beside.draw)
        differences, _ = beside.find_differences(before, again, ("eager", "eager, run again"))
        return not differences

    def _run_eagerly(self) -> AbstractContextManager[object]:
        """Return a context in which what the program compiles by itself runs in eager. The stance is that of all
        threads, so that a process with other programs keeps its own."""
        return torch.compiler.set_stance("force_eager") if self._alone else contextlib.nullcontext()

    def _measure(self, asked: Measure) -> Measured:
        program, workload = self._require_loaded()
        device = workload.device
        seconds = []
        before = measure_distance() if device.type == "cpu" else None
        with workload.surroundings(), watch_block(find_nvidia_device(device), asked.ours) as disturbance:
            for _ in range(asked.steps):
                _synchronize(device)
                started = time.perf_counter()
                program.step()
                program.update()
                _synchronize(device)
                seconds.append(time.perf_counter() - started)
                program.forget_gradients()
            found = disturbance()
        after = None if before is None else measure_distance()
        return Measured(tuple(seconds), found, None if before is None or after is None else max(before, after))

    def _count_faults(self) -> CountedFaults:
        program, workload = self._require_loaded()

        def step() -> None:
            self._step(program)
            program.update()

        with workload.surroundings():
            return CountedFaults(count_page_faults(step))

    def _require_loaded(self) -> tuple[Program, LoadedWorkload]:
        if self._program is None or self._workload is None:
            raise TrialError("an arm was asked before it had loaded anything")
        return self._program, self._workload

    def _step(self, program: Program) -> None:
        program.forget_gradients()
        program.step()
        _synchronize(self._require_loaded()[1].device)

    def _list_graphs(self) -> tuple[MadeGraph, ...]:
        """Return Dynamo's graphs, in the order in which they were compiled, with the rewrites of each."""
        made = {number: MadeGraph(signature) for number, signature in self._signatures.items()}
        for done in price_steps(self._log.read_all()):
            if (graph := made.get(done.graph_id)) is not None:
                applied = (replace(candidate, graph_id=done.signature) for candidate in done.applied)
                refused = (f"{refusal.subject}: {refusal.reason}" for refusal in done.refused)
                made[done.graph_id] = replace(
                    graph,
                    applied=(*graph.applied, *applied),
                    untried=(*graph.untried, *done.untried),
                    refused=(*graph.refused, *refused),
                )
        return tuple(made.values())

    def _compute_result(
        self, program: Program, draw: int, within: AbstractContextManager[object] | None = None
    ) -> StepResults:
        args, kwargs = permute_inputs((program.args, program.kwargs), draw)
        return observe_step(replace(program, args=args, kwargs=kwargs), self._seed, within)

    def _estimate_noise(self, draw: int) -> Mapping[str, Errors]:
        """Return the errors that rounding may cause in a draw; empty if the program fails under the noise."""
        # Each run has a copy, so that all start from the same state.
        program, workload = self._require_loaded()
        plain = workload.make_program(program.train)
        noises = (None, *map(RoundingNoise, range(_ROUNDINGS)))
        try:
            with self._run_eagerly():
                return estimate_noise(self._compute_result(copy_program(plain), draw, noise).values for noise in noises)
        except Exception:  # noqa: BLE001 - an operator of the workload's own may not run under a mode
            return {}


def _copy_if_possible(program: Program) -> Program:
    """Return a copy, since a first run may change what is compiled afterwards: transformers installs hooks in it.
    Return the program itself if it cannot be copied."""
    try:
        return copy_program(program)
    except Exception:  # noqa: BLE001 - the workload's own objects
        return program


def _probe_randomness(program: Program, seed: int) -> tuple[bool, bool]:
    """Return whether two seeds make a difference, and whether the first seed computes the same again."""
    first = observe_step(program, seed)
    if are_results_equal(first, observe_step(program, seed + 1)):
        return False, True
    return True, is_same_step(first, observe_step(program, seed))


def _limit_to_program(seen: MemoryRecord, program: Program) -> MemoryRecord:
    """Return the record with the live bytes of this program only: peaks are judged by their ratio to those."""
    storages = {get_storage_id(t.untyped_storage()): t.untyped_storage() for t in program.tensors}
    live = {kind: sum(s.nbytes() for s in storages.values() if s.device.type == kind) for kind in ("cpu", "cuda")}
    device = None if seen.device is None else replace(seen.device, live_bytes=live["cuda"])
    return replace(seen, host=replace(seen.host, live_bytes=live["cpu"]), device=device)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def handle_request(arm: TrialArm, message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the answer of `arm` to a message, or its failure, as JSON; a failure fails the trial."""
    try:
        answer = arm.answer(QUESTION.validate_python(message))
        found: Mapping[str, Any] = TypeAdapter(type(answer)).dump_python(answer, mode="json")
    except FrxError as error:
        return {"error": error.message, "hint": error.hint}
    except Exception as error:  # noqa: BLE001 - the workload's own code
        return {
            "error": summarize_error(error),
            "hint": suggest_remedy(error),
            "out_of_memory": is_out_of_memory(error),
        }
    return found
