"""Finds inputs whose strides differ between calls, so that a compiled frame is compiled again.

Assumes: Dynamo reports the first guard that fails, and compares sizes before strides: a call that differs in both shows
as a size only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from frx_graph.capture.call_site import CallSite
from frx_graph.evidence.recompile_reason import RecompileCause, RecompileReason
from frx_graph.facts.graph_facts import GraphFacts, ValueFacts
from frx_graph.facts.layout import (
    CHANNELS_LAST_ORDER,
    make_contiguous_strides,
    make_ordered_strides,
    name_channels_last,
)
from frx_graph.passes import confidence
from frx_graph.passes.analysis import Analysis, Detector
from frx_graph.passes.call_groups import group_by
from frx_graph.passes.recompiles import find_first_site, get_recompile_limit, list_frame_recompiles
from frx_graph.records import Basis, Effort, Evidence, Finding, Refusal, Risk, Saving, Severity

RULE = "FRX006"
_SOURCE = "Dynamo recompile reasons"


def detect(analysis: Analysis) -> Iterable[Finding | Refusal]:
    """Yield one finding for each input of this graph's frame whose strides made Dynamo compile it again."""
    reasons = list_frame_recompiles(analysis)
    changed = (reason for reason in reasons if reason.cause is RecompileCause.STRIDE)
    for source, group in group_by(changed, lambda reason: reason.source).items():
        yield _build_finding(analysis, source, group, versions=len(reasons) + 1)


def _build_finding(analysis: Analysis, source: str, reasons: Sequence[RecompileReason], *, versions: int) -> Finding:
    facts = analysis.facts
    value = _find_input(facts, source)
    dimensions = sorted({reason.dimension for reason in reasons if reason.dimension is not None})
    at = f" at dimension {', '.join(map(str, dimensions))}" if dimensions else ""
    times = "once" if len(reasons) == 1 else f"{len(reasons)} times"
    return Finding(
        rule=RULE,
        title=f"The strides of `{source}` changed between calls: compiled again {times}",
        severity=Severity.HIGH if versions >= get_recompile_limit() else Severity.MEDIUM,
        site=_choose_site(facts, value, reasons),
        nodes=value.users if value is not None else (),
        count_per_step=len(reasons),
        bytes_per_step=None,
        saving=Saving(),
        effort=Effort.ONE_LINE,
        risk=Risk.LOW,
        fix=_describe_fix(source, value, reasons),
        confidence=confidence.MEASURED,
        basis=Basis.OBSERVED,
        evidence=(
            *(
                Evidence(f"`{source}`{at}: {change}, {count} of {len(reasons)}", _SOURCE, Basis.OBSERVED)
                for change, count in Counter(_describe_change(reason, value) for reason in reasons).items()
            ),
            Evidence(
                f"the frame was compiled {versions} times; after {get_recompile_limit()} versions Dynamo "
                f"runs it in eager",
                _SOURCE,
                Basis.OBSERVED,
            ),
            *_build_cudagraph_evidence(analysis),
        ),
    )


def _build_cudagraph_evidence(analysis: Analysis) -> tuple[Evidence, ...]:
    skips = analysis.events.cudagraph_skips
    if not skips:
        return ()
    text = f"CUDA graphs were skipped {skips} times in this process; they are recorded for one version of a frame each"
    return (Evidence(text, "Inductor counter cudagraph_skips", Basis.OBSERVED),)


def _find_input(facts: GraphFacts, source: str) -> ValueFacts | None:
    """Return the graph input of a guard's source; parameters are named from within their module."""
    inputs = [facts.values[name] for name in facts.inputs]
    for value in inputs:
        if source in (value.path, value.name):
            return value
    if not _is_parameter(source):
        return None
    plain = source.replace("._parameters[", ".").replace("._modules[", ".").replace("'", "").replace("]", "")
    ending = "." + ".".join([part for part in plain.split(".") if part][1:][-2:])
    named = [value for value in inputs if f".{value.path}".endswith(ending)]
    return named[0] if len(named) == 1 else None


def _is_parameter(source: str) -> bool:
    return "._parameters[" in source


def _choose_site(facts: GraphFacts, value: ValueFacts | None, reasons: Sequence[RecompileReason]) -> CallSite:
    """Return the first line that reads the input, else the site of a reason, else the beginning of the graph."""
    sites = [op.site for op in facts.get_users(value.name)] if value is not None else []
    sites += [reason.site for reason in reasons if reason.site is not None]
    return next((site for site in sites if site.line), sites[0] if sites else find_first_site(facts))


def _describe_change(reason: RecompileReason, value: ValueFacts | None) -> str:
    if reason.expected is None or reason.actual is None:
        return reason.text
    return (
        f"expected {_describe_stride(reason, reason.expected, value)}, got "
        f"{_describe_stride(reason, reason.actual, value)}"
    )


def _describe_stride(reason: RecompileReason, stride: int, value: ValueFacts | None) -> str:
    """Format a stride, with the layout if exactly one of plain and channels-last has it there."""
    if value is None or reason.dimension is None or reason.dimension >= len(value.shape):
        return str(stride)
    order = CHANNELS_LAST_ORDER.get(len(value.shape))
    plain = make_contiguous_strides(value.shape)[reason.dimension]
    channels_last = make_ordered_strides(value.shape, order)[reason.dimension] if order is not None else None
    if plain == channels_last:
        return str(stride)
    if stride == plain:
        return f"{stride} (as in plain)"
    return f"{stride} (as in channels_last)" if stride == channels_last else str(stride)


def _describe_fix(source: str, value: ValueFacts | None, reasons: Sequence[RecompileReason]) -> str:
    if _is_parameter(source):
        return (
            f"convert `{value.path if value is not None else source}` before compiling, and leave its strides alone "
            f"afterwards: call `.to(memory_format=...)` on the model ahead of `torch.compile`"
        )
    name = source if source.isidentifier() else "x"
    among = any("channels_last" in _describe_change(reason, value) for reason in reasons)
    memory_format = name_channels_last(len(value.shape) if value is not None else 4)
    alternative = (
        f", or `{name}.contiguous(memory_format={memory_format})` if that is what the model runs in" if among else ""
    )
    what = "" if name == source else f" for `{source}`"
    return (
        f"pin the strides before the compiled call{what}: `{name} = {name}.contiguous()`{alternative}; "
        "mark_dynamic does not help, it covers sizes; or compile with "
        '`frx_graph.compile(model, options={"pin_strides": True})`, which copies inputs to the first strides'
    )


DETECTOR = Detector(RULE, "stride_instability", detect)
