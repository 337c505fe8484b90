"""Expand macros with arguments that are one expression, so that the parser sees their effect on an element: `#define
AT(i, j) tile[(i) * 32 + (j)]`. Expand other names of plain types, `typedef float real;`, so that it knows their size,
and a conversion from a call.

Lines keep their numbers. A macro stays unexpanded if it is more than an expression, has two different definitions, or
might make threads wait. It then counts as a call of an unknown function. What `#if 0` disables becomes blank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from frx_graph.evidence.cuda.constants import TYPE_BYTES
from frx_graph.evidence.cuda.syntax import COMMENT_OR_STRING

_DEFINITION = re.compile(
    r"^[ \t]*+#[ \t]*+define[ \t]++(\w++)\(([\w\s,]*+)\)((?:[^\n\\]++|\\\r?\n|\\)*+)$", re.MULTILINE
)
_MOST_BODY = 300
_MOST_ARGUMENTS = 500
"""Limit on the characters in the parentheses of a use; a longer text is not an index."""
_MOST_GROWTH = 4
"""Limit on the growth of a file: macros that use macros twice double with each."""
_DEEPEST = 3
"""Limit on macros within macros."""
_BEGINS = re.compile(r"\(|\*|reinterpret_cast\b|\w+\s*\[")
"""An expression that computes, or names an element; a type begins in another way."""
_NOT = re.compile(r"[;{}#\"'@\\]|\b(?:asm|__asm__|volatile)\b|sync|barrier", re.IGNORECASE)
_COMMENT = re.compile(r"//.*|/\*.*?\*/")
_WORD = re.compile(r"\w+")
_PASSED = rf"{COMMENT_OR_STRING}|^[ \t]*+#(?:[^\n\\]++|\\\r?\n|\\)*+"
"""Comments, strings and directives, which are not expanded."""


_ALIAS = re.compile(
    r"\btypedef[ \t]+([\w \t]{1,40}?)[ \t]+(\w{1,60})[ \t]*;"
    r"|\busing[ \t]+(\w{1,60})[ \t]*=[ \t]*([\w \t]{1,40}?)[ \t]*;"
)
_DEFINES = r"\b(?:typedef|using)\b[^;{]{1,200};"
_DECLARED = (
    r"\b(?!(?:const|volatile|unsigned|signed|return|typename|typedef|using)\b)\w+[ \t]*[ \t*&][ \t]*({})[ \t]*[\[=,)]"
)
_OTHER_TYPE = r"\b(?:typename|class|struct|union|enum)\s+(?:{})\b|#[ \t]*define[ \t]+(?:{})\b"


_DIRECTIVE = re.compile(
    rf"{COMMENT_OR_STRING}"
    r"|^[ \t]*+#[ \t]*+(?P<word>if|ifdef|ifndef|elif|else|endif)\b[^\n]*+",
    re.MULTILINE,
)
_NEVER = re.compile(r"^[ \t]*+#[ \t]*+if[ \t(]++0[ \t)]*+(?:$|/)", re.MULTILINE)
_CHARACTER = re.compile(r"[^\n]")


def blank_disabled(text: str) -> str:
    """Return the file with blanks for what is below `#if 0`, up to its `#else`, `#elif` or `#endif`."""
    pieces: list[str] = []
    done = nested = 0
    begin: int | None = None
    for found in _DIRECTIVE.finditer(text) if _NEVER.search(text) else ():
        word = found["word"]
        if begin is None:
            if word == "if" and _NEVER.match(found[0]):
                begin, nested = found.end(), 0
        elif word in ("if", "ifdef", "ifndef"):
            nested += 1
        elif word is not None and nested:
            nested -= word == "endif"
        elif word is not None:
            pieces += [text[done:begin], _CHARACTER.sub(" ", text[begin : found.start()])]
            done, begin = found.start(), None
    return "".join([*pieces, text[done:]])


def expand_aliases(text: str) -> str:
    """Return the file with each other name of a plain type replaced by that type. A name with two meanings stays."""
    found: dict[str, set[str]] = {}
    for one in _ALIAS.finditer(text) if "typedef" in text or "using" in text else ():
        name, meant = (one[2], one[1]) if one[2] else (one[3], one[4])
        found.setdefault(name, set()).add(" ".join(meant.split()))
    plain = {name: meant.pop() for name, meant in found.items() if len(meant) == 1 and meant <= TYPE_BYTES.keys()}
    if not plain:
        return text
    names = "|".join(sorted(plain, key=len, reverse=True))
    taken = {word for one in re.finditer(_OTHER_TYPE.format(names, names), text) for word in _WORD.findall(one[0])}
    # A variable of the same name hides the type.
    taken |= {one[1] for one in re.finditer(_DECLARED.format(names), text)}
    names = "|".join(sorted(plain.keys() - taken - TYPE_BYTES.keys(), key=len, reverse=True))
    if not names:
        return text
    uses = re.compile(rf"{_PASSED}|{_DEFINES}|\b({names})\b", re.MULTILINE)
    return uses.sub(lambda one: plain[one[1]] if one[1] else one[0], text)


@dataclass(frozen=True, slots=True)
class _ExpressionMacro:
    parameters: tuple[str, ...]
    body: str


def expand_macros(text: str) -> str:
    """Return the file with such macros expanded, unless that makes it much longer."""
    macros = _find_expression_macros(text)
    if not macros:
        return text
    names = "|".join(sorted(macros, key=len, reverse=True))
    uses = re.compile(rf"{_PASSED}|\b({names})[ \t]*+\(", re.MULTILINE)
    most = _MOST_GROWTH * len(text)
    for _ in range(_DEEPEST):
        after = _expand_once(text, macros, uses)
        if after == text or len(after) > most:
            break
        text = after
    return text


def _find_expression_macros(text: str) -> Mapping[str, _ExpressionMacro]:
    found: dict[str, set[_ExpressionMacro]] = {}
    if "#" not in text:
        return {}
    for one in _DEFINITION.finditer(text):
        body = _COMMENT.sub(" ", " ".join(re.sub(r"\\\r?\n", " ", one[3]).split())).strip()
        parameters = tuple(name.strip() for name in one[2].split(",") if name.strip())
        found.setdefault(one[1], set()).add(_ExpressionMacro(parameters, body))
    macros = {}
    for name, (macro, *others) in found.items():
        body = macro.body
        begins = _BEGINS.match(body) is not None or (not macro.parameters and "threadIdx" in body)
        if not others and begins and len(body) <= _MOST_BODY and _NOT.search(body) is None:
            macros[name] = macro
    return macros


def _expand_once(text: str, macros: Mapping[str, _ExpressionMacro], uses: re.Pattern[str]) -> str:
    pieces, done = [], 0
    for use in uses.finditer(text):
        if use[1] is None or use.start() < done:
            continue
        found = _parse_arguments(text, use.end())
        macro = macros[use[1]]
        if found is None:
            continue
        arguments, end = found
        if not macro.parameters and arguments == [""]:
            arguments = []
        if len(arguments) != len(macro.parameters):
            continue
        plain = (" ".join(one.split()) for one in arguments)
        wrapped = (one if _WORD.fullmatch(one) else f"({one})" for one in plain)
        values = dict(zip(macro.parameters, wrapped, strict=True))
        body = "".join(values.get(word, word) for word in re.split(r"(\W+)", macro.body))
        pieces += [text[done : use.start()], f"({body})", "\n" * text.count("\n", use.start(), end)]
        done = end
    return "".join([*pieces, text[done:]])


def _parse_arguments(text: str, start: int) -> tuple[list[str], int] | None:
    """Return the arguments in the parentheses that open before `start`, and the position after them."""
    parts: list[str] = []
    depth, begin = 0, start
    for at in range(start, min(len(text), start + _MOST_ARGUMENTS)):
        character = text[at]
        if character in "([{":
            depth += 1
        elif character in ")]}" and depth:
            depth -= 1
        elif character == ")":
            return [*parts, text[begin:at]], at + 1
        elif character == "," and not depth:
            parts.append(text[begin:at])
            begin = at + 1
    return None
