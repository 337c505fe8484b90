"""What the launches of a file make of a kernel: what its template's numbers are, and how wide its blocks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from frx_graph.evidence.cuda.constants import fold
from frx_graph.evidence.cuda.source import Launch

_NUMBER = re.compile(
    r"(?:const\s+)?(?:unsigned|int|long|short|size_t|u?int\d\d?_t|auto)\b[\w\s]*?\b(\w+)\s*(?:=\s*(.+))?$"
)
"""A parameter of a template that is a number, and what it is if no argument says so."""


@dataclass(frozen=True, slots=True)
class Instance:
    """`numbers` are parameters of the template that are the same in all launches, `width` the threads in x if all
    blocks have as many."""

    numbers: Mapping[str, int]
    width: int | None


def instance(template: Sequence[str], launches: Sequence[Launch], constants: Mapping[str, int]) -> Instance:
    """Of a kernel with these parameters of its template, launched so; what no launch says is what the template has."""
    numbers = {}
    for at, one in enumerate(template):
        parameter = _NUMBER.match(one)
        if parameter is None:
            continue
        values = {_argument(launch, at, parameter[2], constants) for launch in launches}
        if not launches:
            values = {fold(parameter[2], constants) if parameter[2] else None}
        value = values.pop() if len(values) == 1 else None
        if value is not None:
            numbers[parameter[1]] = value
    found = {launch.block.sizes[0] for launch in launches}
    return Instance(numbers, (found.pop() or None) if len(found) == 1 else None)


def _argument(launch: Launch, at: int, otherwise: str | None, constants: Mapping[str, int]) -> int | None:
    listed = launch.kernel.partition("<")[2].rpartition(">")[0]
    arguments = split(listed) if listed else []
    text = arguments[at] if at < len(arguments) else otherwise
    return fold(text, constants) if text else None


def split(text: str) -> list[str]:
    """The arguments in a list, of which each may have commas in parentheses."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += {"(": 1, "<": 1, ")": -1, ">": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()]
