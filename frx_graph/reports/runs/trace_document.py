"""Findings in a profiler trace as JSON: the document `frx_trace_v1`, under the mode "trace"."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from frx_graph.analyzers.timeline.analysis import RunAnalysis, Timeline
from frx_graph.analyzers.timeline.device_time import DeviceTime, LayoutWork, TransferTotal
from frx_graph.analyzers.timeline.kernel_table import KernelTotal
from frx_graph.analyzers.trace.analysis import TraceAnalysis
from frx_graph.analyzers.trace.gaps import list_gaps
from frx_graph.evidence.trace.steps import Step
from frx_graph.records import Finding
from frx_graph.reports.advice.fingerprint import compute_fingerprints
from frx_graph.reports.render.recommendation_part import build_recommendation
from frx_graph.reports.runs.trace_parts import (
    AttributionPart,
    DevicePart,
    FamilyPart,
    HostPart,
    KernelPart,
    LabelPart,
    LauncherPart,
    LaunchPart,
    LayoutPart,
    MarkedStepPart,
    MissingPart,
    OperatorPart,
    TraceDocument,
    TraceResult,
    TransferPart,
    WindowPart,
)

_CALLS = 10
"""Functions of the runtime that are listed."""


def build_trace_document(
    trace: TraceAnalysis, run: RunAnalysis, findings: Sequence[Finding], root: Path
) -> TraceDocument:
    """Return the document of a trace. `findings` are ranked and concern its layout copies; their fingerprints name
    files relative to `root`."""
    line = run.timeline
    windows, source = line.windows, trace.tree.trace
    primary = run.primary
    return TraceDocument(
        result=TraceResult(
            source=str(source.path),
            rank=source.rank,
            world_size=source.world_size,
            window=WindowPart(
                steps=tuple(map(_build_marked_step, windows.used)),
                left_out=tuple(map(_build_marked_step, windows.left_out)),
                host_ms=_to_milliseconds(windows.host_ns),
                span_ms=_to_milliseconds(windows.span_ns),
                step_ms=_to_milliseconds(windows.span_ns) / windows.steps if windows.steps else None,
            ),
            primary_bottleneck=None if primary is None else primary.label,
            secondary_bottlenecks=tuple(
                label.label for label in run.present if not label.symptom and label is not primary
            ),
            symptom=None if run.symptom is None else run.symptom.label,
            labels=tuple(map(LabelPart.from_record, run.labels)),
            recommendations=tuple(map(build_recommendation, run.recommendations)),
            devices=tuple(map(_build_device, line.devices)),
            transfers=tuple(map(_build_transfer, line.transfers)),
            launches=_build_launches(line),
            host=HostPart.from_record(line, calls=line.host.calls[:_CALLS]),
            attribution=AttributionPart.from_record(
                line.kernels, attributed_share=_divide(line.kernels.attributed_ns, line.kernels.total_ns)
            ),
            families=tuple(
                FamilyPart(
                    family=family,
                    count=count,
                    total_ms=_to_milliseconds(time),
                    share=_divide(time, line.kernels.total_ns),
                )
                for family, (count, time) in line.kernels.families.items()
            ),
            kernels=tuple(_build_kernel(kernel, line) for kernel in line.kernels.kernels),
            operators=tuple(
                OperatorPart.from_record(operator, share=_divide(operator.total_ns, line.kernels.total_ns))
                for operator in line.kernels.operators
            ),
            layout_share=line.layout_share,
            layout=_build_layout(line.layout.work, findings, root),
            layout_findings=len(findings),
            missing=tuple(
                MissingPart.from_record(gap) for gap in list_gaps(trace, peaks=None) if gap.subject != "ridge point"
            ),
        )
    )


def _to_milliseconds(time_ns: int) -> float:
    return time_ns / 1e6


def _build_marked_step(step: Step) -> MarkedStepPart:
    return MarkedStepPart(number=step.number or 0, ms=_to_milliseconds(step.end_ns - step.start_ns))


def _divide(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _build_device(device: DeviceTime) -> DevicePart:
    return DevicePart.from_record(
        device,
        busy_share=_divide(device.busy_ns, device.span_ns) or 0.0,
        idle_share=_divide(device.idle_ns, device.span_ns) or 0.0,
    )


def _build_transfer(found: TransferTotal) -> TransferPart:
    known = found.bytes is not None and found.total_ns > 0
    return TransferPart.from_record(found, bytes_per_s=(found.bytes or 0) / (found.total_ns / 1e9) if known else None)


def _build_launches(line: Timeline) -> LaunchPart | None:
    found = line.launches
    if found is None:
        return None
    return LaunchPart.from_record(
        found,
        small_kernel_fraction=found.small / found.kernels,
        starved_kernel_fraction=_divide(found.starved, found.judged),
    )


def _build_kernel(kernel: KernelTotal, line: Timeline) -> KernelPart:
    return KernelPart.from_record(
        kernel,
        busy_share=_divide(kernel.total_ns, sum(device.kernel_ns for device in line.devices)),
        operators=[LauncherPart.from_record(launcher, total_ms=time_ns) for launcher, time_ns in kernel.operators],
    )


def _build_layout(work: Sequence[LayoutWork], findings: Sequence[Finding], root: Path) -> tuple[LayoutPart, ...]:
    known = dict(zip(findings, compute_fingerprints(findings, root), strict=True))
    return tuple(LayoutPart.from_record(one, fingerprint=known[one.finding]) for one in work)
