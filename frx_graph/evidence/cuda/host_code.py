"""What of a file the parser need not see: the bodies of host functions, but for their launches.

Half of many files is host code, of which nothing is asked but what it launches. The body of a function is passed over
where the text leaves no doubt that it is one: braces are counted outside of comments and strings, in each branch of an
`#if` alike. Wherever there is doubt the parser sees all.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from tree_sitter import Range

_COMMENT = rb"/\*[^*]*(?:\*+[^*/][^*]*)*(?:\*+/|\**\Z)"
_PASSED = (
    rb"//[^\n\\]*(?:\\.[^\n\\]*)*|"
    + _COMMENT
    + rb"|\"[^\"\\\n]*(?:\\.[^\"\\\n]*)*[\"\n]?|'(?:[^'\\\n]|\\[^\n][^'\n]{0,9})'"
    + rb"|#[^\n\\/]*(?:(?:\\.|"
    + _COMMENT
    + rb"|//[^\n\\]*|/)[^\n\\/]*)*"
)
"""Comments, strings, characters, directives. Each begins with a character that `re` looks for, as all alternatives
below do, and once begun it ends, so that nothing is searched twice."""
_NOT_CODE = re.compile(_PASSED, re.DOTALL)
_BRACE = re.compile(rb"\{|\}|" + _PASSED, re.DOTALL)
_BRACKET = re.compile(rb"\{|\}|\(|\)|;|<<<|" + _PASSED, re.DOTALL)
_CONDITIONAL = re.compile(rb"#[ \t]*(if|el|endif)")
_HOLDER = re.compile(rb"\b(?:namespace|class|struct|union|extern)\b")
_FUNCTION = re.compile(
    rb"[\w\s:*&<>,~\[\]]*[\s*&>:~](\w+)\s*\(.*\)(?:\s*(?:const|noexcept|override|final))*\s*", re.DOTALL
)
_NO_FUNCTION = frozenset([b"if", b"for", b"while", b"switch", b"catch"])
_OF_DEVICE = re.compile(rb"__(?:global|device)__")
_NOT_ALONE = re.compile(rb"\s*(?:(?:else|do)\b\s*)*")
"""What cannot stand before a statement without another one."""
_LEAST = 100
"""Bytes of a body: a shorter one is parsed as fast as it is passed over."""
_MOST_BODIES = 500
"""That are passed over: with each token the parser looks through all ranges that came before."""


def parsed_ranges(text: bytes) -> list[Range]:
    """Where the parser is to look: all but the bodies of host functions, of which the launches are left."""
    # A string that may hold quotes and braces.
    bodies = () if b'R"' in text else itertools.islice(_host_bodies(text), _MOST_BODIES)
    ends = [0]
    for start, end in bodies:
        ends += [start, *itertools.chain(*_launches(text, start, end)), end]
    ends.append(len(text))
    points = list(_points(text, ends))
    return [Range(points[at], points[at + 1], ends[at], ends[at + 1]) for at in range(0, len(ends), 2)]


def _points(text: bytes, places: list[int]) -> Iterator[tuple[int, int]]:
    """Row and column of each place, both from 0."""
    row = before = 0
    for at in places:
        row += text.count(b"\n", before, at)
        before = at
        yield row, at - text.rfind(b"\n", 0, at) - 1


def _host_bodies(text: bytes) -> Iterator[tuple[int, int]]:
    """What stands between the braces of each."""
    depth = head = opened = outside = 0
    sure = False
    levels: list[int] = []
    for found in _BRACE.finditer(text):
        at = found.start()
        sign = text[at]
        if sign == ord("{"):
            if depth == 0:
                opened, outside = at + 1, len(levels)
                declared = _NOT_CODE.sub(b" ", text[head:at]).rpartition(b";")[2]
                sure = _is_host_function(declared)
                if _HOLDER.search(declared) and not declared.rstrip().endswith(b")"):
                    head = opened
                    continue
            depth += 1
        elif sign == ord("}"):
            depth = max(0, depth - 1)
            if depth == 0:
                head = at + 1
                if sure and len(levels) == outside and at - opened >= _LEAST:
                    yield opened, at
                sure = False
        elif sign == ord("#") and (conditional := _CONDITIONAL.match(text, at)):
            if conditional[1] == b"if":
                levels.append(depth)
                continue
            # Braces that one branch opens may be closed behind all of them.
            sure = sure and bool(levels) and depth == levels[-1]
            if levels and conditional[1] == b"endif":
                levels.pop()
            elif levels and depth != levels[-1]:
                depth, head = levels[-1], found.end()


def _is_host_function(head: bytes) -> bool:
    """True of all that stands before a body, if it declares a function, and none of the device."""
    found = _FUNCTION.fullmatch(head)
    return found is not None and found[1] not in _NO_FUNCTION and not _OF_DEVICE.search(head)


def _launches(text: bytes, start: int, end: int) -> list[tuple[int, int]]:
    """The statements with a launch in them; all of the body where these cannot be told from what is around them."""
    if _OF_DEVICE.search(text, start, end):
        return [(start, end)]
    if text.find(b"<<<", start, end) < 0:
        return []
    statements: list[tuple[int, int]] = []
    begin, level, launched = start, 0, False
    brackets: list[tuple[bytes, int, int]] = []
    """Those that are open, with where the statement around each began, and within how many it did."""
    for found in _BRACKET.finditer(text, start, end):
        sign, (at, behind) = found[0], found.span()
        if sign in (b"{", b"("):
            brackets.append((sign, begin, level))
            if sign == b"{" and not launched:
                begin, level = behind, len(brackets)
        elif sign in (b"}", b")"):
            if not brackets:
                return [(start, end)]
            bracket, outer, outer_level = brackets.pop()
            if launched and len(brackets) < level:
                statements.append((begin, at))
                launched = False
            if bracket == b"{" and not launched:
                # The statement around a lambda goes on.
                inside = bool(brackets) and brackets[-1][0] == b"("
                begin, level = (outer, outer_level) if inside else (behind, len(brackets))
        elif sign == b"<<<":
            launched = True
        elif len(brackets) == level and (sign == b";" or (sign.startswith(b"#") and not launched)):
            if launched:
                statements.append((begin, behind))
                launched = False
            begin = behind
    if launched or any(one[1] > other[0] for one, other in itertools.pairwise(statements)):
        return [(start, end)]
    return [(_alone(text, begin), until) for begin, until in statements]


def _alone(text: bytes, begin: int) -> int:
    found = _NOT_ALONE.match(text, begin)
    return begin if found is None else found.end()
