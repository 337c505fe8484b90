"""One network in one mode, batch, dtype: its model, its inputs, one step of it, and whether a step is right."""

from __future__ import annotations

import copy
import enum
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch._dynamo.utils import same
from torch.nn.modules.dropout import _DropoutNd
from torch.utils import _pytree as pytree
from versus_arms import Call, Inner, Program, channels_last, channels_last_model
from zoo_entry import ZooEntry

from frx_graph.capture.aten_trace import find_backward_roots
from frx_graph.support.allocator import Allocation

Network: TypeAlias = tuple[nn.Module, tuple[Call, ...]]
"""A model, and the calls of it that make up one step."""


class Mode(enum.StrEnum):
    """What a step is."""

    INFERENCE = "inference"
    TRAINING = "training"


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 1e-2}
"""For torch's oracle, on values whose largest is 1: its own default, and for bf16 some of its steps of 2**-8."""
NEGLIGIBLE = 1e-3
"""Gradients this much below the largest one of a network are noise beside the others: a bias before a batch norm has a
gradient of 0, which every arm rounds differently."""
NOISE_MULTIPLE = 3.0
"""An arm's gradients may be so many times as far off as eager's own: the largest factor of torch's oracle for values of
normal size."""
DISTURBED_RUNS = 8
"""A ReLU that rounding flips in every second run is missed in one of 256 cases."""


@dataclass(frozen=True, slots=True)
class Case:
    """What the arms are compared on."""

    entry: ZooEntry
    mode: Mode
    batch: int
    dtype: str
    inner: Inner
    allocation: Allocation = Allocation.DEFAULT

    @property
    def train(self) -> bool:
        return self.mode is Mode.TRAINING

    @property
    def title(self) -> str:
        return title_of(self.entry.name, self.mode, self.batch, self.dtype, self.inner, self.allocation)


def title_of(entry: str, mode: Mode, batch: int, dtype: str, inner: Inner, allocation: Allocation) -> str:
    """A case in a few words; the allocation of memory is told unless it is glibc's default."""
    told = "" if allocation is Allocation.DEFAULT else f", {allocation} memory"
    return f"{entry}, {mode}, batch {batch}, {dtype}, inner {inner}{told}"


def build(case: Case, device: torch.device) -> Network:
    """The network of a case. Dropout is off in training, too: it would differ between any two arms, and they could not
    be checked."""
    model, args, kwargs = case.entry.build(case.train, case.batch)
    model = without_dropout(model).to(device, DTYPES[case.dtype])
    call: Call = pytree.tree_map_only(Tensor, lambda t: _moved(t, device, DTYPES[case.dtype]), (args, kwargs))
    return model, (call, pytree.tree_map_only(Tensor, channels_last, call)) if case.entry.alternates else (call,)


def _moved(tensor: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    return tensor.to(device, dtype) if tensor.is_floating_point() else tensor.to(device)


def without_dropout(model: nn.Module) -> nn.Module:
    """The model with every dropout, and every stochastic depth of transformers' (`drop_prob`), at probability 0."""
    for module in model.modules():
        if isinstance(module, _DropoutNd):
            module.p = 0.0
        if isinstance(getattr(module, "drop_prob", None), float):
            module.drop_prob = 0.0  # type: ignore[assignment]
    return model


def forward_backward(program: Program, calls: Sequence[Call], train: bool) -> list[Tensor]:
    """One step; the tensors that the program returns. With `train`, gradients are left in the parameters."""
    found: list[Tensor] = []
    with torch.set_grad_enabled(train):
        for args, kwargs in calls:
            outputs = tensors(program(*args, **kwargs))
            if train:
                loss(outputs).backward()
            found.extend(outputs)
    return found


def loss(outputs: Sequence[Tensor]) -> Tensor:
    """The scalar loss among the outputs, or half the sum of squares of all that need a gradient: what then comes back
    is dense, and different everywhere, as a gradient from a real loss is."""
    roots = find_backward_roots(outputs)
    return torch.stack([root if root.dim() == 0 else root.square().sum() / 2 for root in roots]).sum()


def step_of(program: Program, model: nn.Module, calls: Sequence[Call], train: bool) -> Callable[[], None]:
    """What is timed: one step, after which there are no gradients."""
    parameters = list(model.parameters())

    def step() -> None:
        forward_backward(program, calls, train)
        if train:
            for parameter in parameters:
                parameter.grad = None

    return step


def tensors(output: object) -> list[Tensor]:
    """All tensors of an output, whose class may be a dictionary that pytree does not know."""
    leaves = pytree.tree_leaves(dict(output) if isinstance(output, dict) else output)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outputs of one step, and the gradients by parameter (empty for inference)."""

    outputs: tuple[Tensor, ...]
    gradients: dict[str, Tensor | None]


def outcome(program: Program, network: Network, train: bool) -> Outcome:
    """Run one step and keep what it made; the parameters are left without gradients."""
    model, calls = network
    outputs = tuple(output.detach().clone() for output in forward_backward(program, calls, train))
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()} if train else {}
    for parameter in model.parameters():
        parameter.grad = None
    return Outcome(outputs, gradients)


@dataclass(frozen=True, slots=True)
class Expected:
    """What plain eager makes of a case, in its dtype and in double precision.

    `noise` is the largest error among eager's own gradients, over two layouts and over weights and inputs that differ
    by their last digit, as a share of each gradient's largest value. A ReLU whose input rounds to the other side of 0
    changes a gradient far more than rounding itself does, and which ones do so differs with every kernel: ResNet-18's,
    plain and in channels-last, are 1e-3 apart.
    """

    same_dtype: Outcome
    double: Outcome
    noise: float

    @classmethod
    def of(cls, network: Network, train: bool) -> Expected:
        """Run all on copies of the network. Raises `ValueError` for a network that is not the same twice."""
        first, second = (_run_copy(network, train) for _ in range(2))
        if not all(map(torch.equal, first.outputs, second.outputs)):
            raise ValueError("two equal steps in plain eager differ: the network is random, arms cannot be checked")
        doubled = copy.deepcopy(network[0]).double()
        calls = pytree.tree_map_only(Tensor, lambda t: t.double() if t.is_floating_point() else t, network[1])
        double = outcome(doubled, (doubled, calls), train)
        converted = channels_last_model(copy.deepcopy(network[0]))
        calls = pytree.tree_map_only(Tensor, channels_last, network[1])
        runs = [first, outcome(converted, (converted, calls), train)]
        if train:
            runs += [_run_copy(_disturbed(network, seed), train) for seed in range(DISTURBED_RUNS)]
        return cls(first, double, max(_largest_error(run.gradients, double.gradients) for run in runs))

    def difference(self, made: Outcome, tolerance: float) -> str | None:
        """What torch's oracle says is wrong in `made`: an output or a gradient by name; None if all is right."""
        expected, double = self.same_dtype, self.double
        if len(made.outputs) != len(expected.outputs):
            return f"{len(made.outputs)} outputs instead of {len(expected.outputs)}"
        for index, triple in enumerate(zip(expected.outputs, made.outputs, double.outputs, strict=True)):
            if not _same(*triple, _largest([triple[2]]), tolerance):
                return f"output {index}"
        scales = _scales(double.gradients)
        for name, gradient in expected.gradients.items():
            other, exact = made.gradients.get(name), double.gradients[name]
            if gradient is None or other is None or exact is None:
                if gradient is not None or other is not None:
                    return f"gradient of {name}: {'missing' if other is None else 'not expected'}"
            elif not _same(gradient, other, exact, scales[name], tolerance) and not (
                _error(other, exact, scales[name]) <= NOISE_MULTIPLE * self.noise
            ):
                return f"gradient of {name}"
        return None


def _scales(gradients: Mapping[str, Tensor | None]) -> dict[str, float]:
    """What each gradient's errors are measured by: its largest value, unless that is negligible."""
    floor = NEGLIGIBLE * _largest(g for g in gradients.values() if g is not None)
    return {name: max(floor, _largest([g])) for name, g in gradients.items() if g is not None}


def _error(made: Tensor, exact: Tensor, scale: float) -> float:
    """The root of the mean square of the differences, over `scale`; infinite where the shapes differ."""
    return float((made.double() - exact).square().mean().sqrt()) / scale if made.shape == exact.shape else math.inf


def _largest_error(made: Mapping[str, Tensor | None], exact: Mapping[str, Tensor | None]) -> float:
    scales = _scales(exact)
    pairs = ((name, made.get(name), gradient) for name, gradient in exact.items())
    return max((_error(m, e, scales[name]) for name, m, e in pairs if m is not None and e is not None), default=0.0)


def _run_copy(network: Network, train: bool) -> Outcome:
    model = copy.deepcopy(network[0])
    return outcome(model, (model, network[1]), train)


def _disturbed(network: Network, seed: int) -> Network:
    """A copy whose weights and inputs differ from the network's by about a rounding of their type."""
    drawn = torch.Generator().manual_seed(seed)

    def rounded(value: Tensor) -> Tensor:
        if not value.is_floating_point():
            return value
        draw = torch.randn(value.shape, dtype=torch.float64, generator=drawn)
        # Of the same strides, and what is 0 stays 0.
        return value.mul((1 + torch.finfo(value.dtype).eps * draw).to(value.device)).to(value.dtype)

    model = copy.deepcopy(network[0])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(rounded(parameter))
    return model, pytree.tree_map_only(Tensor, rounded, network[1])


def _largest(values: Iterable[Tensor]) -> float:
    return max((float(v.abs().max()) for v in values if v.numel() and v.is_floating_point()), default=1.0) or 1.0


def _same(expected: Tensor, made: Tensor, double: Tensor, scale: float, tolerance: float) -> bool:
    """Torch's oracle on values that are divided by `scale`: its tolerance is absolute below 1."""
    if expected.shape != made.shape or expected.dtype != made.dtype:
        return False
    if not expected.is_floating_point():
        return torch.equal(expected, made)
    return same(expected / scale, made / scale, double / scale, tol=tolerance, log_error=lambda *_: None)
