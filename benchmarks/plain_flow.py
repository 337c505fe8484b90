"""The loops of a PTX function in the plainest way, to compare others with: sets, no order, no cleverness."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_STATEMENT = re.compile(r"\s*(?:([A-Za-z_$%][\w$]*)\s*:(?!:)|([^;{}]*(?:\{[^;{}]*\}[^;{}]*)*);|([{}]))")
_GUARD = re.compile(r"^@\s*!?\s*[\w%$]+\s+")


def plain_loop_headers(body: str) -> set[str]:
    """The labels of blocks that dominate one that goes on at them; `body` has no comments."""
    body = re.sub(r"\.loc\s+\d+\s+\d+\s+\d+(\s*,\s*function_name[^\n]*)?|\.file[^\n]*", "", body)
    if not re.search(r"\b(?:bra|brx)\b", body):
        return set()
    names, following = _blocks(body)
    dominators = _dominators(0, following)
    return {
        names[header]
        for block, after in following.items()
        if block in dominators
        for header in after
        if header in dominators[block]
    }


def _blocks(body: str) -> tuple[dict[int, str], dict[int, set[int]]]:
    """The label of each block that has one, and where each block goes on. A label is in its scope: it gets that
    scope's number."""
    scopes, opened = [0], 0
    labels: dict[str, int] = {}
    tables: dict[str, list[str]] = {}
    jumps: list[tuple[int, str, tuple[int, ...]]] = []
    passes: set[int] = set()
    block = place = 0
    name, filled = "", False
    while found := _STATEMENT.match(body, place):
        place = found.end()
        if found[3]:
            if found[3] == "{":
                opened += 1
                scopes.append(opened)
            else:
                scopes.pop()
            continue
        if found[1]:
            # Labels behind each other are one place.
            if filled:
                passes.add(block)
                block, filled = block + 1, False
            name = found[1]
            labels[_scoped(name, scopes[-1])] = block
            continue
        text = found[2].strip()
        if text.startswith(".branchtargets"):
            tables[name] = [one.strip() for one in text.removeprefix(".branchtargets").split(",")]
        if text.startswith((".branchtargets", ".calltargets", ".callprototype")):
            # Its name is no place.
            del labels[_scoped(name, scopes[-1])]
        if not text or text.startswith("."):
            continue
        filled = True
        guard = _GUARD.match(text)
        words = text[guard.end() if guard else 0 :].split()
        opcode = words[0].partition(".")[0]
        if opcode in ("bra", "brx"):
            targets = tables[words[-1]] if opcode == "brx" else [words[-1]]
            jumps += [(block, target, tuple(scopes)) for target in targets]
        if opcode in ("bra", "brx", "ret", "exit", "trap"):
            if guard:
                passes.add(block)
            block, filled = block + 1, False
    following: dict[int, set[int]] = {number: set() for number in range(block + 1)}
    for number in passes:
        following[number].add(number + 1)
    for number, target, around in jumps:
        known = next(one for scope in reversed(around) if (one := _scoped(target, scope)) in labels)
        following[number].add(labels[known])
    return {number: label.rpartition("/")[2] for label, number in labels.items()}, following


def _scoped(label: str, scope: int) -> str:
    return f"{scope}/{label}"


def _dominators(start: int, following: Mapping[int, Iterable[int]]) -> dict[int, set[int]]:
    """Of each block that can be reached: the blocks without which it cannot."""

    def reached(without: int | None) -> set[int]:
        seen, waiting = set(), [start]
        while waiting:
            block = waiting.pop()
            if block != without and block not in seen:
                seen.add(block)
                waiting.extend(following[block])
        return seen

    every = reached(None)
    lost = {block: every - reached(block) for block in every}
    return {block: {one for one in every if block in lost[one]} for block in every}
