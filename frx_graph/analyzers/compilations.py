"""Find frames that were compiled again and again in torch's structured log: FRX014, or FRX006 if strides changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from frx_graph.capture.call_site import UNKNOWN_SITE, CallSite, parse_stack_trace
from frx_graph.evidence.recompile_reason import RecompileCause, RecompileReason, parse_reason
from frx_graph.evidence.torch_log import Compilation, LoggedBreak, TorchLog
from frx_graph.passes import confidence
from frx_graph.passes.call_groups import group_by
from frx_graph.passes.recompile_findings import FEWEST, build_instability_finding, is_limit_message
from frx_graph.records import Basis, Effort, Evidence, Finding, Refusal, Risk, Saving, Severity

STRIDES = "FRX006"
_SOURCE = "Dynamo recompile reasons, in the log of torch"
_MOST_BREAKS = 20


def group_frames(log: TorchLog) -> dict[tuple[int, int], list[Compilation]]:
    """Return the compilations of each process's frames, in order."""
    return group_by(log.compilations, lambda one: (one.process, one.frame))


def find_unstable_frames(log: TorchLog) -> Iterator[Finding]:
    """Yield a finding for each unstable frame, and for each input whose strides changed."""
    for versions in group_frames(log).values():
        reasons = [parse_reason(one.reason) for one in versions if one.reason]
        site = get_site(versions[0])
        strides = [one for one in reasons if one.cause is RecompileCause.STRIDE]
        for source, changes in group_by(strides, lambda one: one.source).items():
            yield _build_stride_finding(source, changes, site, len(versions))
        others = [one for one in reasons if one.cause is not RecompileCause.STRIDE]
        limit = any(is_limit_message(one.failed) for one in versions)
        if len(others) >= FEWEST or (limit and others):
            yield build_instability_finding(others, site, versions=len(versions), limit=limit)


def list_breaks(log: TorchLog) -> tuple[Refusal, ...]:
    """Return the graph breaks, each once with the number of times. A log does not tell how often a step meets one."""
    counts = Counter((_shorten(one), _find_site(one)) for one in log.breaks)
    return tuple(
        Refusal("graph break", f"{text} ({count} times)" if count > 1 else text, site=site)
        for (text, site), count in counts.most_common(_MOST_BREAKS)
    )


def get_site(one: Compilation) -> CallSite:
    """Return the definition of a frame's function."""
    return CallSite(one.file, one.line, one.function or "<unknown>") if one.file and one.line else UNKNOWN_SITE


def _build_stride_finding(source: str, reasons: Sequence[RecompileReason], site: CallSite, versions: int) -> Finding:
    times = "once" if len(reasons) == 1 else f"{len(reasons)} times"
    dimensions = sorted({one.dimension for one in reasons if one.dimension is not None})
    changes = Counter(
        f"from {one.expected} to {one.actual}" if one.expected is not None else "to other strides" for one in reasons
    )
    at = f" at dimension {', '.join(map(str, dimensions))}" if dimensions else ""
    return Finding(
        rule=STRIDES,
        title=f"The strides of `{source}` changed between calls: compiled again {times}",
        severity=Severity.MEDIUM,
        site=site,
        nodes=(),
        # A log is that of a whole process.
        count_per_step=None,
        bytes_per_step=None,
        saving=Saving(),
        effort=Effort.ONE_LINE,
        risk=Risk.LOW,
        fix=f"give `{source}` one layout before the compiled call: `.contiguous()`, or "
        "`.contiguous(memory_format=torch.channels_last)` if the model runs in that",
        confidence=confidence.MEASURED,
        basis=Basis.OBSERVED,
        evidence=(
            *(
                Evidence(f"`{source}`{at}: {said}, {n} of {len(reasons)}", _SOURCE, Basis.OBSERVED)
                for said, n in changes.items()
            ),
            Evidence(f"the frame was compiled {versions} times", _SOURCE, Basis.OBSERVED),
        ),
    )


def _shorten(one: LoggedBreak) -> str:
    lines = [line.strip() for line in one.text.splitlines() if line.strip()]
    reason = next(
        (line for line in lines if line.startswith(("Explanation:", "Graph break"))), lines[0] if lines else ""
    )
    return reason.removeprefix("Explanation:").strip()


def _find_site(one: LoggedBreak) -> CallSite | None:
    site = parse_stack_trace(one.text)
    return site if site.line else None
