"""The ways to run a network that are measured against each other: what torch offers, what people tune by hand, frx.

An arm is one line in `INDUCTOR_ARMS` or `EAGER_ARMS`; the first of each is the reference of all ratios.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import frx_graph
from frx_graph.compiler.inner_compiler import make_planned_backend
from frx_graph.compiler.plans import make_recorded_plan
from frx_graph.options import parse_backend_options
from frx_graph.passes import inner_choice
from frx_graph.records import Candidate

Program: TypeAlias = Callable[..., Any]
Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

# Without it, arms of one model class would share Dynamo's compiled versions, check each other's guards and use up one
# recompile limit together. Torch before 2.15 does not have it; the limit is raised there.
_ISOLATED: dict[str, Any] = (
    {"isolate_recompiles": True} if "isolate_recompiles" in inspect.signature(torch.compile).parameters else {}
)


class Inner(enum.StrEnum):
    """What compiles the graphs."""

    INDUCTOR = "inductor"
    EAGER = "eager"


class Kind(enum.StrEnum):
    """What an arm stands for."""

    REFERENCE = "reference"
    VARIANT = "variant"
    """Tuned by hand: one decision for the whole graph."""
    FRX = "frx"


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run a network. `compile` makes the program; with `channels_last` the model and its inputs are
    converted before. `config` is Inductor's configuration while the program is compiled. Arms with
    `frozen` weights cannot train. Weights that are `prepared` are stored for the first call, by this inner compiler.
    """

    name: str
    kind: Kind
    compile: Callable[[nn.Module], Program]
    channels_last: bool = False
    frozen: bool = False
    prepared: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    frx_options: Mapping[str, Any] | None = None

    def prepare(self, model: nn.Module, calls: tuple[Call, ...]) -> tuple[Program, tuple[Call, ...]]:
        """The program, not compiled before its first call, and the calls that make up a step. `model` is the arm's
        own, and may be converted."""
        if self.channels_last:
            model = channels_last_model(model)
            calls = pytree.tree_map_only(Tensor, channels_last, calls)
        if self.prepared is not None:
            args, kwargs = calls[0]
            frx_graph.prepare(model, args, kwargs, train=model.training, inner=self.prepared)
        return self.compile(model), calls


def channels_last(tensor: Tensor) -> Tensor:
    """The tensor in the channels-last format of its rank; other ranks than 4 and 5 as they are."""
    if tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    if tensor.dim() == 5:
        return tensor.contiguous(memory_format=torch.channels_last_3d)
    return tensor


def channels_last_model(model: nn.Module) -> nn.Module:
    """The model with all weights and buffers converted in place, as `model.to(memory_format=...)` does, for both ranks
    at once."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = channels_last(tensor.data)
    return model


def _plain(model: nn.Module) -> Program:
    return model


def _inductor(**options: Any) -> Callable[[nn.Module], Program]:
    arguments: dict[str, Any] = {"options": options or None, **_ISOLATED}
    return lambda model: torch.compile(model, **arguments)


def _frx(name: str, inner: str, *, prepared: bool = False, freeze: bool = False, **inner_options: Any) -> Arm:
    """What measured costs speak for, through `torch.compile`, or, with weights frozen, through `frx_graph.compile`;
    with `prepared` after `frx_graph.prepare`."""
    options: dict[str, Any] = {"plan": "solved", "inner": inner, "freeze": freeze}
    if inner_options:
        options["inner_options"] = inner_options

    def compiled(model: nn.Module) -> Program:
        if freeze:
            program: Program = frx_graph.compile(model, options=options, **_ISOLATED)
            return program
        return torch.compile(model, backend="frx", options=options, **_ISOLATED)

    return Arm(name, Kind.FRX, compiled, frozen=freeze, prepared=inner if prepared else None, frx_options=options)


def _chosen(choice: str, *, frozen: bool = False) -> Arm:
    """A program as it is once a trial has promoted this way to compile it, without the ledger."""
    plan = make_recorded_plan((Candidate(inner_choice.NAME, inner_choice.EVERY_GRAPH, (), (choice,)),))
    backend = make_planned_backend(parse_backend_options(None, None), plan, _raise)
    name = f"frx: {choice.replace('_', ' ')}"
    return Arm(name, Kind.FRX, lambda model: torch.compile(model, backend=backend, **_ISOLATED), frozen=frozen)


def _raise(error: Exception) -> None:
    raise error


_FRX_EAGER = (
    _frx("frx eager", "eager"),
    _frx("frx eager prepared", "eager", prepared=True),
    _frx("frx eager frozen", "eager", freeze=True),
)

INDUCTOR_ARMS: tuple[Arm, ...] = (
    Arm("inductor", Kind.REFERENCE, _inductor()),
    Arm("channels-last", Kind.VARIANT, _inductor(), channels_last=True),
    Arm("layout opt. off", Kind.VARIANT, _inductor(layout_optimization=False)),
    Arm("layout opt. forced", Kind.VARIANT, _inductor(force_layout_optimization=True)),
    # Dynamo reads `freezing` while it traces, where the options of `torch.compile` are not in force yet.
    Arm("freezing", Kind.VARIANT, _inductor(freezing=True), frozen=True, config={"freezing": True}),
    Arm("eager", Kind.VARIANT, _plain),
    Arm("eager channels-last", Kind.VARIANT, _plain, channels_last=True),
    _frx("frx", "inductor"),
    _frx("frx prepared", "inductor", prepared=True),
    _frx("frx frozen", "inductor", freeze=True),
    _frx("frx frozen C++", "inductor", freeze=True, cpp_wrapper=True),
    _chosen("layout_optimization_off"),
    _chosen("layout_optimization_forced"),
    _chosen("freezing", frozen=True),
    _chosen("freezing_cpp_wrapper", frozen=True),
    *_FRX_EAGER,
)

EAGER_ARMS: tuple[Arm, ...] = (
    Arm("eager", Kind.REFERENCE, _plain),
    Arm("eager channels-last", Kind.VARIANT, _plain, channels_last=True),
    *_FRX_EAGER,
)


def arms_of(inner: Inner) -> tuple[Arm, ...]:
    """All arms with this inner compiler, the reference first."""
    return INDUCTOR_ARMS if inner is Inner.INDUCTOR else EAGER_ARMS


def selected(inner: Inner, names: tuple[str, ...] | None) -> tuple[Arm, ...]:
    """The reference and the arms called `names`, or all. Raises `ValueError` for a name that no arm of any inner
    compiler has."""
    known = {arm.name for either in Inner for arm in arms_of(either)}
    for name in names or ():
        if name not in known:
            raise ValueError(f"no arm {name!r}; there are {', '.join(sorted(known))}")
    return tuple(arm for arm in arms_of(inner) if arm.kind is Kind.REFERENCE or names is None or arm.name in names)
