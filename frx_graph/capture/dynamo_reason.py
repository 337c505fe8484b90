"""Dynamo's many lines about a graph break, as one short line."""

from __future__ import annotations

import re

_LIMIT = 200
_EXPLANATION = re.compile(r"^\s*Explanation: (?P<text>.*?)(?=^\s*Hint: |^\s*Developer debug context: |\Z)", re.M | re.S)
_CONTEXT = re.compile(r"^\s*Developer debug context: (?P<text>.*?)(?=\n\s*\n|\Z)", re.M | re.S)
_WITHOUT_FAKE = (
    re.compile(r"no fake impl registered for <CustomOpDef\((?P<operator>[^)]+)\)>"),
    re.compile(r"unsupported operator: (?P<operator>\S+)"),
)
_JUMP = re.compile(r"^(generic_jump\b|Data-dependent branching)")


def short_reason(text: str) -> str:
    """What broke the graph, and why: at most `_LIMIT` characters on one line.

    The texts are those of `torch/_dynamo/exc.py` (`format_graph_break_message`) and of `GraphCompileReason`; they were
    seen on torch 2.13 and 2.15. Any other text is cut to its first line.
    """
    for pattern in _WITHOUT_FAKE:
        if (match := pattern.search(text)) is not None:
            operator = match["operator"]
            return f"the operator {operator} has no fake implementation (torch.library.register_fake gives it one)"
    head = text.strip().partition("\n")[0].strip()
    if _JUMP.match(head):
        return "a branch depends on the value of a tensor"
    explanation = next(filter(None, (_one_line(p.search(text)) for p in (_EXPLANATION, _CONTEXT))), "")
    line = f"{head}: {explanation}" if explanation else head
    return line if len(line) <= _LIMIT else f"{line[: _LIMIT - 1].rstrip()}…"


def _one_line(match: re.Match[str] | None) -> str:
    return "" if match is None else " ".join(match["text"].split())
