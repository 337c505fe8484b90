"""One network of the zoo, rewritten in one way of running it: is it still the same network?

Plain eager is what is right: values and gradients by torch's oracle with a double-precision reference, buffers,
strides of outputs and gradients, and which outputs share memory. The inner compiler alone says how many graphs and
breaks there are, and what is not our fault.
"""

from __future__ import annotations

import contextlib
import copy
import enum
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rewrite_oracle import Outcome, Verdict, backend_alone, comparable, planned_backend, told_of
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils import _pytree as pytree
from versus_arms import Call, Inner, Program
from versus_case import DTYPES, TOLERANCES, Case, Expected, Mode, build, outcome, tensors
from versus_case import Outcome as Made
from zoo_entry import ZooEntry

from frx_graph.compiler.rewrite_pipeline import RewrittenGraph

AUTOCAST = "autocast"
"""A model in fp32, called under `torch.autocast` to bf16."""
PRECISIONS = (*DTYPES, AUTOCAST)
INNERS = ("eager", "aot_eager", "inductor")


class Shapes(enum.StrEnum):
    """How sizes are compiled."""

    STATIC = "static"
    """One size, two steps of it."""
    DYNAMIC = "dynamic"
    """`dynamic=True`, or only the batch marked where an entry says so; the second step has a larger one."""


BATCHES = {Shapes.STATIC: (2, 2), Shapes.DYNAMIC: (2, 3)}
"""Of the two steps."""


@dataclass(frozen=True)
class MatrixCase:
    """One cell of the matrix: a network, and how it is run."""

    entry: ZooEntry
    inner: str
    mode: Mode
    precision: str
    shapes: Shapes
    device: str = "cpu"

    @property
    def train(self) -> bool:
        return self.mode is Mode.TRAINING

    @property
    def title(self) -> str:
        return f"{self.entry.name}, {self.mode}, {self.precision}, {self.shapes}, inner {self.inner}"


Strides = tuple[int, ...]


@dataclass(frozen=True)
class CallFacts:
    """What must be equal of one call besides values. `shared` are pairs of outputs in one storage, by position, with
    the distance between their first elements."""

    strides: tuple[Strides, ...]
    shared: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, outputs: Sequence[Tensor]) -> CallFacts:
        return cls(tuple(tuple(value.stride()) for value in outputs), tuple(_sharing(outputs)))


@dataclass(frozen=True)
class StepFacts:
    """The same of a step: of each of its calls, and the strides of gradients by parameter."""

    calls: tuple[CallFacts, ...]
    gradients: dict[str, Strides | None]

    def differences(self, found: StepFacts) -> Iterator[str]:
        for own, other in zip(self.calls, found.calls, strict=True):
            if own.strides != other.strides:
                yield f"strides of outputs {other.strides}, not {own.strides}"
            if own.shared != other.shared:
                yield f"sharing of outputs {other.shared}, not {own.shared}"
        for name, strides in self.gradients.items():
            if found.gradients.get(name) != strides:
                yield f"strides of gradient of {name} {found.gradients.get(name)}, not {strides}"


class Observed(nn.Module):
    """Runs `program`, a network or what it was compiled to, under autocast or not, and returns all tensors of its
    output and its state. `facts` has one entry a call."""

    def __init__(self, inner: nn.Module, autocast: bool, device: str) -> None:
        super().__init__()
        self.inner = inner
        self.autocast = autocast
        self.device = device
        self.program: Program = inner.__call__
        self.facts: list[CallFacts] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Observed:
        return Observed(copy.deepcopy(self.inner, memo), self.autocast, self.device)

    def forward(self, *args: Any, **kwargs: Any) -> list[Tensor]:
        with torch.autocast(self.device, torch.bfloat16) if self.autocast else contextlib.nullcontext():
            outputs = tensors(self.program(*args, **kwargs))
        self.facts.append(CallFacts.of(outputs))
        return [*outputs, *_state(self.inner)]


def _state(model: nn.Module) -> Iterator[Tensor]:
    """Copies of all buffers, those of one module and shape in one tensor: a running mean of 1e-17 is 0 to rounding, and
    only beside its variance can be told to be."""
    for module in model.modules():
        alike: dict[object, list[Tensor]] = {}
        for buffer in module.buffers(recurse=False):
            alike.setdefault((buffer.shape, buffer.dtype), []).append(buffer.detach())
        yield from map(torch.stack, alike.values())


def _sharing(outputs: Sequence[Tensor]) -> Iterator[tuple[int, int, int]]:
    for second, later in enumerate(outputs):
        for first, earlier in enumerate(outputs[:second]):
            if earlier.untyped_storage()._cdata == later.untyped_storage()._cdata:
                yield first, second, int(later.storage_offset()) - int(earlier.storage_offset())


@dataclass(frozen=True)
class Reference:
    """A network, the calls of each of its steps, and what plain eager makes of them."""

    network: Observed
    calls: tuple[tuple[Call, ...], ...]
    expected: tuple[Expected, ...]
    facts: tuple[StepFacts, ...]
    tolerance: float

    @classmethod
    def of(cls, case: MatrixCase) -> Reference:
        """Holds for all inner compilers. Raises `ValueError` for a network that is not the same twice."""
        autocast = case.precision == AUTOCAST
        dtype = "fp32" if autocast else case.precision
        expected: dict[int, Expected] = {}
        facts: dict[int, StepFacts] = {}
        calls: dict[int, tuple[Call, ...]] = {}
        for batch in BATCHES[case.shapes]:
            if batch not in expected:
                built = Case(case.entry, case.mode, batch, dtype, Inner.EAGER)
                model, calls[batch] = build(built, torch.device(case.device))
                network = Observed(model, autocast, case.device)
                expected[batch] = Expected.of((network, calls[batch]), case.train)
                facts[batch] = _facts(copy.deepcopy(network), calls[batch], case.train)[1]
        tolerance = TOLERANCES[torch.bfloat16 if autocast else DTYPES[dtype]]
        steps = BATCHES[case.shapes]
        return cls(
            network,  # the builders make the same weights at every batch
            tuple(calls[batch] for batch in steps),
            tuple(expected[batch] for batch in steps),
            tuple(facts[batch] for batch in steps),
            tolerance,
        )


@dataclass(frozen=True)
class Run:
    """What was found: differences from eager, and the graphs and breaks that Dynamo had counted after each step."""

    problems: tuple[str, ...] = ()
    graphs: tuple[int, ...] = ()
    breaks: tuple[int, ...] = ()
    error: str | None = None


Backend = str | Callable[..., Any]


def check(case: MatrixCase, reference: Reference, plan: str = "all", backend: Backend | None = None) -> Verdict:
    """The verdict on one case. `backend` stands in for ours, for tests of this check."""
    told: list[RewrittenGraph] = []
    failures: list[str] = []
    with comparable():
        ours = run(case, reference, backend or planned_backend(case.inner, plan, told, failures))
        problems = [f"a rewrite failed: {failure}" for failure in failures]
        # One graph without a break is what no other backend can better.
        if ours.problems or ours.error or ours.graphs != (1, 1) or any(ours.breaks):
            alone = run(case, reference, backend_alone(case.inner))
            if alone.error is not None:
                return Verdict(Outcome.BASELINE, (alone.error,))
            found = [problem for problem in ours.problems if problem not in alone.problems]
            if ours.error is not None:
                found = ["raises", ours.error]
            elif any(more > fewer for more, fewer in zip(ours.graphs, alone.graphs, strict=True)):
                found.append(f"{ours.graphs} graphs after each step, not {alone.graphs}")
            elif any(more > fewer for more, fewer in zip(ours.breaks, alone.breaks, strict=True)):
                found.append(f"{ours.breaks} breaks after each step, not {alone.breaks}")
            if not found and not problems and ours.problems:
                return Verdict(Outcome.BASELINE, ours.problems)
            problems += found
    applied, refusals = told_of(told)
    kind = Outcome.OK if applied else Outcome.REFUSED if refusals else Outcome.IDLE
    return Verdict(Outcome.WRONG if problems else kind, tuple(problems), refusals, applied)


def run(case: MatrixCase, reference: Reference, backend: Backend) -> Run:
    """Compile the network with `backend` and compare its two steps, each from the same state, with eager's."""
    torch._dynamo.reset()
    counters.clear()
    gc.collect()
    network = copy.deepcopy(reference.network)
    state = {name: value.clone() for name, value in network.inner.state_dict().items()}
    network.program = torch.compile(network.inner, backend=backend, dynamic=_dynamic(case, reference))
    problems: list[str] = []
    graphs: list[int] = []
    breaks: list[int] = []
    try:
        for number, calls in enumerate(reference.calls):
            network.inner.load_state_dict(state)
            made, facts = _facts(network, calls, case.train)
            said = [reference.expected[number].difference(made, reference.tolerance)]
            said += reference.facts[number].differences(facts)
            problems += [f"{text} in step {number}" for text in said if text is not None]
            graphs.append(counters["stats"]["unique_graphs"])
            breaks.append(sum(counters["graph_break"].values()))
    # Whatever a compiler raises is what is observed.
    except Exception as error:  # noqa: BLE001
        return Run(tuple(problems), tuple(graphs), tuple(breaks), f"{type(error).__name__}: {error}")
    return Run(tuple(problems), tuple(graphs), tuple(breaks))


def _dynamic(case: MatrixCase, reference: Reference) -> bool | None:
    """What `torch.compile` is told of sizes; marks those of the batch where only they vary."""
    if case.shapes is Shapes.STATIC or not case.entry.only_batch_varies:
        return case.shapes is Shapes.DYNAMIC
    for value in pytree.tree_leaves(reference.calls[0]):
        if isinstance(value, Tensor):
            torch._dynamo.mark_dynamic(value, 0)
    return None


def _facts(network: Observed, calls: tuple[Call, ...], train: bool) -> tuple[Made, StepFacts]:
    """What a step makes, and the facts of it."""
    network.facts.clear()
    made = outcome(network, (network, calls), train)
    gradients = {name: None if value is None else tuple(value.stride()) for name, value in made.gradients.items()}
    return made, StepFacts(tuple(network.facts), gradients)
