"""Count the declarations of a function: virtual registers, and arrays in local and shared memory.

https://docs.nvidia.com/cuda/parallel-thread-execution/#variables
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

DECLARED = (".reg", ".local", ".shared")
"""Beginnings of the declarations that are read here."""
_DECLARATION = re.compile(
    r"\.(reg|local|shared)\b(?:\s*\.align\s+\w+)?\s*(?:\.v([248])\s*)?\.(pred|[busf]+\d+(?:x2)?)\s*(?:\.align\s+\w+\s*)?"
    r"([^=;]*)"
)
_DECLARATOR = re.compile(r"[\w%$]+\s*(?:<\s*(\w+)\s*>|((?:\[[^\]]*\]\s*)*))")
_SIZE = re.compile(r"\[\s*([^\]]*?)\s*\]")
_NUMBER = re.compile(r"(0[xX][0-9a-fA-F]+|0[bB][01]+|[0-9]+)U?")
_BITS = re.compile(r"(\d+)(x2)?")
_MOST = 1 << 48
"""Limit in bytes or registers: more than any machine can address."""


def count_virtual_registers(declarations: Iterable[str]) -> int:
    """Count the declared 32-bit registers: 64-bit ones count as two, predicates do not count.

    Raises `ValueError` for a malformed number.
    """
    return sum(
        max(1, bits // 32) * _check_count(count)
        for space, bits, count, _ in _parse_declarations(declarations)
        if space == "reg" and bits > 1
    )


def count_declared_bytes(declarations: Iterable[str], wanted: str) -> int:
    """Count the bytes declared in the space `wanted`, `local` or `shared`.

    An array without a size counts as none: the launch sizes it. Raises `ValueError` for a malformed size.
    """
    total = 0
    for space, bits, count, sizes in _parse_declarations(declarations):
        if space != wanted:
            continue
        for size in _SIZE.findall(sizes):
            count = _check_count(count * (_parse_number(size) if size else 0))
        total += count * max(1, bits // 8)
    return total


def _parse_declarations(declarations: Iterable[str]) -> Iterator[tuple[str, int, int, str]]:
    """Yield the space of each name, its bits, its count, and the sizes of an array as written."""
    for declaration in declarations:
        found = _DECLARATION.match(declaration)
        if found is None:
            continue
        space, vector, kind, names = found.groups()
        bits = _BITS.search(kind)
        width = 1 if bits is None else int(bits[1]) * (2 if bits[2] else 1)
        for name in _DECLARATOR.finditer(names):
            yield space, width, int(vector or 1) * (_parse_number(name[1]) if name[1] else 1), name[2] or ""


def _parse_number(text: str) -> int:
    found = _NUMBER.fullmatch(text)
    if found is None or len(text) > 20:
        raise ValueError(f"no number: {text[:40]!r}")
    digits = found[1]
    # An octal number begins with 0, as in C.
    return int(digits, 8 if digits[0] == "0" and digits.isdigit() else 0)


def _check_count(count: int) -> int:
    if count > _MOST:
        raise ValueError(f"more than {_MOST:,} of something declared at once")
    return count
