"""Read what Dynamo reports about its work: graph breaks, functions that it gave up on, recompiles.

The reports are in private places of torch 2.13 and 2.15. If a version lacks one, the list is shorter and `untold` names
it; nothing here raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from frx_graph.capture.call_site import UNKNOWN_SITE, CallSite, is_foreign, strip_resume_name
from frx_graph.capture.captured_graph import GraphBreak
from frx_graph.support.torch_internals import dynamo_utils, get_frame_metrics


@dataclass(frozen=True)
class EventPosition:
    """Positions in Dynamo's lists at one moment."""

    breaks: int
    compilations: tuple[object, ...]


def record_position() -> EventPosition:
    """Return the present positions."""
    return EventPosition(len(_list_break_reasons()), tuple(_list_compilations()))


def list_compilations_since(mark: EventPosition) -> list[Any]:
    """Return the metrics of the compilations since then, in order."""
    known = {id(compilation) for compilation in mark.compilations}
    return [compilation for compilation in _list_compilations() if id(compilation) not in known]


def list_breaks_since(mark: EventPosition) -> tuple[GraphBreak, ...]:
    """Return all graph breaks since then, and the functions that Dynamo gave up on, whose rest runs uncompiled."""
    abandoned = (c for c in list_compilations_since(mark) if getattr(c, "fail_reason", None))
    found = [convert_break_reason(reason) for reason in _list_break_reasons()[mark.breaks :] if reason.graph_break]
    return tuple(dict.fromkeys([*found, *map(_convert_abandoned, abandoned)]))


def convert_break_reason(reason: Any, graph_id: str = "") -> GraphBreak:
    """Return a `GraphCompileReason` as a break at its innermost user frame."""
    frames = [f for f in reason.user_stack or () if not is_foreign(f.filename)]
    site = CallSite(frames[-1].filename, frames[-1].lineno or 0, strip_resume_name(frames[-1].name)) if frames else None
    return GraphBreak(str(reason.reason).strip(), site or UNKNOWN_SITE, graph_id)


def get_recompile_reason() -> str | None:
    """Return the reason for recompiling the present frame; None the first time, or if torch does not report it."""
    current = getattr(dynamo_utils, "get_metrics_context", None)
    context = current() if current is not None else None
    metrics = get_frame_metrics(context)
    if context is None or metrics is None or not context.in_progress():
        return None
    reason = metrics.get("recompile_reason")
    return str(reason) if reason else None


def count_cudagraph_skips() -> int:
    """Return how often Inductor skipped CUDA graphs in this process."""
    return int(dynamo_utils.counters["inductor"]["cudagraph_skips"])


def list_unreported() -> Iterator[tuple[str, str]]:
    """Yield subject and reason of everything that this version of torch does not report."""
    if not hasattr(dynamo_utils, "graph_break_reasons") or not hasattr(dynamo_utils, "get_compilation_metrics"):
        yield "graph breaks", "this version of torch does not list all of them: code between graphs may be missing"
    current = getattr(dynamo_utils, "get_metrics_context", None)
    if current is None or get_frame_metrics(current()) is None:
        yield "recompiles", "this version of torch does not say why a frame is compiled again"


def _convert_abandoned(compilation: Any) -> GraphBreak:
    file, line = compilation.fail_user_frame_filename, compilation.fail_user_frame_lineno
    known = file and not is_foreign(file)
    site = CallSite(file, line or 0, strip_resume_name(str(compilation.co_name))) if known else UNKNOWN_SITE
    return GraphBreak(str(compilation.fail_reason).strip(), site)


def _list_break_reasons() -> Sequence[Any]:
    return getattr(dynamo_utils, "graph_break_reasons", ())


def _list_compilations() -> Iterable[Any]:
    listed: Callable[[], Iterable[Any]] = getattr(dynamo_utils, "get_compilation_metrics", tuple)
    return listed()


_LIMIT = 200
_EXPLANATION = re.compile(r"^\s*Explanation: (?P<text>.*?)(?=^\s*Hint: |^\s*Developer debug context: |\Z)", re.M | re.S)
_CONTEXT = re.compile(r"^\s*Developer debug context: (?P<text>.*?)(?=\n\s*\n|\Z)", re.M | re.S)
_WITHOUT_FAKE = (
    re.compile(r"no fake impl registered for <CustomOpDef\((?P<operator>[^)]+)\)>"),
    re.compile(r"unsupported operator: (?P<operator>\S+)"),
)
_JUMP = re.compile(r"^(generic_jump\b|Data-dependent branching)")


def shorten_reason(text: str) -> str:
    """Shorten a graph-break message of Dynamo to one line of at most `_LIMIT` characters.

    It recognises texts of `torch/_dynamo/exc.py` (`format_graph_break_message`) and `GraphCompileReason` in torch 2.13
    and 2.15. Any other text is cut to its first line.
    """
    for pattern in _WITHOUT_FAKE:
        if (match := pattern.search(text)) is not None:
            operator = match["operator"]
            return f"the operator {operator} has no fake implementation (torch.library.register_fake gives it one)"
    head = text.strip().partition("\n")[0].strip()
    if _JUMP.match(head):
        return "a branch depends on the value of a tensor"
    parts = (" ".join(match["text"].split()) for p in (_EXPLANATION, _CONTEXT) if (match := p.search(text)))
    explanation = next(filter(None, parts), "")
    line = f"{head}: {explanation}" if explanation else head
    return line if len(line) <= _LIMIT else f"{line[: _LIMIT - 1].rstrip()}…"
