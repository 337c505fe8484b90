"""Record the visible effects of a program, and compare two runs of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from random_program import RandomProgram, copied
from torch import Tensor, nn
from torch._dynamo.utils import counters, same

TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 1e-3}
"""Absolute and relative, before fp64 is asked: torch's benchmarks take 1e-4 in fp32; the others are about as many
roundings of their type."""
LEARNING_RATE = 0.1


class Runnable(Protocol):
    """What makes the model and the inputs of a step: the same ones whenever it is asked."""

    def model(self, seed: int = 0) -> nn.Module: ...

    def inputs(self, n: int, seed: int = 1) -> list[Tensor]: ...


Arm = Callable[[nn.Module, RandomProgram], Callable[..., Any]]
"""How a model is run: itself, or compiled."""


@dataclass(frozen=True)
class Step:
    """One call. `values` are copies of everything that has numbers in it, by name; `facts` is what must be equal:
    shapes, strides, dtypes, and who shares memory with whom. `outputs` are what the call returned."""

    values: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
    outputs: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class Observation:
    """A program's two steps. `error` is what it raised, if it did; `graphs` and `breaks` count what Dynamo compiled."""

    steps: tuple[Step, ...]
    error: str | None = None
    graphs: int = 0
    breaks: int = 0


def eager(model: nn.Module, _program: RandomProgram) -> Callable[..., Any]:
    return model


def observe(
    program: RandomProgram,
    loaded: Runnable,
    arm: Arm,
    *,
    in_fp64: bool = False,
    noise: float = 0.0,
    noise_seed: int = 0,
) -> Observation:
    """Runs the program under `arm`: two steps, between which the parameters change.

    `noise` is what is added, relative and at random, to inputs and parameters, to see what rounding alone can do; to
    parameters of 0, which relative noise leaves alone, it is added as it is.
    """
    torch._dynamo.reset()
    counters.clear()
    model = loaded.model()
    if in_fp64:
        model = model.double()
    drawn = torch.Generator().manual_seed(noise_seed)
    if noise:
        _disturb([*model.parameters()], noise, drawn)
        _lift_off_zero([*model.parameters()], noise, drawn)
    steps: list[Step] = []
    try:
        function = arm(model, program)
        for number, n in enumerate(program.sizes):
            inputs = loaded.inputs(n, seed=1 + number)
            if in_fp64:
                inputs = copied(inputs, in_fp64=True)
            if noise:
                _disturb(inputs, noise, drawn)
            steps.append(_step(program, model, function, inputs))
        for step in steps:
            # What a call has returned, a later one may not write over.
            for index, output in enumerate(step.outputs):
                step.values[f"output {index} at the end"] = output.detach().clone()
    # Whatever a compiler raises is what is observed.
    except Exception as error:  # noqa: BLE001
        return Observation(tuple(steps), f"{type(error).__name__}: {error}")
    return Observation(tuple(steps), None, counters["stats"]["unique_graphs"], sum(counters["graph_break"].values()))


def differences(reference: Observation, other: Observation, exact: Observation | None) -> Iterator[str]:
    """What `other` shows that `reference` does not; errors of rounding are judged against `exact`, the run in fp64."""
    if (reference.error is None) != (other.error is None):
        yield "raises"
        return
    for number, (theirs, ours) in enumerate(zip(reference.steps, other.steps, strict=False)):
        for name in sorted({*theirs.facts, *ours.facts}):
            if theirs.facts.get(name) != ours.facts.get(name):
                yield f"{name} in step {number}"
        for name in sorted({*theirs.values, *ours.values}):
            if name not in theirs.values or name not in ours.values:
                yield f"presence of {name} in step {number}"
                continue
            truth = exact.steps[number].values.get(name) if exact and len(exact.steps) > number else None
            if not _same_numbers(theirs.values[name], ours.values[name], truth):
                yield _differing_value(name, number)


def distances(reference: Observation, other: Observation) -> dict[str, float]:
    """How far the values of `other` are off, each by what `differences` says where that is too far."""
    return {
        _differing_value(name, number): _distance(theirs.values[name], ours.values[name])
        for number, (theirs, ours) in enumerate(zip(reference.steps, other.steps, strict=False))
        for name in theirs.values.keys() & ours.values.keys()
    }


def _differing_value(name: str, step: int) -> str:
    return f"value of {name} in step {step}"


def _distance(reference: Tensor, other: Tensor) -> float:
    """The root of the mean square of the differences; infinite where one has NaN or infinities that the other lacks."""
    if reference.shape != other.shape or not _same_specials(reference, other):
        return math.inf
    finite = reference.isfinite()
    if not finite.any():
        return 0.0
    differences = reference[finite].to(torch.complex128) - other[finite].to(torch.complex128)
    return float(differences.abs().square().mean().sqrt())


def _step(program: RandomProgram, model: nn.Module, function: Callable[..., Any], inputs: Sequence[Tensor]) -> Step:
    torch.default_generator.manual_seed(3)
    with torch.set_grad_enabled(program.train):
        outputs = list(function(*inputs))
    step = Step(outputs=outputs)
    named = {f"output {i}": value for i, value in enumerate(outputs)}
    given = {f"input {i}": value for i, value in enumerate(inputs)}
    for name, value in {**named, **given}.items():
        step.values[name] = value.detach().clone()
        step.facts[f"type of {name}"] = (tuple(value.shape), value.dtype, value.requires_grad, value.is_leaf)
        step.facts[f"strides of {name}"] = tuple(value.stride())
    step.facts.update(_sharing({**named, **given}))
    if program.train:
        _train(program, model, outputs, inputs, step)
    for name, buffer in model.named_buffers():
        step.values[f"buffer {name}"] = buffer.detach().clone()
    with torch.no_grad():
        for parameter in model.parameters():
            # The optimizer has changed what had a gradient; the rest is changed by hand, so that what a compiler keeps
            # of parameters from the first step is wrong in the second.
            if parameter.grad is None:
                parameter.mul_(0.75)
    model.zero_grad()
    return step


def _train(
    program: RandomProgram, model: nn.Module, outputs: Sequence[Tensor], inputs: Sequence[Tensor], step: Step
) -> None:
    roots = list({id(value): value for value in outputs if value.requires_grad}.values())
    if roots:
        torch.autograd.backward(roots, [_tangent(program.tangents, value) for value in roots])
    leaves: dict[str, Tensor] = {f"parameter {name}": value for name, value in model.named_parameters()}
    leaves |= {f"input {i}": value for i, value in enumerate(inputs)}
    for name, leaf in leaves.items():
        if leaf.is_leaf and leaf.grad is not None:
            step.values[f"gradient of {name}"] = leaf.grad.detach().clone()
            step.facts[f"strides of gradient of {name}"] = tuple(leaf.grad.stride())
    if list(model.parameters()):
        torch.optim.SGD(model.parameters(), LEARNING_RATE, momentum=0.9).step()
    for name, parameter in model.named_parameters():
        step.values[f"parameter {name}"] = parameter.detach().clone()


def _tangent(kind: str, output: Tensor) -> Tensor:
    steps = torch.arange(output.numel(), dtype=torch.float64).reshape(output.shape)
    values = (steps * 0.7 + 0.3).cos().to(output.dtype)
    if kind == "like":
        return torch.empty_like(output).copy_(values).detach()
    if kind == "reversed":
        order = list(range(output.dim()))[::-1]
        return values.permute(order).contiguous().permute(order)
    return values


def _sharing(values: dict[str, Tensor]) -> Iterator[tuple[str, object]]:
    """Pairs of names, and whether they are one tensor, one place in memory, or different places of one storage."""
    names = list(values)
    for index, first in enumerate(names):
        for second in names[index + 1 :]:
            a, b = values[first], values[second]
            if a.numel() == 0 or b.numel() == 0:
                continue
            if a.untyped_storage()._cdata == b.untyped_storage()._cdata:
                yield f"sharing of {first} and {second}", (a is b, a.storage_offset() - b.storage_offset())
            else:
                yield f"sharing of {first} and {second}", None


def _same_numbers(reference: Tensor, other: Tensor, exact: Tensor | None) -> bool:
    if reference.shape != other.shape or reference.dtype != other.dtype:
        return False
    if reference.numel() == 0:
        return True
    if exact is not None and (exact.dtype != torch.float64 or exact.shape != reference.shape):
        exact = None
    if not _same_specials(reference, other):
        return False
    # Torch's oracle takes any two tensors for the same that have NaN or infinities where the exact one has.
    special = ~reference.isfinite()
    if special.any():
        reference, other = reference.masked_fill(special, 0), other.masked_fill(special, 0)
        exact = None if exact is None else exact.masked_fill(special, 0)
    if exact is not None and not exact.isfinite().all():
        exact = None
    return bool(
        same(
            reference,
            other,
            exact,
            tol=TOLERANCE.get(reference.dtype, 0.0),
            equal_nan=True,
            log_error=_not_said,
            use_larger_multiplier_for_smaller_tensor=reference.dtype == torch.bfloat16,
        )
    )


def _same_specials(reference: Tensor, other: Tensor) -> bool:
    """True if both have NaN and infinities in the same places."""
    if reference.is_complex() and other.is_complex():
        reference, other = (torch.view_as_real(value.resolve_conj()) for value in (reference, other))
    return all(
        torch.equal(special(reference), special(other)) for special in (torch.isnan, torch.isposinf, torch.isneginf)
    )


def _not_said(*_: object) -> None:
    """What differs is in the verdict."""


def _lift_off_zero(values: Sequence[Tensor], noise: float, drawn: torch.Generator) -> None:
    with torch.no_grad():
        for value in values:
            if value.is_floating_point():
                value.add_((value == 0) * noise * torch.randn(value.shape, dtype=value.dtype, generator=drawn))


def _disturb(values: Sequence[Tensor], noise: float, drawn: torch.Generator) -> None:
    with torch.no_grad():
        for value in values:
            # Memory that several elements share cannot be written to as if they were several.
            if value.is_floating_point() and 0 not in value.stride() and value.numel():
                value.mul_(1 + noise * torch.randn(value.shape, dtype=value.dtype, generator=drawn))
