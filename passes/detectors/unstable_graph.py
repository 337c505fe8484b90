"""Finds frames that are compiled again and again, and graph breaks that a step runs into many times.

Assumes: three recompilations for other reasons than strides are not a start-up effect. Dynamo makes a size or a number
dynamic when it first sees it change, which explains one or two. Strides are FRX006's. Reuse of autotuning results is
not visible here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from frx_graph.capture.captured_graph import GraphBreak
from frx_graph.capture.dynamo_events import shorten_reason
from frx_graph.passes import confidence
from frx_graph.passes.analysis import Analysis, Detector
from frx_graph.passes.call_groups import group_by
from frx_graph.passes.recompiles import (
    RecompileCause,
    RecompileReason,
    find_first_site,
    get_recompile_limit,
    list_frame_breaks,
    list_frame_recompiles,
)
from frx_graph.records import Basis, Effort, Evidence, Finding, Refusal, Risk, Saving, Severity

RULE = "FRX014"
FEWEST = 3
"""Recompilations of one frame, strides aside, that count as instability."""
_SHOWN = 3
_LIMIT_TEXTS = ("recompile_limit", "cache_size_limit", "recompile limit")

_FIXES: dict[RecompileCause, str] = {
    RecompileCause.SIZE: "mark the dimension dynamic before the first call (`torch._dynamo.mark_dynamic(x, dim)`) or "
    "compile with `dynamic=True`; a size of 0 or 1 stays a separate case: pad it",
    RecompileCause.TENSOR: "give the tensor one dtype, rank, device and requires_grad before the compiled call",
    RecompileCause.TYPE: "pass the same type at every call: not a tensor now and None or a number then",
    RecompileCause.VALUE: "pass the Python value as a tensor, or keep it constant while the compiled code runs",
    RecompileCause.GLOBAL: "pass the global or closure value as an argument, as a tensor",
    RecompileCause.OBJECT: "pass the same object at every call: do not make a new function, lambda or module each time",
    RecompileCause.CONTAINER: "keep the length and the keys of the container fixed, or stack its tensors into one",
    RecompileCause.ALIASING: "pass distinct tensors at every call, or the same one at every call",
    RecompileCause.MODE: "compile one callable for each mode (training, evaluation, autocast) and do not switch one "
    "between them",
    RecompileCause.BACKEND: "make the backend once and pass that same object to every torch.compile",
    RecompileCause.UNKNOWN: 'find the guard with TORCH_LOGS="recompiles"',
}
_ONE_LINE = frozenset({RecompileCause.SIZE, RecompileCause.BACKEND})
"""Causes whose fix is one line of the program."""


def detect(analysis: Analysis) -> Iterable[Finding | Refusal]:
    """Yield one finding for an unstable frame, and one for each graph break that a step meets more than once."""
    reasons = list_frame_recompiles(analysis)
    others = [reason for reason in reasons if reason.cause is not RecompileCause.STRIDE]
    limit = len(reasons) + 1 >= get_recompile_limit() or any(_is_limit_message(reason.text) for reason in reasons)
    if len(others) >= FEWEST or (limit and others):
        yield _build_instability_finding(analysis, others, versions=len(reasons) + 1, limit=limit)
    for graph_break in list_frame_breaks(analysis):
        if analysis.facts.calls > 1 or _is_limit_message(graph_break.reason):
            yield _build_break_finding(analysis, graph_break)


def _is_limit_message(text: str) -> bool:
    return any(known in text.lower() for known in _LIMIT_TEXTS)


def _build_instability_finding(
    analysis: Analysis, reasons: Sequence[RecompileReason], *, versions: int, limit: bool
) -> Finding:
    by_cause = group_by(reasons, lambda reason: reason.cause)
    causes = sorted(by_cause, key=lambda cause: -len(by_cause[cause]))
    site = next((reason.site for reason in reasons if reason.site is not None), None)
    ends = ", and reached the limit of versions: it runs in eager from then on" if limit else ""
    return Finding(
        rule=RULE,
        title=f"A frame was compiled again {len(reasons)} times: {causes[0]} changed between calls",
        severity=Severity.HIGH if limit else Severity.MEDIUM,
        site=site or find_first_site(analysis.facts),
        nodes=(),
        count_per_step=len(reasons),
        bytes_per_step=None,
        saving=Saving(),
        effort=Effort.ONE_LINE if _ONE_LINE.issuperset(causes) else Effort.LOCAL,
        risk=Risk.MEDIUM,
        fix="; ".join(_FIXES[cause] for cause in causes),
        confidence=confidence.MEASURED,
        basis=Basis.OBSERVED,
        evidence=(
            *(_build_group_evidence(cause, by_cause[cause]) for cause in causes),
            Evidence(f"the frame was compiled {versions} times{ends}", "Dynamo recompile reasons", Basis.OBSERVED),
        ),
    )


def _build_group_evidence(cause: RecompileCause, reasons: Sequence[RecompileReason]) -> Evidence:
    texts = list(dict.fromkeys(reason.text for reason in reasons))
    shown = "; ".join(f"`{text}`" for text in texts[:_SHOWN])
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return Evidence(f"{cause}, {len(reasons)} of them: {shown}{more}", "Dynamo recompile reasons", Basis.OBSERVED)


def _build_break_finding(analysis: Analysis, graph_break: GraphBreak) -> Finding:
    calls = analysis.facts.calls
    return Finding(
        rule=RULE,
        title=f"A graph break that a step runs into {calls} times: {shorten_reason(graph_break.reason)}",
        severity=Severity.MEDIUM,
        site=graph_break.site,
        nodes=(),
        count_per_step=calls,
        bytes_per_step=None,
        saving=Saving(),
        effort=Effort.LOCAL,
        risk=Risk.LOW,
        fix="move what breaks the graph out of the compiled code, or behind a torch operator that Dynamo can trace",
        confidence=confidence.MEASURED,
        basis=Basis.OBSERVED,
        evidence=(Evidence(graph_break.reason.strip(), "Dynamo graph break", Basis.OBSERVED),),
    )


DETECTOR = Detector(RULE, "unstable_graph", detect)
