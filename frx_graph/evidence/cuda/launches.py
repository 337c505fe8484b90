"""Read launches, `kernel<<<grid, block, shared, stream>>>`, with sizes as numbers if the text has them."""

from __future__ import annotations

import bisect
import re
from collections import ChainMap, defaultdict
from collections.abc import Iterator
from itertools import chain, islice, repeat

from tree_sitter import Node

from frx_graph.evidence.cuda.constants import fold_constant
from frx_graph.evidence.cuda.source import Extent, Launch
from frx_graph.evidence.cuda.syntax import (
    COMMENT_OR_STRING,
    NO_CODE,
    Tree,
    find_enclosing_nodes,
    find_nearest,
    get_line,
    get_text,
    join_lines,
    split_arguments,
)

_LAUNCH = re.compile(rb"<<<")
_DIM3 = re.compile(r"^(?:dim3\s*)?[({](.*)[)}]$", re.DOTALL)
_NAME = re.compile(r"\w+")
_ROUNDED = re.compile(
    r"[+]\s*[\w.()]+\s*-\s*1\s*\)\s*/|-\s*1\s*[+].*\)\s*/|-\s*1\s*\)\s*/.*[+]\s*1"
    r"|\b\w*(?:ceil|divup|div_up|cdiv|roundup)\w*\s*\(",
    re.IGNORECASE,
)
"""`(n + b - 1) / b`, `(n - 1) / b + 1`, and functions with such names."""
_ROUNDED_BY = re.compile(r"[+]\s*(\d{1,6})\s*\)\s*/\s*(\d{1,6})")
"""`(n + 255) / 256`."""
_SET = re.compile(r"\b(\w+)\b(?=\s*(=(?!=)|[-+*/]=|\+\+|--|[({]|\.\s*[xyz]\s*[-+*/]?=(?!=)))")
"""A name that is, or may be, set, and the text after it."""
_COMMENT_OR_STRING = re.compile(COMMENT_OR_STRING)
_BRACKET = re.compile(r"[(){}]")
_DECLARES = re.compile(r"^\s*(?:const\s+|static\s+|constexpr\s+)*(?:dim3|int|unsigned|uint|size_t)\b")
_MOST_VALUE = 300
"""Limit on the characters assigned to a size."""
_MOST_EXTENT = 1_000
"""Limit on the characters of a grid that are searched for rounding up."""
_MOST_ARGUMENT = 4_000
"""Limit on the bytes of a size; launches can be nested to any depth."""
_MOST_PASSED = 120
"""Limit on the bytes of an argument."""
_FOLLOWED = 3
"""Depth of names that refer to names: `threads` for `dim3 block(threads)`."""
_MOST_BYTES = 1 << 16
"""Limit on the function text that is searched for sizes."""


def read_launches(tree: Tree, constants: dict[str, int]) -> tuple[Launch, ...]:
    """Return all launches of a file in order, except those in comments and macros."""
    found: dict[int, Launch] = {}
    known: dict[int, _LaunchNames] = {}
    for holders in find_enclosing_nodes(tree.root, (one.span() for one in _LAUNCH.finditer(tree.text, 0, tree.end))):
        if holders[0].type in NO_CODE:
            continue
        syntax, call = find_nearest(holders, "kernel_call_syntax"), find_nearest(holders, "call_expression")
        if syntax is None or call is None or syntax.start_byte in found:
            continue
        function = find_nearest(holders[holders.index(call) :], "function_definition") or call
        if function.start_byte not in known:
            known[function.start_byte] = _LaunchNames(tree.text, function, constants)
        found[syntax.start_byte] = _read_launch(tree.text, known[function.start_byte].move_to(call), call, syntax)
    return tuple(found.values())


def _read_launch(text: bytes, known: _LaunchNames, call: Node, syntax: Node) -> Launch:
    arguments = [child for child in syntax.named_children if child.type != "comment"]
    # Nested launches would be read once for each level.
    written: Iterator[str | None] = (
        join_lines(text[one.start_byte : one.end_byte][:_MOST_ARGUMENT]) for one in arguments
    )
    grid, block, shared, stream = islice(chain(written, repeat(None)), 4)
    passed = call.child_by_field_name("arguments")
    return Launch(
        kernel=get_text(text, call.child_by_field_name("function")),
        line=get_line(call),
        grid=known.evaluate_extent(grid or ""),
        block=known.evaluate_extent(block or ""),
        shared=shared,
        shared_bytes=None if shared is None else known.evaluate_number(shared),
        stream=stream,
        arguments=tuple(
            join_lines(text[one.start_byte : one.end_byte][:_MOST_PASSED])
            for one in (passed.named_children if passed is not None else ())
            if one.type != "comment"
        ),
    )


class _LaunchNames:
    """Return the values of the names in a launch: constants of the file, and variables that its function sets once."""

    def __init__(self, text: bytes, function: Node, constants: dict[str, int]) -> None:
        whole = text[function.start_byte : function.end_byte][:_MOST_BYTES].decode("latin-1")
        # Blanks of the same length keep the places of the rest.
        self._text = _COMMENT_OR_STRING.sub(lambda found: " " * len(found[0]), whole)
        self._start = function.start_byte
        self._end = 0
        self._constants = constants
        self._sets: dict[str, list[re.Match[str]]] = {}
        self._written: defaultdict[str, list[re.Match[str]]] = defaultdict(list)
        for found in _SET.finditer(self._text):
            self._written[found[1]].append(found)

    def move_to(self, call: Node) -> _LaunchNames:
        """Read the sizes with their values at a launch."""
        self._end = call.start_byte - self._start
        return self

    def evaluate_number(self, text: str, follow: int = _FOLLOWED) -> int | None:
        """Return the value of a text; None if unknown."""
        value = fold_constant(text, self._constants)
        if value is not None or follow == 0 or len(text) > 200:
            return value
        names = ChainMap[str, int]({}, self._constants)
        for name in set(_NAME.findall(text)):
            said_once = self._get_set_text(name) if name not in self._constants else None
            inner = self.evaluate_number(said_once, follow - 1) if said_once is not None else None
            if inner is not None:
                names[name] = inner
        return fold_constant(text, names)

    def evaluate_extent(self, text: str) -> Extent:
        """Read a grid or a block."""
        full, follow = text, _FOLLOWED
        while follow and _NAME.fullmatch(full) and full not in self._constants:
            value = self._get_set_text(full)
            if value is None:
                break
            full, follow = value, follow - 1
        expanded = full[:_MOST_EXTENT]
        if len(full) <= 300:
            expanded = _NAME.sub(lambda found: self._get_set_text(found[0]) or found[0], full)[:_MOST_EXTENT]
        plus_one = any(int(add) + 1 == int(by) for add, by in _ROUNDED_BY.findall(expanded))
        rounded = plus_one or _ROUNDED.search(expanded) is not None
        inside = _DIM3.match(full.strip())
        if inside is None:
            count = self.evaluate_number(full)
            return Extent(text, (None, None, None) if count is None else (count, 1, 1), rounded)
        sizes = [self.evaluate_number(part) for part in split_arguments(inside[1]) if part][:3]
        sizes += [1] * (3 - len(sizes))
        return Extent(text, (sizes[0], sizes[1], sizes[2]), rounded)

    def _get_set_text(self, name: str) -> str | None:
        """Return the text assigned to a variable, if that happens once before the launch."""
        if name[0].isdigit():
            return None
        if name not in self._sets:
            self._sets[name] = self._find_sets(name)
        sets = self._sets[name][: bisect.bisect_left(self._sets[name], self._end, key=re.Match[str].start)]
        if len(sets) != 1 or sets[0][2] not in ("=", "(", "{"):
            return None
        end = sets[0].end(2)
        rest = self._text[end : end + _MOST_VALUE]
        if sets[0][2] == "=":
            # `int a = 1, b = 2;`
            return split_arguments(rest.partition(";")[0])[0] or None
        inside = _take_balanced(rest)
        return None if inside is None else f"({inside})"

    def _find_sets(self, name: str) -> list[re.Match[str]]:
        """Return the places at which the function sets or changes a name, and the text after each."""
        # `f(block)` and `block(16)` look alike, but only a declaration sets the name.
        return [one for one in self._written[name] if one[2] not in "({" or self._is_declaration(one.start())]

    def _is_declaration(self, at: int) -> bool:
        statement = self._text[max(0, at - _MOST_VALUE) : at]
        return _DECLARES.search(re.split(r"[;{}]", statement)[-1]) is not None


def _take_balanced(text: str) -> str | None:
    """Return the text up to the bracket that closes one opened before."""
    depth = 1
    for found in _BRACKET.finditer(text):
        depth += 1 if found[0] in "({" else -1
        if depth == 0:
            return text[: found.start()]
    return None
