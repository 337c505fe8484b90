"""List facts missing from a trace, so that an empty report is not taken for a clean one."""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.analyzers.trace.analysis import TraceAnalysis
from frx_graph.evidence.trace.events import ActivityKind
from frx_graph.evidence.trace.sites import has_stacks
from frx_graph.evidence.trace.tree import NONE
from frx_graph.records import Refusal
from frx_graph.rules.gpu_profile import GpuPeaks


def list_gaps(analysis: TraceAnalysis, peaks: GpuPeaks | None) -> tuple[Refusal, ...]:
    """Return one refusal for each kind of missing fact, with the option that records it."""
    return tuple(_iterate_gaps(analysis, peaks))


def _iterate_gaps(analysis: TraceAnalysis, peaks: GpuPeaks | None) -> Iterator[Refusal]:
    tree, trace = analysis.tree, analysis.tree.trace
    operators = [tree.operators[index] for index in analysis.scanned]
    shaped = [operator for operator in operators if operator.operands]
    if not analysis.steps.annotated:
        yield Refusal(
            "steps", "the trace marks none, so counts and bytes are of the whole trace: call `profiler.step()`"
        )
    if not analysis.on_device:
        yield Refusal(
            "device kernels",
            "no device did anything in this trace. What oneDNN converts inside a convolution is not in a CPU trace: "
            "`frx advise --observe` sees it",
        )
    if analysis.compiled:
        yield Refusal(
            "compiled code",
            "what Inductor's own kernels convert is known only if a kernel's name says that it only copies"
            if analysis.on_device
            else "Inductor's C++ kernels are not in a CPU trace: `frx advise --inner inductor --observe` sees them",
        )
    if not operators:
        yield Refusal(
            "operators",
            "the trace has kernels only, so nothing can be blamed: record ProfilerActivity.CPU too"
            if analysis.on_device
            else "none was dispatched within the steps",
        )
    elif not shaped:
        yield Refusal(
            "bytes", "the trace has no shapes, so the sizes of copies are not known: profile with record_shapes=True"
        )
    elif not any(operand is not None and operand.strides for operator in shaped for operand in operator.operands or ()):
        yield Refusal(
            "strides", "the trace has shapes but no strides, so layouts before and after a copy are not known"
        )
    if operators and not has_stacks(trace.operators, len(trace.frames)):
        yield Refusal(
            "call sites",
            "the trace has no Python stacks, so operators are named instead of lines: profile with with_stack=True",
        )
    if analysis.on_device and peaks is None:
        yield Refusal(
            "ridge point",
            f"the peaks of {get_device_name(analysis)} are not known here, so products and convolutions are not judged",
        )
    orphans = [index for index in analysis.work if tree.launcher[index] == NONE]
    kernels = [index for index in orphans if tree.activities[index].kind is ActivityKind.KERNEL]
    if operators and kernels:
        time = sum(tree.activities[index].duration_ns for index in kernels) / 1e6
        yield Refusal(
            "unattributed kernels", f"{len(kernels)} kernels ({time:.3g} ms) were launched outside any operator"
        )
    if trace.unfinished:
        yield Refusal("unfinished events", f"{trace.unfinished} events without a duration were left out")


def get_device_name(analysis: TraceAnalysis) -> str:
    """Return the names of the devices that worked; `unknown` if the trace has none, `CPU` without devices."""
    if not analysis.on_device:
        return "CPU"
    names = analysis.tree.trace.device_names
    used = sorted({analysis.tree.activities[index].device or 0 for index in analysis.work})
    return ", ".join(dict.fromkeys(names.get(number, "unknown") for number in used))
