"""Compare names of kernels: as the source writes them, mangled in PTX, demangled by a profiler.

`_Z4copyILi4EEEvPKfPf`, `void copy<4>(const float *, float *)` and `copy` may all name one kernel. A name gives its
function, and usually more: namespaces, template arguments, types of parameters. Two names fit if everything that both
give is equal, so a bare name fits every instance of a template.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from frx_graph.evidence.mangled_name import Texts, read_mangled

_LONGEST = 10_000
"""Limit on the characters of a name that are parsed; a mangled kernel of CUTLASS has some thousands."""
_UNNAMED = re.compile(r"(?:\(anonymous namespace\)|<?unnamed>|_NV_ANON_NAMESPACE)::")
_INTERNAL = re.compile(r"_GLOBAL__N_|_INTERNAL_")
"""Prefixes of anonymous namespaces, and of those that nvcc makes from a file's name."""
_CAST = re.compile(r"\([A-Za-z_][\w :]*\)(?=-?\d)")
"""A number as some demanglers write it: `(int)4`."""
_SUFFIX = re.compile(r"(?<=\d)[uUlL]+$")
_QUALIFIERS = re.compile(r"\b(?:const|volatile|struct|class|enum|__restrict__|__restrict)\b|\s+")
_TRUTH = {"true": "1", "false": "0"}
_OPENS, _CLOSES = "<([{", ">)]}"


@dataclass(frozen=True, slots=True)
class KernelSignature:
    """A parsed name. `function` is the bare name. Parts that the name does not give are None: the namespaces and
    classes around it, the template arguments, the parameter types, and single items of these."""

    function: str
    scope: tuple[str, ...] | None = None
    arguments: Texts | None = None
    parameters: Texts | None = None

    @property
    def told(self) -> int:
        """Number of known parts."""
        parts = (self.scope, self.arguments, self.parameters)
        texts = (*(self.arguments or ()), *(self.parameters or ()))
        return sum(part is not None for part in parts) + sum(text is not None for text in texts)

    def can_match(self, other: KernelSignature) -> bool:
        """Return True if both may name one kernel."""
        return (
            self.function == other.function
            and (self.scope is None or other.scope is None or self.scope == other.scope)
            and _can_match(self.arguments, other.arguments)
            and _can_match(self.parameters, other.parameters)
        )


@functools.lru_cache(maxsize=4096)
def parse_kernel_signature(name: str) -> KernelSignature:
    """Parse `name`; if it is not a C++ name, all of it counts as the function."""
    text = name.strip()
    if len(text) > _LONGEST:
        return KernelSignature(text)
    if not text.startswith("_Z"):
        return _parse_demangled(text)
    found = read_mangled(text)
    if found is None:
        return KernelSignature(text)
    scope = tuple(part for part in found.scope if not _INTERNAL.match(part))
    return KernelSignature(found.function, scope, found.arguments, found.parameters)


def parse_source_signature(name: str, *, template: bool) -> KernelSignature:
    """Return the signature of a kernel at its definition, with exactly these namespaces around it. A template may have
    any arguments."""
    found = parse_kernel_signature(name)
    arguments = found.arguments if template or found.arguments is not None else ()
    return KernelSignature(found.function, found.scope or (), arguments)


def _can_match(one: Texts | None, other: Texts | None) -> bool:
    if one is None or other is None:
        return True
    return len(one) == len(other) and all(a is None or b is None or a == b for a, b in zip(one, other, strict=True))


def _parse_demangled(text: str) -> KernelSignature:
    named = _UNNAMED.sub("", text)
    # The first round bracket outside all others.
    outside = _find_outside_brackets(named)
    at = next((at for at in outside if at and named[at] == "("), None)
    listed = None if at is None else named[at + 1 : next(outside, None)]
    # Without the return type.
    whole_name = named[:at].strip()
    begin = max((at + 1 for at in _find_outside_brackets(whole_name) if whole_name[at] == " "), default=0)
    *scope, last = _split_outside_brackets(whole_name[begin:], "::") or [""]
    function, arguments = _split_template(last)
    if not function:
        return KernelSignature(text)
    whole = listed is not None
    parameters = tuple(map(_normalize_type, _split_outside_brackets(listed or "", ",")))
    return KernelSignature(
        function=function,
        scope=tuple(_split_template(part)[0] for part in scope if part) if scope or whole else None,
        arguments=() if arguments is None and whole else arguments,
        parameters=None if not whole else () if parameters == ("void",) else parameters,
    )


def _split_template(text: str) -> tuple[str, Texts | None]:
    """Return a name and its template arguments, None without any."""
    at = text.find("<")
    if at <= 0 or not text.endswith(">"):
        return text.strip(), None
    return text[:at].strip(), tuple(map(_normalize_type, _split_outside_brackets(text[at + 1 : -1], ",")))


def _normalize_type(text: str) -> str:
    """Return a canonical spelling of an argument or a type."""
    text = _SUFFIX.sub("", _CAST.sub("", text.strip()))
    return _TRUTH.get(text) or _QUALIFIERS.sub("", text)


def _split_outside_brackets(text: str, by: str) -> list[str]:
    """Return the parts between separators outside brackets; none for an empty text."""
    parts, start = [], 0
    for at in _find_outside_brackets(text):
        if at >= start and text.startswith(by, at):
            parts.append(text[start:at])
            start = at + len(by)
    return [*parts, text[start:]] if parts or text.strip() else []


def _find_outside_brackets(text: str) -> Iterator[int]:
    """Yield the index of each character outside all brackets, and of the outermost brackets."""
    depth = 0
    for at, character in enumerate(text):
        before = depth
        depth += (character in _OPENS) - (character in _CLOSES)
        if before == 0 or (depth == 0 and character in _CLOSES):
            yield at
