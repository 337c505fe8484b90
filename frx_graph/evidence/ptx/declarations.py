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
_DECLARATOR = re.compile(r"([\w%$]+)\s*(?:<\s*(\w+)\s*>|((?:\[[^\]]*\]\s*)*))")
_LINKAGE = re.compile(r"\A\.(?:visible|extern|weak|common)\s*")
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
        for space, _, bits, count, _ in _parse_declarations(declarations)
        if space == "reg" and bits > 1
    )


def count_declared_bytes(declarations: Iterable[str], wanted: str) -> int:
    """Count the bytes declared in the space `wanted`, `local` or `shared`.

    An array without a size counts as none: the launch sizes it. Raises `ValueError` for a malformed size.
    """
    return sum(size for space, _, size in _measure_variables(declarations) if space == wanted)


def list_shared_variables(declarations: Iterable[str]) -> dict[str, int]:
    """Return the bytes of each variable that a module declares in shared memory, by name. Raises `ValueError` for a
    malformed size."""
    inside = (_LINKAGE.sub("", declaration) for declaration in declarations)
    return {name: size for space, name, size in _measure_variables(inside) if space == "shared"}


def _measure_variables(declarations: Iterable[str]) -> Iterator[tuple[str, str, int]]:
    """Yield the space, the name and the bytes of each variable; registers are left out."""
    for space, name, bits, count, sizes in _parse_declarations(declarations):
        if space == "reg":
            continue
        for size in _SIZE.findall(sizes):
            count = _check_count(count * (_parse_number(size) if size else 0))
        yield space, name, count * max(1, bits // 8)


def _parse_declarations(declarations: Iterable[str]) -> Iterator[tuple[str, str, int, int, str]]:
    """Yield the space of each name, the name, its bits, its count, and the sizes of an array as written."""
    for declaration in declarations:
        found = _DECLARATION.match(declaration)
        if found is None:
            continue
        space, vector, kind, names = found.groups()
        bits = _BITS.search(kind)
        width = 1 if bits is None else int(bits[1]) * (2 if bits[2] else 1)
        for name in _DECLARATOR.finditer(names):
            count = int(vector or 1) * (_parse_number(name[2]) if name[2] else 1)
            yield space, name[1], width, count, name[3] or ""


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
