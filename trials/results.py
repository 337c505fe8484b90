"""Observe and compare the results of a step: outputs, gradients, buffers, parameters after one optimizer step, their
layouts in memory, and shared memory."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy
import torch
from torch import Tensor, nn

from frx_graph.capture.aten_trace import list_results, run_step
from frx_graph.errors import TrialError
from frx_graph.support.torch_internals import get_storage_id, pytree
from frx_graph.trials.arm_messages import Judged
from frx_graph.trials.numerics import (
    HALF,
    Difference,
    Errors,
    Multipliers,
    compute_least_sizes,
    is_repeated,
    is_within_rounding,
    judge_value,
    measure_rounding_noise,
)

LEARNING_RATE = 0.01
"""Learning rate of the SGD step that is made to compare parameters if a program has no optimizer. A wrong gradient
shows in the parameters."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None))

Tensors: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True)
class StepResults:
    """The results of one draw. `values` are copies on the CPU, by name. `forms` describe their layouts: strides, needed
    gradients, and the number of the memory that they share with inputs, parameters, buffers and other outputs."""

    values: Tensors
    forms: Mapping[str, str]


@dataclass(frozen=True)
class Program:
    """One step's parts. `call` is the model as it runs (compiled or not), `model` has its parameters, which `optimizer`
    changes, if there is one."""

    call: Callable[..., Any]
    model: nn.Module | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    train: bool
    optimizer: torch.optim.Optimizer | None = None

    def step(self) -> Any:
        """Run forward, and backward with gradients of one; return what the call returned."""
        return run_step(self.call, self.args, self.kwargs, train=self.train)

    def update(self) -> None:
        """Run the optimizer's step, which ends a training step."""
        if self.train and self.optimizer is not None:
            self.optimizer.step()

    def forget_gradients(self) -> None:
        """Remove all gradients."""
        for tensor in self.tensors:
            if tensor.is_leaf:
                tensor.grad = None

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors among the arguments."""
        return [t for t in pytree.tree_leaves((self.args, dict(self.kwargs))) if isinstance(t, Tensor)]

    @property
    def tensors(self) -> list[Tensor]:
        """Inputs, parameters and buffers."""
        return [*self.inputs, *(() if self.model is None else (*self.model.parameters(), *self.model.buffers()))]


def observe_step(program: Program, seed: int, within: AbstractContextManager[object] | None = None) -> StepResults:
    """Run one step in the context `within`, from a seed, and restore parameters, buffers and gradients."""
    program.forget_gradients()
    with _restore_values(program.tensors):
        seed_everything(seed)
        with within or contextlib.nullcontext():
            made = program.step()
        outputs = _list_outputs(made)
        named: Tensors = {f"output {index}": tensor for index, tensor in enumerate(outputs)}
        memories: dict[int, int] = {}
        for tensor in program.tensors:
            memories.setdefault(get_storage_id(tensor.untyped_storage()), len(memories))
        forms = {name: _format_layout(tensor, memories) for name, tensor in named.items()}
        for index, tensor in enumerate(program.inputs):
            named[f"input {index} afterwards"] = tensor.detach()
            if tensor.grad is not None:
                named[f"gradient of input {index}"] = tensor.grad
        if program.model is not None:
            named |= _collect_model_results(program.model, program.train, program.optimizer)
        forms |= {name: str(tuple(t.stride())) for name, t in named.items() if name.startswith("gradient of")}
        # On the CPU, like results that another process wrote, so that all compared tensors are on one device.
        results = StepResults({name: tensor.detach().to("cpu", copy=True) for name, tensor in named.items()}, forms)
    program.forget_gradients()
    return results


def _list_outputs(made: object) -> list[Tensor]:
    """Return the tensors that a program returns. Raises `TrialError` if all are hidden in objects: then nothing would
    be compared."""
    results = list_results(made)
    outputs = [one for one in results if isinstance(one, Tensor)]
    hiding = next((one for one in results if not isinstance(one, _PLAIN)), None)
    if hiding is not None and not outputs:
        raise TrialError(
            f"the program returns a {type(hiding).__name__}, whose tensors cannot be compared",
            "return tensors by themselves, or in tuples, lists, dicts or dataclasses",
        )
    return outputs


def seed_everything(seed: int) -> None:
    """Seed all generators that a program may draw from: torch's, Python's and NumPy's."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def are_results_equal(one: StepResults, other: StepResults) -> bool:
    """Return True if all are equal bit for bit; NaN equals NaN."""
    return one.values.keys() == other.values.keys() and all(
        _are_equal(value, other.values[name]) for name, value in one.values.items()
    )


def is_same_step(first: StepResults, again: StepResults) -> bool:
    """Return True if a step, run again from the same seed, has the same results, up to the order of sums."""
    sizes = compute_least_sizes(first.values)
    return first.values.keys() == again.values.keys() and all(
        is_repeated(value, again.values[name], sizes.get(name, 0.0)) for name, value in first.values.items()
    )


def _are_equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())


def permute_inputs(values: Any, draw: int) -> Any:
    """Return other inputs of the same kind: the floating-point values of each tensor in another order. Draw 0 returns
    `values`; integers and booleans, which may index something, stay."""
    if draw == 0:
        return values
    generator = torch.Generator().manual_seed(draw)

    def permute(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.layout is not torch.strided:
            return value
        with torch.no_grad():
            other = torch.empty_like(value)
            order = torch.randperm(value.numel(), generator=generator).to(value.device)
            if other.stride() != value.stride():
                # A tensor with gaps, or with elements that share memory, stays unchanged.
                return value
            other.copy_(value.reshape(-1)[order].reshape(value.shape))
        return other.requires_grad_(value.requires_grad)

    return pytree.tree_map(permute, values)


@dataclass(frozen=True)
class Comparing:
    """References for the results of a draw. `exact` are the results in float64, `eager` those without a compiler. Each
    is None if the program does not run so. `noisy` returns the effect of rounding, which takes time."""

    draw: int
    allowed: Multipliers
    exact: StepResults | None = None
    eager: StepResults | None = None
    noisy: Callable[[], Mapping[str, Errors]] = dict

    @functools.cached_property
    def noise(self) -> Mapping[str, Errors]:
        """The effect of rounding on each result."""
        return self.noisy()

    def cannot_judge(self, name: str, own: StepResults) -> bool:
        """Return True for a result in half precision with neither a reference nor a measure of rounding. Loops that a
        compiler fuses round less often than eager."""
        half = name in own.values and own.values[name].dtype in HALF
        return half and name not in self.noise and (self.exact is None or name not in self.exact.values)

    def find_differences(
        self, own: StepResults, other: StepResults, names: tuple[str, str]
    ) -> tuple[dict[str, Difference], list[float]]:
        """Return the results of `other` that are worse than those of `own`, by name, and the shares of the allowed
        error that the rest take. The descriptions call both programs by `names`."""
        reference = {} if self.exact is None else self.exact.values
        sizes = compute_least_sizes(own.values)
        found: dict[str, Difference] = {}
        shares: list[float] = []
        for name in (*own.values, *(name for name in other.values if name not in own.values)):
            if name not in own.values or name not in other.values:
                detail = f"only {names[1]} has it" if name in other.values else f"{names[1]} has none"
                found[name] = Difference(name, self.draw, detail)
                continue
            pair = own.values[name], other.values[name], reference.get(name), self.allowed
            size = sizes.get(name, 0.0)
            judged = judge_value(*pair, None, size, names[0])
            if judged.difference is not None:
                judged = judge_value(*pair, self.noise.get(name), size, names[0])
            if judged.difference is not None:
                found[name] = Difference(name, self.draw, judged.difference)
            elif judged.share is not None and math.isfinite(judged.share):
                shares.append(judged.share)
        return found, shares

    def find_departures(
        self, eager: StepResults, other: StepResults, name: str, *, strictly: Collection[str] = ()
    ) -> tuple[dict[str, Difference], list[float]]:
        """Return the results of `other` that are worse than eager's, and the shares of the rest. A compiler may add up
        in another order than eager, and less exactly, but in the results that are judged `strictly`."""
        found, shares = self.find_differences(eager, other, ("eager", name))
        sizes = compute_least_sizes(eager.values)
        beyond = {
            one: difference
            for one, difference in found.items()
            if one in strictly
            or one not in eager.values
            or one not in other.values
            or not is_within_rounding(eager.values[one], other.values[one], sizes.get(one, 0.0))
        }
        # What is excused counts as at its limit.
        return beyond, [*shares, *(1.0 for one in found if one not in beyond)]


def compare_results(own: StepResults, other: StepResults, beside: Comparing) -> Judged:
    """Compare a draw's results of the candidate, `other`, with the baseline's `own`, and both with eager's.

    A result may differ from the baseline's only where the baseline departs from eager.
    """
    values, shares = beside.find_differences(own, other, ("the baseline", "the candidate"))
    departed: dict[str, Difference] = {}
    if beside.eager is not None:
        departed, _ = beside.find_departures(beside.eager, own, "the baseline")
        wrong, shares = beside.find_departures(beside.eager, other, "the candidate", strictly=departed.keys())
        agreed = {name for name in wrong if name not in values and beside.cannot_judge(name, own)}
        values = {name: found for name, found in values.items() if name not in departed}
        values |= {name: found for name, found in wrong.items() if name not in agreed}
    placed = {name: form for name, form in own.forms.items() if name in other.forms}
    forms = tuple(
        Difference(name, beside.draw, f"{other.forms[name]} instead of {form}")
        for name, form in placed.items()
        if other.forms[name] not in (form, None if beside.eager is None else beside.eager.forms.get(name))
    )
    return Judged(
        values=tuple(values.values()),
        forms=forms,
        compared=len(own.values),
        exact=beside.exact is not None,
        placed=len(placed),
        share=max(shares, default=None),
        departed=tuple(departed.values()),
        eager=beside.eager is not None,
    )


def estimate_noise(runs: Iterator[Tensors]) -> dict[str, Errors]:
    """Return the effect of rounding on each result of `runs`: a plain step and then steps with noise."""
    plain = next(runs)
    found = measure_rounding_noise(plain, runs)
    for name in plain:
        parameter, after, _ = name.partition(" after a step")
        gradient = found.get(f"gradient of {parameter}")
        if after and gradient is not None:
            found[name] = found[name].take_larger(gradient.scale(LEARNING_RATE))
    return found


def write_results(file: Path, draw: int, one: StepResults) -> None:
    """Write the results of a draw to a separate file, for another process."""
    torch.save({"values": one.values, "forms": dict(one.forms)}, _get_draw_file(file, draw))


def read_results(file: Path, draw: int) -> StepResults:
    """Read the results of another process, from the disk as they are used. Raises `TrialError`."""
    try:
        one = torch.load(_get_draw_file(file, draw), weights_only=True, mmap=True)
        return StepResults({**one["values"]}, {**one["forms"]})
    except Exception as error:
        raise TrialError(f"an arm's results cannot be read: {error}") from error


def _get_draw_file(file: Path, draw: int) -> Path:
    return file.with_name(f"{file.name}.{draw}")


def _collect_model_results(model: nn.Module, train: bool, optimizer: torch.optim.Optimizer | None) -> Tensors:
    named = {f"buffer {name}": buffer for name, buffer in model.named_buffers()}
    if train:
        parameters = dict(model.named_parameters())
        named |= {f"gradient of {name}": p.grad for name, p in parameters.items() if p.grad is not None}
        optimizer = optimizer or torch.optim.SGD(parameters.values(), lr=LEARNING_RATE)
        before = copy.deepcopy(optimizer.state_dict())
        optimizer.step()
        optimizer.load_state_dict(before)
        named |= {f"{name} after a step": parameter for name, parameter in parameters.items()}
    return named


def _format_layout(tensor: Tensor, memories: dict[int, int]) -> str:
    if tensor.layout is not torch.strided:
        return str(tensor.layout)
    memory = memories.setdefault(get_storage_id(tensor.untyped_storage()), len(memories))
    needs = ", needs a gradient" if tensor.requires_grad else ""
    return f"strides {tuple(tensor.stride())}, memory {memory} from {tensor.storage_offset()}{needs}"


@contextlib.contextmanager
def _restore_values(tensors: Sequence[Tensor]) -> Iterator[None]:
    before = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                if not torch.equal(tensor, value):
                    tensor.detach().copy_(value)
