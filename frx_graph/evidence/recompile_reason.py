"""Parse Dynamo's recompile reasons: the guard that failed, on what, and what was expected.

The patterns match texts of `torch/_dynamo/guards.py` and `torch/csrc/dynamo/guards.cpp` in torch 2.13 and 2.15. The C++
texts have not changed since 2.11. An unrecognised text is UNKNOWN, never a wrong cause.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from frx_graph.capture.call_site import CallSite, parse_stack_trace


class RecompileCause(enum.StrEnum):
    """Kinds of changes between calls."""

    STRIDE = "stride"
    SIZE = "size"
    TENSOR = "dtype, rank, device or requires_grad"
    TYPE = "type"
    VALUE = "Python value"
    GLOBAL = "global or closure value"
    OBJECT = "identity of an object"
    CONTAINER = "length or keys of a container"
    ALIASING = "aliasing of tensors"
    MODE = "training, gradient or autocast mode"
    BACKEND = "backend"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class RecompileReason:
    """One failed guard. `source` is its subject as the program names it, empty if unknown; `dimension`, `expected` and
    `actual` are set for a stride or size that differs. `text` is the guard alone."""

    cause: RecompileCause
    text: str
    source: str = ""
    dimension: int | None = None
    expected: int | None = None
    actual: int | None = None
    site: CallSite | None = None


_LONGEST_GUARD = 300
"""Characters that are parsed. Texts come from files, too, and some of the patterns take quadratic time."""
_COMPILE_ID = re.compile(r"^\S{0,20}?\d{1,9}/\d{1,9}\S{0,20}: ")
_COMMENT = re.compile(r"\s\s# .*", re.DOTALL)
_LOCAL = re.compile(r"""L\[\s*['"]([^'"]*)['"]\s*\]""")
_DIMENSION = re.compile(
    r"tensor '(?P<source>.+)' (?P<what>stride|size) mismatch at index (?P<dimension>\d+)\. "
    r"expected (?P<expected>-?\d+), actual (?P<actual>-?\d+)"
)
_CAUSES = tuple(
    (re.compile(pattern), cause)
    for pattern, cause in (
        (r"^GLOBAL_STATE changed", RecompileCause.MODE),
        (r"BACKEND_MATCH", RecompileCause.BACKEND),
        (r"^Duplicate tensors found", RecompileCause.ALIASING),
        (
            r"tensor '(?P<source>.+)' (?:Tensor device index|dispatch key set|requires_grad|dtype|rank) mismatch",
            RecompileCause.TENSOR,
        ),
        (r"expected type of '(?P<source>.+?)' to be", RecompileCause.TYPE),
        (r"(?P<source>[\w.\[\]'\"]+)\.stride\(\)", RecompileCause.STRIDE),
        (r"(?P<source>[\w.\[\]'\"]+)\.size\(\)", RecompileCause.SIZE),
        (r"___check_type_id\((?P<source>[^,]+),", RecompileCause.TYPE),
        (r"___check_obj_id\((?P<source>[^,]+),", RecompileCause.OBJECT),
        (r"^(?P<source>\S+) is (?:not )?None$", RecompileCause.TYPE),
        (r"^(?P<source>\S+) is (?:not )?\S+$", RecompileCause.ALIASING),
        (r"(?P<source>\S+)\.training\b", RecompileCause.MODE),
        (r"len\((?P<source>.+?)\) (?:==|!=)", RecompileCause.CONTAINER),
        (r"^not (?P<source>\S+)$", RecompileCause.CONTAINER),
        (r"keys\(\)|___dict_contains", RecompileCause.CONTAINER),
    )
)
"""Texts of guards, the first match counts."""
_COMPARISON = re.compile(r"^(?P<source>\S.*?) (?:==|!=|<=|>=|<|>) .+$")


def parse_reason(reason: str) -> RecompileReason:
    """Return the first failed guard in `reason`."""
    guard, _, stack = reason.partition("\nUser stack trace:")
    text = _LOCAL.sub(r"\1", _COMMENT.sub("", _COMPILE_ID.sub("", guard[:_LONGEST_GUARD]))).strip()
    found = parse_stack_trace(stack)
    site = found if found.line else None
    dimension = _DIMENSION.search(text)
    if dimension is not None:
        cause = RecompileCause.STRIDE if dimension["what"] == "stride" else RecompileCause.SIZE
        index, expected, actual = (int(dimension[group]) for group in ("dimension", "expected", "actual"))
        return RecompileReason(cause, text, dimension["source"], index, expected, actual, site)
    cause, source = _classify_cause(text)
    return RecompileReason(cause, text, source, site=site)


def _classify_cause(text: str) -> tuple[RecompileCause, str]:
    for pattern, cause in _CAUSES:
        if (match := pattern.search(text)) is not None:
            return cause, match.groupdict().get("source", "")
    if (match := _COMPARISON.match(text)) is not None:
        in_globals = match["source"].startswith("G[") or "__closure__" in match["source"]
        return (RecompileCause.GLOBAL if in_globals else RecompileCause.VALUE), match["source"]
    return RecompileCause.UNKNOWN, ""
