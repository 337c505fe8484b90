"""Evaluate numbers in the text: macros, constants of the file, and arithmetic on them."""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Mapping

_MOST_CHARACTERS = 200
"""Longest expression that is worth folding; longer ones do not consist of numbers alone."""
_MOST = 1 << 63
_DEFINE = re.compile(r"#[ \t]*+define[ \t]++(\w++)[ \t]++([^\n\\]++)$", re.MULTILINE)
_GUARDED = re.compile(
    r"^[ \t]*+#[ \t]*+ifndef[ \t]++(\w++)[ \t]*+\r?\n\s*+#[ \t]*+define[ \t]++(?=(\w++))\2", re.MULTILINE
)
"""The definition of a macro right behind the question whether it is defined."""
_MACRO = re.compile(r"#[ \t]*+define[ \t]++(\w++)\(")
_CONSTANT = re.compile(
    r"const(?:expr)?[ \t]{1,9}(?:static[ \t]{1,9})?"
    r"(?:(?:unsigned|int|long|short|size_t|u?int\d\d?_t|auto)[ \t]{1,9}){1,4}"
    r"(\w+)[ \t]{0,9}=[ \t]{0,9}([^;,{}]{1,200});"
)
"""Bounded throughout, so that a line of blanks is read once. All three begin with text that `re` finds fast; the
beginning of the line is checked after a match."""
_BLANK = re.compile(r"[ \t]*")
_BEFORE_CONSTANT = re.compile(r"[ \t]*(?:(?:static|inline|__device__|__constant__)[ \t]{1,9}){0,4}")
_SUFFIX = re.compile(r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]+\b")
_COMMENT = re.compile(r"//.*|/\*.*?(?:\*/|$)", re.MULTILINE)
_WHOLE = re.compile(r"[\w\s()+*/%<>&|\\-]*")
"""Characters of an integer expression, without comments."""
_NO_NUMBER = re.compile(r"\b(?!(?:\d+|0[xX][0-9a-fA-F]+|0[bB][01]+)\b)\d")
"""A word that begins with a digit but is not a number: Python's parser warns about `8and`."""
_SIZEOF = re.compile(r"\bsizeof\s*\(\s*([\w\s]+?)\s*\)")
_OPERATORS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
}
TYPE_BYTES: Mapping[str, int] = {
    **dict.fromkeys(["char", "signed char", "unsigned char", "uchar", "int8_t", "uint8_t", "bool", "std::byte"], 1),
    **dict.fromkeys(["__nv_fp8_e4m3", "__nv_fp8_e5m2", "uint8", "int8"], 1),
    **dict.fromkeys(["short", "unsigned short", "ushort", "int16_t", "uint16_t", "half", "__half"], 2),
    **dict.fromkeys(["__nv_bfloat16", "nv_bfloat16", "char2", "uchar2"], 2),
    **dict.fromkeys(["int", "unsigned", "unsigned int", "uint", "float", "int32_t", "uint32_t"], 4),
    **dict.fromkeys(["half2", "__half2", "__nv_bfloat162", "nv_bfloat162", "short2", "ushort2", "char4", "uchar4"], 4),
    **dict.fromkeys(["double", "long long", "unsigned long long", "int64_t", "uint64_t", "size_t"], 8),
    **dict.fromkeys(["float2", "int2", "uint2", "short4", "ushort4", "unsigned long long int", "long long int"], 8),
    **dict.fromkeys(["float3", "int3", "uint3"], 12),
    **dict.fromkeys(["float4", "int4", "uint4", "double2", "longlong2", "ulonglong2"], 16),
}
"""Sizes in CUDA on 64-bit Linux and Windows; `long` differs between them and is left out."""


@functools.lru_cache(maxsize=4096)
def strip_qualifiers(text: str) -> str:
    """Return a type without qualifiers and insignificant spaces."""
    words = [word for word in text.replace("*", " * ").split() if word not in _QUALIFIERS]
    return " ".join(words)


_QUALIFIERS = frozenset(
    ["const", "volatile", "static", "extern", "register", "__restrict__", "constexpr", "__shared__", "__restrict"]
)


def fold_constant(text: str, names: Mapping[str, int]) -> int | None:
    """Return the value of an expression of whole numbers and `names`, None for any other."""
    if text.isdecimal() and text.isascii() and len(text) < 19 and not text.startswith("0"):
        return int(text)
    if len(text) > _MOST_CHARACTERS:
        return None
    tree = _parse_expression(text)
    try:
        return _evaluate_node(tree, names) if tree is not None else None
    except (ValueError, KeyError, ZeroDivisionError, RecursionError, OverflowError):
        return None


@functools.lru_cache(maxsize=4096)
def _parse_expression(text: str) -> ast.expr | None:
    """Caches values: the same expression recurs as a size in each launch, or in constants that depend on others."""
    plain = _COMMENT.sub(" ", _SUFFIX.sub(r"\1", text)) if not text.isidentifier() else text
    if _WHOLE.fullmatch(plain) is None or _NO_NUMBER.search(plain) is not None:
        return None
    plain = _SIZEOF.sub(lambda found: f" {TYPE_BYTES.get(strip_qualifiers(found[1]), found[1])} ", plain)
    try:
        return ast.parse(plain.replace("/", "//").strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def find_file_constants(text: str) -> dict[str, int]:
    """Return names with one value throughout the file. A name with two different definitions is left out, since the
    build decides which one holds."""
    raw: dict[str, set[str]] = {}
    defaults: dict[str, set[str]] = {}
    guarded = {found.start(2) for found in _GUARDED.finditer(text)} if "ifndef" in text else set()
    for pattern, before_it in ((_DEFINE, _BLANK), (_CONSTANT, _BEFORE_CONSTANT)):
        for found in pattern.finditer(text):
            if _is_at_line_start(text, found, before_it):
                into = defaults if found.start(1) in guarded else raw
                into.setdefault(found[1], set()).add(_COMMENT.sub(" ", found[2]).strip())
    # `#ifndef N`, `#define N 128`: only if nothing else defines it.
    raw = defaults | raw
    known: dict[str, int] = {}
    # A constant may depend on others, in any order; chains are short.
    for _ in range(4):
        for name, values in raw.items():
            if len(values) == 1 and name not in known:
                value = fold_constant(next(iter(values)), known)
                if value is not None:
                    known[name] = value
    return known


def find_function_macros(text: str) -> frozenset[str]:
    """Return the names of the file's macros with arguments. A parser of the unexpanded file cannot see their effect on
    the arguments."""
    return frozenset(found[1] for found in _MACRO.finditer(text) if _is_at_line_start(text, found, _BLANK))


def _is_at_line_start(text: str, found: re.Match[str], before: re.Pattern[str]) -> bool:
    """Return True if only `before` precedes it on its line."""
    at = found.start()
    line = text.rfind("\n", max(0, at - _MOST_CHARACTERS), at) + 1
    return (line > 0 or at <= _MOST_CHARACTERS) and before.fullmatch(text, line, at) is not None


def _evaluate_node(node: ast.expr, names: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        result = node.value
    elif isinstance(node, ast.Name):
        result = names[node.id]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        result = -_evaluate_node(node.operand, names)
    elif isinstance(node, ast.BinOp):
        right = _evaluate_node(node.right, names)
        if isinstance(node.op, (ast.LShift, ast.RShift)) and right > 64:
            raise ValueError("a shift of more than a word")
        result = _OPERATORS[type(node.op)](_evaluate_node(node.left, names), right)
    else:
        raise ValueError("no whole number")
    if abs(result) > _MOST:
        raise ValueError("longer than any integer of C++")
    return result
