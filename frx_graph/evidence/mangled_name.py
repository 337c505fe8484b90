"""Parse mangled C++ names as far as names of kernels need it: `_ZN2my4copyILi4EEEvPKfPf`.

The format is https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling. Names, parameters, and template arguments
that are types and numbers are parsed. A type with template arguments, or a reference to an earlier type, is skipped.
Lambdas and expressions end the parsing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

Texts = tuple[str | None, ...]

_DEEPEST = 50
_NUMBER = re.compile(r"n?\d+")
_LENGTH = re.compile(r"\d{1,5}")
_REFERENCE = re.compile(r"S[\dA-Z]*_|S[absiodt]|T\d*_")
"""An earlier type or a standard one; the name of a type in `std` follows `St`."""
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
    return _MangledNameReader(name).read()


class _UnsupportedError(Exception):
    """The text at this place cannot be parsed."""


class _MangledNameReader:
    """Parses a name after its `_Z`; `_at` is the position."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = len("_Z")
        self._depth = 0

    def read(self) -> MangledName | None:
        try:
            nested = self._skip_character("N")
            scope, function = self._read_nested_name() if nested else ((), self._read_source_name())
        except _UnsupportedError:
            return None
        try:
            templated = self._skip_character("I")
            arguments = self._read_arguments() if templated else ()
            if nested and not self._skip_character("E"):
                raise _UnsupportedError
        except _UnsupportedError:
            return MangledName(scope, function, None, None)
        try:
            if templated:
                # A template's return type comes before its parameters.
                self._read_type()
            parameters = self._read_types()
        except _UnsupportedError:
            return MangledName(scope, function, arguments, None)
        return MangledName(scope, function, arguments, () if parameters == ("void",) else parameters)

    def _read_nested_name(self) -> tuple[tuple[str, ...], str]:
        """Parse up to the function's own template arguments, or the end of the name."""
        while self._peek() in _QUALIFIERS:
            self._at += 1
        parts = [self._read_source_name()]
        while self._peek() != "E":
            start = self._at
            if not self._skip_character("I"):
                parts.append(self._read_source_name())
                continue
            self._read_arguments()
            if self._peek() == "E":
                self._at = start
                break
        return tuple(parts[:-1]), parts[-1]

    def _read_source_name(self) -> str:
        self._skip_character("L")
        length = _LENGTH.match(self._text, self._at)
        if length is None:
            raise _UnsupportedError
        start = length.end()
        end = start + int(length[0])
        if not start < end <= len(self._text):
            raise _UnsupportedError
        self._at = end
        return self._text[start:end]

    def _read_arguments(self) -> Texts:
        """Parse the arguments of a template, or of a pack in it, with their end."""
        found: list[str | None] = []
        while not self._skip_character("E"):
            if self._skip_character("J"):
                self._enter_level()
                found += self._read_arguments()
                self._depth -= 1
            else:
                found.append(self._read_literal() if self._skip_character("L") else self._read_type())
        return tuple(found)

    def _read_types(self) -> Texts:
        """Parse up to the end of the name, or to a compiler's suffix."""
        found: list[str | None] = []
        while self._peek() not in ("", "."):
            found.append(self._read_type())
        return tuple(found)

    def _read_literal(self) -> str | None:
        """Parse a number. Numbers of an enumeration are unknown, since demanglers may write a name instead."""
        kind = self._read_type()
        value = _NUMBER.match(self._text, self._at)
        if value is None:
            raise _UnsupportedError
        self._at = value.end()
        if not self._skip_character("E"):
            raise _UnsupportedError
        return value[0].replace("n", "-") if kind in _NUMBERS else None

    def _read_type(self) -> str | None:
        self._enter_level()
        found = self._read_inner_type()
        self._depth -= 1
        return found

    def _enter_level(self) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise _UnsupportedError

    def _read_inner_type(self) -> str | None:
        first = self._peek()
        if first in _QUALIFIERS:
            self._at += 1
            return self._read_type()
        if first in _SUFFIXES:
            self._at += 1
            inner = self._read_type()
            return None if inner is None else inner + _SUFFIXES[first]
        if first in _BUILTIN:
            self._at += 1
            return _BUILTIN[first]
        if first.isdigit():
            name = self._read_source_name()
            return name if not self._skip_arguments() else None
        if self._skip_character("N"):
            self._skip_nested()
            return None
        reference = _REFERENCE.match(self._text, self._at)
        if reference is None:
            raise _UnsupportedError
        self._at = reference.end()
        if reference[0] == "St":
            self._read_source_name()
        self._skip_arguments()
        return None

    def _skip_nested(self) -> None:
        """Parse a nested name up to its end."""
        while not self._skip_character("E"):
            if self._skip_arguments():
                continue
            if reference := _REFERENCE.match(self._text, self._at):
                self._at = reference.end()
            else:
                self._read_source_name()

    def _skip_arguments(self) -> bool:
        if not self._skip_character("I"):
            return False
        self._read_arguments()
        return True

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip_character(self, wanted: str) -> bool:
        """Consume this character and return True, if it is next."""
        found = self._peek() == wanted
        self._at += found
        return found
