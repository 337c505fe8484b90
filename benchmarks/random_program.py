"""A program that a generator wrote: a module, its inputs and how they are run, all of it Python source.

What is found wrong can be read, run and cut down as it stands: `source` is a file of its own.
"""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

PRELUDE = """\
import torch
from torch import nn
from torch.nn import functional as F
"""

_numbers = itertools.count()


@dataclass(frozen=True)
class RandomProgram:
    """Source of `forward(self, i0, i1, ...)`: statements over the inputs, and the expressions that it returns.

    `inputs` are expressions of `n`, which is 2 in the first step and 3 in the second where `dynamic`; `modules` are
    statements of `__init__`. With `train` the module is in training mode and each step ends in a backward pass and
    a step of SGD; `tangents` says how the gradients of the outputs lie in memory.
    """

    inputs: tuple[str, ...]
    modules: tuple[str, ...]
    lines: tuple[str, ...]
    outputs: tuple[str, ...]
    dtype: str = "torch.float32"
    train: bool = False
    dynamic: bool = False
    model_channels_last: bool = False
    tangents: str = "contiguous"

    @property
    def sizes(self) -> tuple[int, int]:
        """`n` of the two steps."""
        return (2, 3) if self.dynamic else (2, 2)

    @property
    def source(self) -> str:
        """The whole program: class `Program` and functions `model()` and `inputs(n)`."""
        names = [f"i{index}" for index in range(len(self.inputs))]
        modules = ["super().__init__()", *self.modules]
        forward = [*self.lines, f"return {', '.join(self.outputs)},"]
        build = ["m = Program()", f"m = m.to({self.dtype}).train({self.train})"]
        if self.model_channels_last:
            build.append("m = m.to(memory_format=torch.channels_last)")
        assigned = [f"{name} = {text}" for name, text in zip(names, self.inputs, strict=True)]
        return "\n".join(
            [
                PRELUDE,
                "",
                "class Program(nn.Module):",
                "    def __init__(self):",
                *_indented(modules, 8),
                "",
                f"    def forward(self, {', '.join(names)}):",
                *_indented(forward, 8),
                "",
                "",
                "def model():",
                *_indented([*build, "return m"], 4),
                "",
                "",
                "def inputs(n):",
                *_indented([*assigned, f"return [{', '.join(names)}]"], 4),
                "",
            ]
        )

    def load(self) -> LoadedProgram:
        """The program as code objects of its own, so that what Dynamo compiles for one is not used for another."""
        name = f"<random program {next(_numbers)}>"
        text = self.source
        # Dynamo and tracebacks read source lines there.
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        namespace: dict[str, Any] = {"__name__": "random_program"}
        exec(compile(text, name, "exec"), namespace)
        return LoadedProgram(name, namespace)

    def without(self, part: str, index: int) -> RandomProgram:
        """The program less one entry of `lines`, `outputs`, `modules` or `inputs`; it may not run any more."""
        kept = getattr(self, part)
        changed: dict[str, Any] = {part: (*kept[:index], *kept[index + 1 :])}
        return replace(self, **changed)


@dataclass(frozen=True)
class LoadedProgram:
    """The functions that a program's source defines."""

    file: str
    namespace: dict[str, Any]

    def model(self, seed: int = 0) -> nn.Module:
        """The same parameters whenever it is asked."""
        torch.default_generator.manual_seed(seed)
        made: nn.Module = self.namespace["model"]()
        return made

    def inputs(self, n: int, seed: int = 1) -> list[Tensor]:
        """The same values whenever it is asked."""
        torch.default_generator.manual_seed(seed)
        made: list[Tensor] = self.namespace["inputs"](n)
        return made

    def forget(self) -> None:
        """Drop the source, which nothing needs any more."""
        linecache.cache.pop(self.file, None)


def copied(inputs: Sequence[Tensor], in_fp64: bool = False) -> list[Tensor]:
    """Copies of the inputs, on request in fp64: strides, offsets and shared storages as they were."""
    flat: dict[int, Tensor] = {}
    copies = []
    for value in inputs:
        storage = value.untyped_storage()
        base = flat.get(storage._cdata)
        if base is None:
            whole = torch.as_strided(value.detach(), (storage.nbytes() // value.element_size(),), (1,), 0)
            double = in_fp64 and value.is_floating_point()
            base = flat[storage._cdata] = whole.double() if double else whole.clone()
        view = base.as_strided(value.shape, value.stride(), value.storage_offset())
        copies.append(view.detach().requires_grad_(value.requires_grad))
    return copies


def _indented(lines: list[str], columns: int) -> list[str]:
    return [" " * columns + part for line in lines for part in line.splitlines()]
