"""Cuts a program that fails down to what it fails for: the reproducer that a report shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from random_program import RandomProgram

_NAME = re.compile(r"\b(?:v\d+[a-z]?|i\d+|self\.m\d+)\b")


def smallest(program: RandomProgram, fails: Callable[[RandomProgram], bool], most_runs: int = 200) -> RandomProgram:
    """`program` with as much as possible taken away while `fails` stays true, in at most `most_runs` of it."""
    runs = 0
    progress = True
    while progress:
        progress = False
        for simpler in _simpler(program):
            if runs >= most_runs:
                return program
            runs += 1
            if fails(simpler):
                program, progress = simpler, True
                break
    return program


def _simpler(program: RandomProgram) -> Iterator[RandomProgram]:
    for name in ("dynamic", "train", "model_channels_last"):
        if getattr(program, name):
            off: dict[str, Any] = {name: False}
            yield replace(program, **off)
    if program.tangents != "contiguous":
        yield replace(program, tangents="contiguous")
    if len(program.outputs) > 1:
        for index in range(len(program.outputs)):
            yield program.without("outputs", index)
    for index in reversed(range(len(program.lines))):
        line = program.lines[index]
        shorter = program.without("lines", index)
        yield shorter
        # Without the line, what it named can be what it read.
        named = line.split(" = ")[0]
        for read in _NAME.findall(line.removeprefix(named)):
            if re.fullmatch(_NAME, named) and not read.startswith("self."):
                yield _renamed(shorter, index, named, read)
    used = set(_NAME.findall("\n".join((*program.lines, *program.outputs))))
    unused = [i for i, text in enumerate(program.modules) if text.split(" = ")[0] not in used]
    if unused:
        yield program.without("modules", unused[0])
    last = len(program.inputs) - 1
    if last and f"i{last}" not in used:
        yield program.without("inputs", last)
    for index, text in enumerate(program.inputs):
        for cut in (".requires_grad_()", ".detach()"):
            if cut in text:
                yield _with_input(program, index, text.replace(cut, ""))
    if program.dtype == "torch.bfloat16":
        text = "torch.float32"
        inputs = tuple(made.replace(program.dtype, text) for made in program.inputs)
        yield replace(program, dtype=text, inputs=inputs)


def _renamed(program: RandomProgram, start: int, old: str, new: str) -> RandomProgram:
    pattern = re.compile(rf"\b{re.escape(old)}\b")
    lines = tuple(pattern.sub(new, line) if i >= start else line for i, line in enumerate(program.lines))
    return replace(program, lines=lines, outputs=tuple(pattern.sub(new, text) for text in program.outputs))


def _with_input(program: RandomProgram, index: int, text: str) -> RandomProgram:
    return replace(program, inputs=(*program.inputs[:index], text, *program.inputs[index + 1 :]))
