"""What was found in a profiler trace as JSON: the document `frx_trace_v1`, under the mode "trace"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from frx_graph.analyzers.timeline.analysis import RunAnalysis, Timeline
from frx_graph.analyzers.timeline.device_time import DeviceTime, LayoutWork, TransferTotal
from frx_graph.analyzers.timeline.host_time import Part
from frx_graph.analyzers.timeline.kernel_table import KernelTotal, Launcher, OperatorTotal
from frx_graph.analyzers.trace.analysis import TraceAnalysis
from frx_graph.analyzers.trace.gaps import gaps
from frx_graph.capture.call_site import CallSite
from frx_graph.evidence.trace.steps import Step
from frx_graph.records import Finding
from frx_graph.reports.advice.fingerprint import fingerprints
from frx_graph.reports.render.recommendation_part import recommendation_part
from frx_graph.reports.runs.trace_parts import (
    AttributionPart,
    CallPart,
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
    SitePart,
    StreamPart,
    TraceDocument,
    TraceResult,
    TransferPart,
    WaitPart,
    WindowPart,
)

_CALLS = 10
"""Functions of the runtime that are listed."""


def trace_document(trace: TraceAnalysis, run: RunAnalysis, findings: Sequence[Finding], root: Path) -> TraceDocument:
    """The document of a trace; `findings` are those on its layout copies, ranked, and their fingerprints name files
    relative to `root`."""
    line = run.timeline
    windows, source = line.windows, trace.tree.trace
    primary = run.primary
    return TraceDocument(
        result=TraceResult(
            source=str(source.path),
            rank=source.rank,
            world_size=source.world_size,
            window=WindowPart(
                steps=tuple(map(_marked_step, windows.used)),
                left_out=tuple(map(_marked_step, windows.left_out)),
                host_ms=_ms(windows.host_ns),
                span_ms=_ms(windows.span_ns),
                step_ms=_ms(windows.span_ns) / windows.steps if windows.steps else None,
            ),
            primary_bottleneck=None if primary is None else primary.label,
            secondary_bottlenecks=tuple(
                label.label for label in run.present if not label.symptom and label is not primary
            ),
            symptom=None if run.symptom is None else run.symptom.label,
            labels=tuple(map(LabelPart.from_record, run.labels)),
            recommendations=tuple(map(recommendation_part, run.recommendations)),
            devices=tuple(map(_device, line.devices)),
            transfers=tuple(map(_transfer, line.transfers)),
            launches=_launches(line),
            host=_host(line),
            attribution=AttributionPart(
                kernels=line.kernels.count,
                attributed=line.kernels.attributed,
                attributed_share=_share(line.kernels.attributed_ns, line.kernels.total_ns),
            ),
            families=tuple(
                FamilyPart(family=family, count=count, total_ms=_ms(time), share=_share(time, line.kernels.total_ns))
                for family, (count, time) in line.kernels.families.items()
            ),
            kernels=tuple(_kernel(kernel, line) for kernel in line.kernels.kernels),
            operators=tuple(_operator(operator, line.kernels.total_ns) for operator in line.kernels.operators),
            layout_share=line.layout_share,
            layout=_layout(line.layout.work, findings, root),
            layout_findings=len(findings),
            missing=tuple(
                MissingPart.from_record(gap) for gap in gaps(trace, peaks=None) if gap.subject != "ridge point"
            ),
        )
    )


def _ms(time_ns: int) -> float:
    return time_ns / 1e6


def _marked_step(step: Step) -> MarkedStepPart:
    return MarkedStepPart(number=step.number or 0, ms=_ms(step.end_ns - step.start_ns))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _site(site: CallSite | None) -> SitePart | None:
    # Line 0 stands for the trace itself: no stack was recorded.
    if site is None or site.line == 0:
        return None
    return SitePart.from_record(site)


def _device(device: DeviceTime) -> DevicePart:
    return DevicePart(
        device=device.device,
        name=device.name,
        busy_share=_share(device.busy_ns, device.span_ns) or 0.0,
        idle_share=_share(device.idle_ns, device.span_ns) or 0.0,
        kernel_busy_ms=_ms(device.kernel_ns),
        memcpy_busy_ms=_ms(device.memcpy_ns),
        memset_busy_ms=_ms(device.memset_ns),
        busy_ms=_ms(device.busy_ns),
        compute_ms=_ms(device.compute_ns),
        communication_ms=_ms(device.communication_ns),
        exposed_communication_ms=_ms(device.exposed_communication_ns),
        host_to_device_ms=_ms(device.host_to_device_ns),
        exposed_host_to_device_ms=_ms(device.exposed_host_to_device_ns),
        streams=tuple(
            StreamPart(
                stream=one.stream,
                kernels=one.kernels,
                communication_kernels=one.communication,
                copies=one.copies,
                busy_ms=_ms(one.busy_ns),
            )
            for one in device.streams
        ),
    )


def _transfer(found: TransferTotal) -> TransferPart:
    known = found.bytes is not None and found.total_ns > 0
    return TransferPart(
        direction=found.direction,
        host_memory=found.host_memory,
        count=found.count,
        bytes=found.bytes,
        total_ms=_ms(found.total_ns),
        bytes_per_s=(found.bytes or 0) / (found.total_ns / 1e9) if known else None,
    )


def _launches(line: Timeline) -> LaunchPart | None:
    found = line.launches
    if found is None:
        return None
    return LaunchPart(
        kernel_count=found.kernels,
        kernel_count_per_step=found.per_step,
        median_cuda_kernel_duration_us=found.median_ns / 1e3,
        small_kernel_fraction=found.small / found.kernels,
        small_kernel_ms=_ms(found.small_ns),
        starved_kernel_fraction=_share(found.starved, found.judged),
        launch_calls=found.calls,
        launch_call_ms=None if found.call_ns is None else _ms(found.call_ns),
        median_launch_call_us=None if found.median_call_ns is None else found.median_call_ns / 1e3,
        gaps=found.gaps,
        gap_ms=_ms(found.gap_ns),
        median_gap_us=None if found.median_gap_ns is None else found.median_gap_ns / 1e3,
    )


def _host(line: Timeline) -> HostPart:
    host = line.host
    return HostPart(
        dataloader_wait_ms=None if host.loading_ns is None else _ms(host.loading_ns),
        dataloader_wait_share=line.loading_share,
        idle_while_loading_share=line.idle_while_loading_share,
        host_bound_idle_share=line.host_bound_share,
        sync_wait_ms=None if host.waiting_ns is None else _ms(host.waiting_ns),
        sync_wait_share=line.waiting_share,
        idle_after_sync_share=line.idle_after_waits_share,
        allocation_ms=None if host.allocating_ns is None else _ms(host.allocating_ns),
        collectives_ms=_ms(host.collectives_ns),
        parts_ms=_parts(host.parts),
        device_parts_ms=_parts(line.kernels.parts),
        waits=tuple(
            WaitPart(
                call=wait.call,
                asked_by=wait.asker,
                site=_site(wait.site),
                count=wait.count,
                total_ms=_ms(wait.total_ns),
            )
            for wait in host.waits
        ),
        calls=tuple(
            CallPart(name=call.name, count=call.count, total_ms=_ms(call.total_ns)) for call in host.calls[:_CALLS]
        ),
    )


def _parts(times: Mapping[Part, int]) -> dict[Part, float]:
    return {part: _ms(time) for part, time in times.items()}


def _kernel(kernel: KernelTotal, line: Timeline) -> KernelPart:
    return KernelPart(
        name=kernel.name,
        family=kernel.family,
        tensor_cores=kernel.tensor_cores,
        count=kernel.count,
        total_ms=_ms(kernel.total_ns),
        median_us=kernel.median_ns / 1e3,
        busy_share=_share(kernel.total_ns, sum(device.kernel_ns for device in line.devices)),
        operators=tuple(_launcher(launcher, time) for launcher, time in kernel.operators),
    )


def _launcher(launcher: Launcher, time_ns: int) -> LauncherPart:
    return LauncherPart(inner=launcher.inner, outer=launcher.outer, total_ms=_ms(time_ns))


def _operator(found: OperatorTotal, whole_ns: int) -> OperatorPart:
    return OperatorPart(
        inner=found.launcher.inner,
        outer=found.launcher.outer,
        part=found.part,
        calls=found.calls,
        kernels=found.kernels,
        total_ms=_ms(found.total_ns),
        share=_share(found.total_ns, whole_ns),
        site=_site(found.site),
        sites=found.sites,
    )


def _layout(work: Sequence[LayoutWork], findings: Sequence[Finding], root: Path) -> tuple[LayoutPart, ...]:
    known = dict(zip(findings, fingerprints(findings, root), strict=True))
    return tuple(
        LayoutPart(
            operator=one.operator,
            rule=one.finding.rule,
            fingerprint=known[one.finding],
            title=one.finding.title,
            fix=one.finding.fix,
            site=_site(one.finding.site),
            copies=one.copies,
            kernels=one.kernels,
            bytes=one.bytes,
            total_ms=_ms(one.total_ns),
        )
        for one in work
    )
