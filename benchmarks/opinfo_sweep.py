"""Every operator that torch tests (`op_db`) and every module (`module_db`), rewritten and compared with itself.

    python benchmarks/opinfo_sweep.py [--inner eager|aot_eager|inductor|"eager stored"|"eager chosen"] [--samples 3]
                                      [--only WORD] [--operators N] [--seed 0] [--plan all|solved] [--json FILE]

Each sample runs as it is and, where it has image-like operands, between convolutions: one in front of every 4-D operand
and one behind every 4-D result, so that what is rewritten around the convolutions reaches the operator. Forward, and
backward where the operator has one. Exit code 1 if anything is wrong; every refusal is counted with its reason.
`--operators` takes that many, chosen by `--seed`.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import logging
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import torch
from random_program import RandomProgram, copied
from rewrite_oracle import ARMS, FROZEN, Outcome, Verdict, check_loaded, general_reasons
from torch import Tensor, nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree

MOST_SAMPLES_READ = 40
"""An operator's samples are read up to here in search of image-like ones; some have thousands."""
MOST_ELEMENTS = 20_000
UNINITIALISED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
"""Operators whose values are whatever lay in memory: there is nothing to compare."""


class Wrapped(nn.Module):
    """Calls `function` on tensors put back into the arguments that they were taken from; `before` and `after` map the
    position of an operand or result to a convolution."""

    def __init__(self, function: Callable[..., Any], leaves: Sequence[Any], spec: pytree.TreeSpec) -> None:
        super().__init__()
        self.function = function
        self.places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self.constants = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.spec = spec
        self.before = nn.ModuleDict()
        self.after = nn.ModuleDict()

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        leaves = list(self.constants)
        for place, tensor in zip(self.places, tensors, strict=True):
            name = str(place)
            leaves[place] = self.before[name](tensor) if name in self.before else tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        results = [leaf for leaf in pytree.tree_leaves(self.function(*args, **kwargs)) if isinstance(leaf, Tensor)]
        return [self.after[str(i)](leaf) if str(i) in self.after else leaf for i, leaf in enumerate(results)]


@dataclass(frozen=True)
class OperatorSample:
    """One call of an operator: `make` gives the function or module, `between` puts convolutions around it."""

    name: str
    make: Callable[[], Callable[..., Any]]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    between: bool = False

    @property
    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(leaf, Tensor)]

    @property
    def has_images(self) -> bool:
        return any(_is_image(value) for value in self.tensors)

    def model(self, seed: int = 0) -> nn.Module:
        torch.default_generator.manual_seed(seed)
        leaves, spec = pytree.tree_flatten((self.args, self.kwargs))
        model = Wrapped(self.make(), leaves, spec)
        if self.between:
            for place, leaf in enumerate(leaves):
                if _is_image(leaf):
                    model.before[str(place)] = nn.Conv2d(leaf.shape[1], leaf.shape[1], 3, padding=1)
            with torch.no_grad():
                results = model(*self.inputs(2))
            for index, result in enumerate(results):
                if _is_image(result):
                    model.after[str(index)] = nn.Conv2d(result.shape[1], 2, 1)
        return model

    def inputs(self, n: int, seed: int = 1) -> list[Tensor]:  # noqa: ARG002 - a sample has one size, and its values
        return copied(self.tensors)


@dataclass
class Swept:
    """What became of the samples; `wrong` maps an operator to what is wrong with it."""

    samples: int = 0
    operators: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    wrong: dict[str, list[str]] = field(default_factory=dict)
    baseline: dict[str, str] = field(default_factory=dict)

    def note(self, name: str, verdict: Verdict) -> None:
        self.samples += 1
        self.outcomes[verdict.outcome.value] += 1
        self.refusals += general_reasons(verdict.refusals)
        if verdict.outcome is Outcome.WRONG:
            self.wrong.setdefault(name, [*verdict.problems])
        elif verdict.outcome is Outcome.BASELINE:
            self.baseline.setdefault(name, verdict.problems[0].splitlines()[0][:200])


def operator_samples(operator: Any, most: int) -> list[OperatorSample]:
    """Up to `most` samples of an `OpInfo`, image-like ones first, and as many of those between convolutions."""

    def make() -> Callable[..., Any]:
        function: Callable[..., Any] = operator.op
        return function

    drawn = operator.sample_inputs("cpu", torch.float32, requires_grad=operator.supports_autograd)
    read = (OperatorSample(operator.full_name, make, (s.input, *s.args), s.kwargs) for s in drawn)
    return _chosen(read, most)


def module_samples(info: Any, most: int) -> list[OperatorSample]:
    """The same of a `ModuleInfo`, in training and in evaluation mode."""
    samples = []
    for training in (True, False):
        drawn = info.module_inputs_func(info, "cpu", torch.float32, requires_grad=True, training=training)
        read = []
        for given in drawn:
            made, called = given.constructor_input, given.forward_input
            if called is None:
                continue

            def make(made: Any = made, training: bool = training) -> nn.Module:
                module: nn.Module = info.module_cls(*made.args, **made.kwargs)
                return module.train(training)

            read.append(OperatorSample(info.name, make, tuple(called.args), dict(called.kwargs)))
        samples += _chosen(iter(read), most)
    return samples


def check_sample(sample: OperatorSample, inner: str, plan: str) -> Verdict:
    """The verdict on one sample: with a backward pass where there is something to differentiate."""
    train = sample.between or any(value.requires_grad for value in sample.tensors)
    verdict = check_loaded(RandomProgram((), (), (), (), train=train), sample, inner, plan)
    if train and verdict.outcome is Outcome.EAGER:
        return check_loaded(RandomProgram((), (), (), ()), sample, inner, plan)
    return verdict


def sweep(subjects: Sequence[tuple[str, Callable[[], list[OperatorSample]]]], inner: str, plan: str) -> Swept:
    """All samples of all subjects, with a line of progress."""
    swept, started, said = Swept(), time.monotonic(), time.monotonic()
    for number, (name, samples) in enumerate(subjects):
        try:
            drawn = samples()
        # Samples of some operators need libraries that are not there.
        except Exception as error:  # noqa: BLE001
            swept.baseline[name] = f"no samples: {error}"
            continue
        swept.operators += 1
        for sample in drawn:
            swept.note(name, check_sample(sample, inner, plan))
        if time.monotonic() - said > 10:
            said = time.monotonic()
            counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(swept.outcomes.items()))
            print(f"{number + 1} of {len(subjects)} after {said - started:.0f} s: {counts}", flush=True)
    return swept


def subjects(most: int) -> list[tuple[str, Callable[[], list[OperatorSample]]]]:
    """Every operator and module with a floating-point form on the CPU, and how to draw its samples."""
    operators = [
        (operator.full_name, functools.partial(operator_samples, operator, most))
        for operator in op_db
        if torch.float32 in operator.supported_dtypes("cpu") and operator.name not in UNINITIALISED
    ]
    return operators + [(info.name, functools.partial(module_samples, info, most)) for info in module_db]


def _chosen(read: Iterator[OperatorSample], most: int) -> list[OperatorSample]:
    seen = [
        sample
        for sample in itertools.islice(read, MOST_SAMPLES_READ)
        if all(_is_plain_tensor(value) for value in sample.tensors)
    ]
    seen.sort(key=lambda sample: not sample.has_images)
    around = [
        OperatorSample(sample.name, sample.make, sample.args, sample.kwargs, between=True)
        for sample in seen[:most]
        if sample.has_images
    ]
    return seen[:most] + [sample for sample in around if _runs(sample)]


def _runs(sample: OperatorSample) -> bool:
    try:
        sample.model()
    # What an operator says of operands that a convolution has changed is its own affair.
    except Exception:  # noqa: BLE001
        return False
    return True


def _is_plain_tensor(value: Tensor) -> bool:
    return value.layout is torch.strided and not value.is_nested and value.numel() <= MOST_ELEMENTS


def _is_image(value: object) -> bool:
    return isinstance(value, Tensor) and value.dim() == 4 and value.dtype is torch.float32 and value.numel() > 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Every operator and module that torch tests, rewritten.")
    parser.add_argument("--inner", choices=tuple(arm for arm in ARMS if arm != FROZEN), default="eager")
    parser.add_argument("--plan", choices=("all", "solved"), default="all")
    parser.add_argument("--samples", type=int, default=3, help="of an operator, and as many between convolutions")
    parser.add_argument("--only", default="", metavar="WORD", help="operators whose name contains it")
    parser.add_argument("--operators", type=int, help="so many, chosen at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args(arguments)
    chosen = [subject for subject in subjects(given.samples) if given.only in subject[0]]
    if given.operators is not None:
        chosen = Random(given.seed).sample(chosen, min(given.operators, len(chosen)))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        swept = sweep(chosen, given.inner, given.plan)
    torch.set_num_threads(threads)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(swept.outcomes.items()))
    print(f"{swept.samples} samples of {swept.operators} operators and modules: {counts}")
    for reason, count in swept.refusals.most_common():
        print(f"  refused {count:5d}  {reason}")
    for name, said in swept.baseline.items():
        print(f"  baseline  {name}: {said}")
    for name, problems in swept.wrong.items():
        print(f"WRONG: {name}: {'; '.join(problems)}")
    if given.json:
        document = {
            "samples": swept.samples,
            "operators": swept.operators,
            "outcomes": dict(swept.outcomes),
            "refusals": dict(swept.refusals.most_common()),
            "baseline": swept.baseline,
            "wrong": swept.wrong,
        }
        given.json.write_text(json.dumps(document, indent=2) + "\n")
    return 1 if swept.wrong else 0


if __name__ == "__main__":
    # What torch logs of programs that it cannot compile is counted, not shown.
    logging.disable(logging.ERROR)
    sys.exit(main())
