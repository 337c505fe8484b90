"""Parses mangled names of C++, as far as names of kernels need it: `_ZN2my4copyILi4EEEvPKfPf`.

https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling. It reads names, template arguments that are types and
numbers, and parameters. A type that refers to an earlier one, or has template arguments of its own, is skipped. Lambdas
and expressions end the parsing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

Texts = tuple[str | None, ...]

_DEEPEST = 50
_NUMBER = re.compile(r"n?\d+")
_LENGTH = re.compile(r"\d{1,5}")
_REFERENCE = re.compile(r"S[\dA-Z]*_|S[absiod]|T\d*_")
_SUFFIXES = {"P": "*", "R": "&", "O": "&&"}
_QUALIFIERS = frozenset("KVr")
_BUILTIN = {
    "v": "void",
    "b": "bool",
    "c": "char",
    "a": "signedchar",
    "h": "unsignedchar",
    "s": "short",
    "t": "unsignedshort",
    "i": "int",
    "j": "unsignedint",
    "l": "long",
    "m": "unsignedlong",
    "x": "longlong",
    "y": "unsignedlonglong",
    "f": "float",
    "d": "double",
}
_NUMBERS = frozenset(_BUILTIN.values())


@dataclass(frozen=True, slots=True)
class MangledName:
    """A parsed name: the scope around the function, its own name, and types without blanks and qualifiers.

    An unknown type is None; all are None if parsing stopped before them.
    """

    scope: tuple[str, ...]
    function: str
    arguments: Texts | None
    parameters: Texts | None


def read_mangled(name: str) -> MangledName | None:
    """Parse a mangled name; None if not even the function can be read."""
    return _Reader(name).read()


class _UntoldError(Exception):
    """The text at this place cannot be parsed."""


class _Reader:
    """Reads from behind `_Z` on; `_at` is where it is."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = len("_Z")
        self._depth = 0

    def read(self) -> MangledName | None:
        try:
            nested = self._passed("N")
            scope, function = self._nested_name() if nested else ((), self._source_name())
        except _UntoldError:
            return None
        try:
            templated = self._passed("I")
            arguments = self._arguments() if templated else ()
            if nested and not self._passed("E"):
                raise _UntoldError
        except _UntoldError:
            return MangledName(scope, function, None, None)
        try:
            if templated:
                # What a template returns stands before its parameters.
                self._type()
            parameters = self._types()
        except _UntoldError:
            return MangledName(scope, function, arguments, None)
        return MangledName(scope, function, arguments, () if parameters == ("void",) else parameters)

    def _nested_name(self) -> tuple[tuple[str, ...], str]:
        """Up to the function's own template arguments, or the end of the name."""
        while self._peek() in _QUALIFIERS:
            self._at += 1
        parts = [self._source_name()]
        while self._peek() != "E":
            start = self._at
            if not self._passed("I"):
                parts.append(self._source_name())
                continue
            self._arguments()
            if self._peek() == "E":
                self._at = start
                break
        return tuple(parts[:-1]), parts[-1]

    def _source_name(self) -> str:
        self._passed("L")
        length = _LENGTH.match(self._text, self._at)
        if length is None:
            raise _UntoldError
        start = length.end()
        end = start + int(length[0])
        if not start < end <= len(self._text):
            raise _UntoldError
        self._at = end
        return self._text[start:end]

    def _arguments(self) -> Texts:
        """Parse the arguments of a template, or of a pack in it, with their end."""
        found: list[str | None] = []
        while not self._passed("E"):
            if self._passed("J"):
                self._deeper()
                found += self._arguments()
                self._depth -= 1
            else:
                found.append(self._literal() if self._passed("L") else self._type())
        return tuple(found)

    def _types(self) -> Texts:
        """Up to the end of the name, or to a suffix that a compiler has put there."""
        found: list[str | None] = []
        while self._peek() not in ("", "."):
            found.append(self._type())
        return tuple(found)

    def _literal(self) -> str | None:
        """A number. That of an enumeration is not told: demanglers may write its name."""
        kind = self._type()
        value = _NUMBER.match(self._text, self._at)
        if value is None:
            raise _UntoldError
        self._at = value.end()
        if not self._passed("E"):
            raise _UntoldError
        return value[0].replace("n", "-") if kind in _NUMBERS else None

    def _type(self) -> str | None:
        self._deeper()
        found = self._type_within()
        self._depth -= 1
        return found

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise _UntoldError

    def _type_within(self) -> str | None:
        first = self._peek()
        if first in _QUALIFIERS:
            self._at += 1
            return self._type()
        if first in _SUFFIXES:
            self._at += 1
            inner = self._type()
            return None if inner is None else inner + _SUFFIXES[first]
        if first in _BUILTIN:
            self._at += 1
            return _BUILTIN[first]
        if first.isdigit():
            name = self._source_name()
            return name if not self._skipped_arguments() else None
        if self._passed("N"):
            self._skip_nested()
            return None
        if self._text.startswith("St", self._at):
            self._at += 2
            self._source_name()
        elif reference := _REFERENCE.match(self._text, self._at):
            self._at = reference.end()
        else:
            raise _UntoldError
        self._skipped_arguments()
        return None

    def _skip_nested(self) -> None:
        """A name with others around it, up to its end."""
        while not self._passed("E"):
            if self._skipped_arguments():
                continue
            if self._text.startswith("St", self._at):
                self._at += 2
            elif reference := _REFERENCE.match(self._text, self._at):
                self._at = reference.end()
            else:
                self._source_name()

    def _skipped_arguments(self) -> bool:
        if not self._passed("I"):
            return False
        self._arguments()
        return True

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _passed(self, wanted: str) -> bool:
        """True if this character came next, and is behind now."""
        found = self._peek() == wanted
        self._at += found
        return found
