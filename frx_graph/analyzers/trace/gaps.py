"""List facts missing from a trace, so that an empty report is not taken for a clean one."""

from __future__ import annotations

from frx_graph.analyzers.trace.analysis import TraceAnalysis
from frx_graph.evidence.trace.chrome_trace import Damage
from frx_graph.evidence.trace.events import ActivityKind
from frx_graph.evidence.trace.sites import has_stacks
from frx_graph.evidence.trace.tree import NONE
from frx_graph.records import Refusal
from frx_graph.rules.gpu_profile import GpuPeaks
from frx_graph.support.plain_text import clean_line, format_seconds

_NAMED = 3
"""Impossible events that are named."""


def list_gaps(analysis: TraceAnalysis, peaks: GpuPeaks | None) -> tuple[Refusal, ...]:
    """Return one refusal for each kind of missing fact, with the option that records it."""
    tree, trace, on_device = analysis.tree, analysis.tree.trace, analysis.on_device
    operators = [tree.operators[index] for index in analysis.scanned]
    shaped = [operator for operator in operators if operator.operands]
    strided = any(operand and operand.strides for operator in shaped for operand in operator.operands or ())
    orphans = [tree.activities[index] for index in analysis.work if tree.launcher[index] == NONE]
    times = [one.duration_ns for one in orphans if one.kind is ActivityKind.KERNEL]
    gaps: dict[str, str] = {}
    if not analysis.steps.annotated:
        gaps["steps"] = "the trace marks none, so counts and bytes are of the whole trace: call `profiler.step()`"
    if not on_device:
        gaps["device kernels"] = (
            "no device did anything in this trace. What oneDNN converts inside a convolution is not in a CPU trace: "
            "`frx advise --observe` sees it"
        )
    if analysis.compiled:
        gaps["compiled code"] = (
            "what Inductor's own kernels convert is known only if a kernel's name says that it only copies"
            if on_device
            else "Inductor's C++ kernels are not in a CPU trace: `frx advise --inner inductor --observe` sees them"
        )
    if not operators:
        gaps["operators"] = (
            "the trace has kernels only, so nothing can be blamed: record ProfilerActivity.CPU too"
            if on_device
            else "none was dispatched within the steps"
        )
    elif not shaped:
        gaps["bytes"] = "the trace has no shapes, so the sizes of copies are not known: profile with record_shapes=True"
    elif not strided:
        gaps["strides"] = "the trace has shapes but no strides, so layouts before and after a copy are not known"
    if operators and not has_stacks(trace.operators, len(trace.frames)):
        gaps["call sites"] = (
            "the trace has no Python stacks, so operators are named instead of lines: profile with with_stack=True"
        )
    if on_device and peaks is None:
        device = get_device_name(analysis)
        gaps["ridge point"] = f"the peaks of {device} are not known here, so products and convolutions are not judged"
    if operators and times:
        ms = f"{sum(times) / 1e6:.3g} ms"
        gaps["unattributed kernels"] = f"{len(times)} kernels ({ms}) were launched outside any operator"
    if trace.unfinished:
        gaps["unfinished events"] = f"{trace.unfinished} events without a duration were left out"
    if damage := _describe_damage(trace.damage):
        gaps["damaged file"] = damage
    if trace.impossible:
        named = [
            f"'{clean_line(one.event.name, 60)}' of {format_seconds(one.event.duration_ns / 1e9)} {one.reason}"
            for one in trace.impossible[:_NAMED]
        ]
        more = f"; and {len(trace.impossible) - _NAMED} more" if len(trace.impossible) > _NAMED else ""
        gaps["impossible times"] = f"left out: {'; '.join(named)}{more}"
    return tuple(Refusal(subject, reason) for subject, reason in gaps.items())


def _describe_damage(damage: Damage) -> str:
    """Return the faults of a file that were passed over; empty if there is none."""
    parts = []
    if damage.numbers:
        parts.append(f"unreadable numbers (inf, nan) taken as unknown: {damage.numbers}")
    if damage.backslashes:
        parts.append(f"stray backslashes kept: {damage.backslashes}")
    if damage.torn:
        parts.append("the file ends too early, so its last event was left out")
    return "; ".join(parts)


def get_device_name(analysis: TraceAnalysis) -> str:
    """Return the names of the devices that worked; `unknown` if the trace has none, `CPU` without devices."""
    if not analysis.on_device:
        return "CPU"
    names = analysis.tree.trace.device_names
    used = sorted({analysis.tree.activities[index].device or 0 for index in analysis.work})
    return ", ".join(dict.fromkeys(names.get(number, "unknown") for number in used))
