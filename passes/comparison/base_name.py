"""What a kernel is called in its source, from the name that a compiler or a profiler gives it."""

from __future__ import annotations

import functools

_OPENING, _CLOSING = "<([", ">)]"


@functools.lru_cache(maxsize=4096)
def base_name(name: str) -> str:
    """The function alone, without namespaces, template arguments, return type and parameters: `scale` of
    `_ZN2ns5scaleIfEEvPT_` and of `void ns::scale<float>(float *)`. A name that cannot be read is its own."""
    return (_mangled(name) if name.startswith("_Z") else _demangled(name)) or name


def _mangled(name: str) -> str:
    """By the Itanium rules, as far as kernels need them: no kernel is a member, so the last name is the function.
    https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling-structure"""
    place, found = len("_Z"), ""
    nested = name.startswith("N", place)
    place += nested
    while place < len(name):
        if name.startswith("L", place):  # of internal linkage
            place += 1
            continue
        end = place
        while end < len(name) and name[end] in "0123456789":
            end += 1
        # A length of more digits than that is none, and int() refuses to read thousands of them.
        if end == place or end - place > 6:
            break
        length = int(name[place:end])
        place = end + length
        if length == 0 or place > len(name):
            return ""
        found = name[end:place]
        if not nested:
            break
    return found


def _demangled(name: str) -> str:
    kept, depth = [], 0
    for character in name:
        if character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth = max(0, depth - 1)
        elif depth == 0:
            kept.append(character)
    words = "".join(kept).split()
    return words[-1].rpartition("::")[2] if words else ""
