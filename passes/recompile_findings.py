"""Build the finding for a frame that is compiled again and again, from Dynamo's reasons. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from frx_graph.capture.call_site import CallSite
from frx_graph.evidence.recompile_reason import RecompileCause, RecompileReason
from frx_graph.passes import confidence
from frx_graph.passes.call_groups import group_by
from frx_graph.records import Basis, Effort, Evidence, Finding, Risk, Saving, Severity

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


def is_limit_message(text: str) -> bool:
    """Return True for a text of Dynamo that names its limit of versions."""
    return any(known in text.lower() for known in _LIMIT_TEXTS)


def build_instability_finding(
    reasons: Sequence[RecompileReason], site: CallSite, *, versions: int, limit: bool
) -> Finding:
    """Return the finding for a frame that was compiled `versions` times for these `reasons`; `limit` means that it
    reached the limit of versions."""
    by_cause = group_by(reasons, lambda reason: reason.cause)
    causes = sorted(by_cause, key=lambda cause: -len(by_cause[cause]))
    ends = ", and reached the limit of versions: it runs in eager from then on" if limit else ""
    return Finding(
        rule=RULE,
        title=f"A frame was compiled again {len(reasons)} times: {causes[0]} changed between calls",
        severity=Severity.HIGH if limit else Severity.MEDIUM,
        site=site,
        nodes=(),
        # Frames are compiled again in the course of a process, not in each step.
        count_per_step=None,
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
