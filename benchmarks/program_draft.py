"""A random program while it is written: each line is run on real tensors before it is kept, so what is kept runs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

import torch
from random_program import PRELUDE, RandomProgram
from torch import Tensor, nn

T = TypeVar("T")

MOST_ELEMENTS = 4096
"""Of one value: an example has to run in milliseconds."""
LARGEST = 1e3
"""Of one element: what grows beyond it says more about rounding than about rewrites."""


class Draft:
    """Lines so far, and what they computed: once for each size that the program will be run with."""

    def __init__(self, random: Random, sizes: Sequence[int], dtype: str, training: bool) -> None:
        self._random = random
        self.dtype = dtype
        self.training = training
        self.inputs: list[str] = []
        self.modules: list[str] = []
        self.lines: list[str] = []
        self.names: list[str] = []
        self._parameters: dict[str, Tensor] = {}
        self._worlds: list[dict[str, Any]] = []
        for n in sizes:
            world: dict[str, Any] = {"n": n, "self": nn.Module()}
            exec(PRELUDE, world)
            self._worlds.append(world)

    # choices

    def pick(self, options: Sequence[T]) -> T:
        return self._random.choice(options)

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def chance(self, percent: int) -> bool:
        """True in about `percent` of 100 draws."""
        return self._random.randrange(100) < percent

    def order(self, rank: int) -> list[int]:
        return self._random.sample(range(rank), rank)

    # what there is

    def value(self, name: str) -> Tensor:
        """At the first size."""
        found: Tensor = self._worlds[0][name]
        return found

    def floats(self, *ranks: int) -> list[str]:
        """Names of floating-point values of these ranks (any rank where none is given), the newest first."""
        found = [name for name in reversed(self.names) if self.value(name).is_floating_point()]
        return [name for name in found if not ranks or self.value(name).dim() in ranks]

    def integers(self) -> list[str]:
        return [name for name in self.names if not self.value(name).is_floating_point()]

    def recent(self, names: Sequence[str]) -> str:
        """One of `names`, mostly a new one, so that programs grow deep."""
        return self.pick(names[:3]) if len(names) > 3 and self.chance(75) else self.pick(names)

    # what is added

    def add_input(self, text: str) -> bool:
        name = f"i{len(self.inputs)}"
        if not self._run(f"{name} = {text}", [name]):
            return False
        self.inputs.append(text)
        self.names.append(name)
        return True

    def add_module(self, text: str) -> str | None:
        """A submodule or parameter; returns the expression that reads it, None where it cannot be made."""
        name = f"self.m{len(self.modules)}"
        made: list[Any] = []
        for world in self._worlds:
            torch.default_generator.manual_seed(len(self.modules))
            try:
                exec(f"{name} = {text}", world)
            except (RuntimeError, ValueError, TypeError):
                return None
            made.append(getattr(world["self"], name.removeprefix("self.")))
        for thing in made:
            if isinstance(thing, nn.Module):
                thing.to(eval(self.dtype)).train(self.training)
            else:
                thing.data = thing.data.to(eval(self.dtype))
        self.modules.append(f"{name} = {text}")
        return name

    def fresh(self) -> str:
        return f"v{len(self.lines)}"

    def add(self, expression: str) -> bool:
        """A line that names the value of `expression`."""
        name = self.fresh()
        return self.add_line(f"{name} = {expression}", name)

    def add_line(self, line: str, *names: str) -> bool:
        """A statement that defines `names`, or changes a value in place where there are none."""
        if not self._run(line, names):
            return False
        self.lines.append(line)
        self.names.extend(name for name in names if name not in self.names)
        return True

    def drop_last_module(self) -> None:
        self.modules.pop()

    def trains(self) -> bool:
        """True if a backward pass runs through the values at all sizes."""
        for world in self._worlds:
            made = [world[name] for name in self.names]
            wanted = [value for value in made if value.requires_grad]
            try:
                torch.autograd.backward(wanted, [torch.ones_like(value) for value in wanted], retain_graph=True)
            except RuntimeError:
                return False
            if not wanted:
                return False
        return True

    def program(self, outputs: Sequence[str], **how: Any) -> RandomProgram:
        return RandomProgram(
            tuple(self.inputs), tuple(self.modules), tuple(self.lines), tuple(outputs), dtype=self.dtype, **how
        )

    def _run(self, line: str, names: Sequence[str]) -> bool:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for world in self._worlds:
                torch.default_generator.manual_seed(len(self.lines))
                try:
                    exec(line, world)
                # Whatever an operator says about operands that were drawn at random, the line is not kept.
                except Exception:  # noqa: BLE001
                    return False
                if not all(_usable(world.get(name)) for name in names):
                    return False
        return True


def _usable(value: object) -> bool:
    if not isinstance(value, Tensor) or value.numel() > MOST_ELEMENTS or value.is_complex() or value.dim() > 6:
        return False
    if not value.is_floating_point() or value.numel() == 0:
        return True
    return bool(value.detach().abs().max() < LARGEST)
