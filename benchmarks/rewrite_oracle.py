"""Is a program that `backend="frx"` has rewritten still the same program?

`check_program` compares the rewritten program with the eager one and, where they differ, with what the inner compiler
makes of it without a plan: what that does as well, or does wrong, is not ours.
"""

from __future__ import annotations

import contextlib
import enum
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import torch
from other_layout import OtherLayout
from program_runs import Observation, Runnable, differences, distances, eager, observe
from random_program import RandomProgram, copied
from stored_arm import STORED, stored, stored_as
from torch import Tensor, fx, nn
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch_faults import TorchFaults

import frx_graph
from frx_graph import backend
from frx_graph.capture.captured_graph import Phase
from frx_graph.compiler import inner_compiler as compiler
from frx_graph.compiler.plans import make_current_plan
from frx_graph.compiler.rewrite_log import RewriteLog
from frx_graph.compiler.rewrite_pipeline import RewrittenGraph
from frx_graph.errors import RewriteError
from frx_graph.options import parse_backend_options
from frx_graph.passes import inner_choice
from frx_graph.records import Candidate, Refusal

NOISE = {"torch.float64": 1e-13, "torch.float32": 1e-6, "torch.bfloat16": 1e-2}
"""Relative, a few roundings of the type: a program that this alone changes as much as we did proves nothing."""

DISTURBED_RUNS = 16
"""With noise: rounding varies by a factor of three from run to run."""

AS_LARGE = 10.0
"""A difference up to so many times the largest that noise makes counts as large as that. Noise is added to what a
program reads; a kernel for another layout also sums in another order, which was seen to make six times as much (the
gradient of a batch norm's image)."""

COARSE = frozenset({"torch.bfloat16"})
"""Noise of a few roundings is so large in these that it proves something only where it is told wrong, too."""

FROZEN = "eager frozen"
"""In the place of an inner compiler: eager, through `frx_graph.compile`, with weights that are constants."""

CHOSEN = "eager chosen"
"""The same without `frx_graph.compile`, as a trial has promoted it: of one graph, until its weights change."""

ARMS = ("eager", "aot_eager", "inductor", FROZEN, STORED, CHOSEN)
"""What a program can be compiled with."""


class Outcome(enum.StrEnum):
    """What became of one program."""

    OK = "ok"
    """Rewritten, and the same."""
    REFUSED = "refused"
    """Something was proposed and not done; the same."""
    IDLE = "idle"
    """There was nothing to rewrite; the same."""
    WRONG = "wrong"
    """Not the same."""
    BASELINE = "baseline"
    """The inner compiler alone fails or is wrong on it."""
    UNSTABLE = "unstable"
    """A difference as large comes of rounding alone."""
    EAGER = "eager"
    """Eager itself cannot run it, or computes it wrongly."""


@dataclass(frozen=True)
class Verdict:
    """`problems` says what is wrong; `refusals` counts by reason what was not done."""

    outcome: Outcome
    problems: tuple[str, ...] = ()
    refusals: Counter[str] = field(default_factory=Counter)
    applied: Counter[str] = field(default_factory=Counter)


def check_program(
    program: RandomProgram,
    inner: str = "eager",
    train: bool | None = None,
    dynamic: bool | None = None,
    plan: str = "all",
) -> Verdict:
    """The verdict on one program; `train` and `dynamic` are the program's own where they are None."""
    program = replace(
        program,
        train=(program.train if train is None else train) and inner not in (FROZEN, CHOSEN),
        dynamic=program.dynamic if dynamic is None else dynamic,
    )
    loaded = program.load()
    try:
        return check_loaded(program, loaded, inner, plan)
    finally:
        loaded.forget()


def check_loaded(program: RandomProgram, loaded: Runnable, inner: str = "eager", plan: str = "all") -> Verdict:
    """The same for a model and inputs that are there; of `program` counts only how it is run."""
    with comparable():
        return _verdict(program, lambda arm, **how: observe(program, loaded, arm, **how), inner, plan)


def _verdict(program: RandomProgram, run: Callable[..., Observation], inner: str, plan: str) -> Verdict:
    plain = run(eager)
    if plain.error is not None:
        return Verdict(Outcome.EAGER, (plain.error,))
    told: list[RewrittenGraph] = []
    failures: list[str] = []
    ours = run(_planned(inner, plan, told, failures))
    if inner == STORED:
        run = _on_stored_weights(run, tuple(told))
        plain = run(eager)
        if plain.error is not None:
            return Verdict(Outcome.EAGER, (plain.error,))
    exact = run(eager, in_fp64=True)
    found = list(differences(plain, ours, exact))
    # One graph without a break is what no baseline can better; that it was compiled twice may be the size's fault.
    problems = [f"a rewrite failed: {failure}" for failure in failures]
    compiled_more = ours.breaks > 0 or ours.graphs > 1
    if found or compiled_more or failures:
        baseline = run(_alone(inner))
        if baseline.error is not None:
            return Verdict(Outcome.BASELINE, (baseline.error,))
        if found:
            own = set(differences(baseline, ours, exact)) - set(differences(plain, baseline, exact))
            problems += [problem for problem in found if problem in own]
            if not problems:
                return Verdict(Outcome.BASELINE, tuple(found))
            if _only_rounding(problems) and (faults := _torch_faults(run, ours, problems)):
                return Verdict(Outcome.EAGER, (f"torch computes something else by strides: {', '.join(faults)}",))
            if _only_rounding(problems) and _unstable(program, run, plain, exact, ours, problems):
                return Verdict(Outcome.UNSTABLE, tuple(problems))
            if ours.error is not None:
                problems.append(ours.error)
        # What AOTAutograd compiles for nobody, as sizes that depend on values, is left to the inner compiler: no fault.
        if failures and not found and not baseline.graphs and ours.breaks <= baseline.breaks:
            return Verdict(Outcome.REFUSED, (), told_of(told)[1])
        # What is frozen is compiled anew when weights change: it is counted once for each step.
        steps = len(program.sizes) if inner == FROZEN else 1
        if ours.graphs > steps * baseline.graphs or ours.breaks > steps * baseline.breaks:
            problems.append(
                f"{ours.graphs} graphs and {ours.breaks} breaks, not {baseline.graphs} and {baseline.breaks}"
            )
    applied, refusals = told_of(told)
    outcome = Outcome.OK if applied else Outcome.REFUSED if refusals else Outcome.IDLE
    return Verdict(Outcome.WRONG if problems else outcome, tuple(problems), refusals, applied)


def _on_stored_weights(run: Callable[..., Observation], told: Sequence[RewrittenGraph]) -> Callable[..., Observation]:
    """`run`, of models whose weights are stored as `frx_graph.prepare` has chosen."""
    return lambda arm, **how: run(lambda model, program: arm(stored_as(model, told), program), **how)


def planned_backend(inner: str, plan: str, told: list[RewrittenGraph], failures: list[str]) -> Callable[..., Any]:
    """`backend="frx"` with a plan: `told` gets what was done to each graph, `failures` what went wrong within."""

    def compiled(dynamo: torch.fx.GraphModule, example_inputs: Any) -> Any:
        with _listening(told, failures):
            return backend.frx(dynamo, example_inputs, options={"inner": inner, "plan": plan})

    return compiled


@contextlib.contextmanager
def _listening(told: list[RewrittenGraph], failures: list[str]) -> Iterator[None]:
    class Session(backend._Session):
        def record(self, *_: Any) -> None:
            """Recording graphs for advice takes longer than compiling them."""

        def warn_not_rewritten(self, error: Exception) -> None:
            failures.append(f"{type(error).__name__}: {error}")

    class Log(RewriteLog):
        def add(self, done: RewrittenGraph) -> None:
            told.append(done)

        add_cached = add

    with patch.object(backend, "_session", Session()), patch.object(compiler, "LOG", Log()):
        yield


def backend_alone(inner: str) -> str:
    """What a plan's graphs are compared with. Where a plan runs a graph in eager it goes through AOTAutograd, whose own
    faults are not ours either."""
    return "aot_eager" if inner in ("eager", FROZEN, STORED, CHOSEN) else inner


def told_of(told: Sequence[RewrittenGraph]) -> tuple[Counter[str], Counter[str]]:
    """Rewrites applied, by name, and reasons of refusals, counted over all graphs."""
    applied = Counter(candidate.rewrite for graph in told for candidate in graph.applied)
    refusals = Counter(f"{refusal.subject}: {refusal.reason}" for graph in told for refusal in graph.refused)
    return applied, refusals


def general_reasons(refusals: Counter[str]) -> Counter[str]:
    """Those of `told_of` without names of nodes and without numbers, but with the rewrites' names, counted together."""
    counted: Counter[str] = Counter()
    for text, count in refusals.items():
        rewrite, mark, reason = text.partition(": ")
        words = " ".join("…" if "_" in word or any(c.isdigit() for c in word) else word for word in reason.split())
        counted[f"{rewrite}{mark}{words}"[:140]] += count
    return counted


def _planned(
    inner: str, plan: str, told: list[RewrittenGraph], failures: list[str]
) -> Callable[[nn.Module, RandomProgram], Callable[..., Any]]:
    if inner == FROZEN:
        return lambda model, program: _frozen(model, program, plan, told, failures)
    if inner == STORED:
        backend = planned_backend("eager", plan, told, failures)
        return lambda model, program: stored(model, program, backend, told, lambda: _listening(told, failures))
    if inner == CHOSEN:
        return lambda model, program: _chosen(model, program, plan, told, failures)
    compiled = planned_backend(inner, plan, told, failures)
    return lambda model, program: torch.compile(model, backend=compiled, dynamic=program.dynamic or None)


def _frozen(
    model: nn.Module, program: RandomProgram, plan: str, told: list[RewrittenGraph], failures: list[str]
) -> Callable[..., Any]:
    options = {"inner": "eager", "plan": plan, "freeze": True}
    compiled = frx_graph.compile(model, options=options, dynamic=program.dynamic or None)

    def run(*inputs: Tensor) -> Any:
        with _listening(told, failures):
            return twice(*inputs)

    twice = _run_twice(compiled, model)
    return run


def _run_twice(compiled: Callable[..., Any], model: nn.Module) -> Callable[..., Any]:
    """Weights change between steps: what a graph does to its constants shows where it runs twice on them."""

    def run(*inputs: Tensor) -> Any:
        with torch.random.fork_rng(devices=[]):
            buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
            compiled(*copied(inputs))
            for name, buffer in model.named_buffers():
                if not torch.equal(buffer, buffers[name]):
                    buffer.copy_(buffers[name])
        return compiled(*inputs)

    return run


def _chosen(
    model: nn.Module, program: RandomProgram, plan: str, told: list[RewrittenGraph], failures: list[str]
) -> Callable[..., Any]:
    choice = Candidate(inner_choice.NAME, inner_choice.EVERY_GRAPH, (), ("eager_freezing",))
    rewrites = make_current_plan(plan)
    chosen = replace(rewrites, rewrites=(inner_choice.NAME, *rewrites.rewrites), candidates=(choice,))

    def compiled(dynamo: fx.GraphModule, example_inputs: Any) -> Any:
        with _listening(told, failures):
            options = parse_backend_options({"inner": backend_alone(CHOSEN)}, None)
            return compiler.make_planned_backend(options, chosen, failed)(dynamo, example_inputs)

    def failed(error: Exception) -> None:
        if isinstance(error, RewriteError):
            told.append(RewrittenGraph("", Phase.FORWARD, (), (Refusal(CHOSEN, str(error)),)))
        else:
            backend._session.warn_not_rewritten(error)

    return _run_twice(torch.compile(model, backend=compiled, dynamic=program.dynamic or None), model)


def _alone(inner: str) -> Callable[[nn.Module, RandomProgram], Callable[..., Any]]:
    name = backend_alone(inner)
    return lambda model, program: torch.compile(model, backend=name, dynamic=program.dynamic or None)


def _torch_faults(run: Callable[..., Observation], ours: Observation, problems: list[str]) -> list[str]:
    """Operators that torch computes wrongly in eager, if `ours` has none of the problems beside a run without that."""
    faults = TorchFaults()
    with faults:
        exact = run(eager, in_fp64=True)
        mended = run(eager)
    return [] if set(problems) & set(differences(mended, ours, exact)) else sorted(set(faults.found))


def _only_rounding(problems: list[str]) -> bool:
    return all(problem.startswith("value of") for problem in problems)


def _unstable(
    program: RandomProgram,
    run: Callable[..., Observation],
    plain: Observation,
    exact: Observation,
    ours: Observation,
    problems: list[str],
) -> bool:
    """True if eager alone, on inputs and weights that differ by a few roundings, or by kernels for the other layout,
    differs in the same places about as much: what jumps where a value changes its sign does so in about every other
    run."""
    found: dict[str, float] = {}
    for disturbed in _disturbed_runs(program, run):
        far = distances(plain, disturbed)
        told = set(differences(plain, disturbed, exact)) if program.dtype in COARSE else far.keys()
        for problem in told:
            found[problem] = max(found.get(problem, 0.0), far.get(problem, math.inf))
    own = distances(plain, ours)
    return all(problem in found and own[problem] <= AS_LARGE * found[problem] for problem in problems)


def _disturbed_runs(program: RandomProgram, run: Callable[..., Observation]) -> Iterator[Observation]:
    with OtherLayout():  # type: ignore[no-untyped-call]
        yield run(eager)
    for seed in range(DISTURBED_RUNS):
        yield run(eager, noise=NOISE[program.dtype], noise_seed=seed)


@contextlib.contextmanager
def comparable() -> Iterator[None]:
    """Random numbers as eager draws them, and every graph compiled anew."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with (
            warnings.catch_warnings(),
            inductor_config.patch(fallback_random=True, fx_graph_cache=False),
            functorch_config.patch(enable_autograd_cache=False),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(threads)
