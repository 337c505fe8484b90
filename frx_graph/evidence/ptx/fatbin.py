"""What `cuobjdump -ptx` prints of a program: the PTX of each of its parts, with a head before it.

Fatbin ptx code:
================
arch = sm_80
...
.version 8.0
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from frx_graph.errors import EvidenceError

_PART = re.compile(r"^Fatbin (?:elf|ptx) code:[ \t]*\r?$", re.MULTILINE)
_VERSION = re.compile(r"^[ \t]*\.version\b", re.MULTILINE)
_TARGET = re.compile(r"^[ \t]*\.target[ \t]+(\w+)", re.MULTILINE)


def is_fatbin(text: str) -> bool:
    """True of what cuobjdump has printed."""
    return "Fatbin" in text and _PART.search(text) is not None


def fatbin_modules(text: str) -> Iterator[tuple[int, int]]:
    """Where the PTX of each part begins and ends."""
    heads = [found.start() for found in _PART.finditer(text)]
    for begin, end in zip(heads, [*heads[1:], len(text)], strict=True):
        version = _VERSION.search(text, begin, end)
        if version is not None:
            yield version.start(), end


def only_ptx(text: str, source: str) -> str:
    """The same lines without those of cuobjdump's own. Raises `EvidenceError`, which names `source`, for PTX of several
    targets: each has the same kernels."""
    kept: list[str] = []
    at = 0
    targets: dict[str, None] = {}
    for begin, end in fatbin_modules(text):
        targets.update(dict.fromkeys(_TARGET.findall(text, begin, end)))
        kept += ("\n" * text.count("\n", at, begin), text[begin:end])
        at = end
    if len(targets) > 1:
        last = list(targets)[-1]
        raise EvidenceError(
            f"{source}: PTX for {' and '.join(list(targets)[:5])}, expected one target", f"cuobjdump -ptx -arch {last}"
        )
    return "".join(kept)
