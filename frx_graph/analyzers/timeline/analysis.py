"""Analyse a trace: its timeline, labels and recommendations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from frx_graph.analyzers.kernels.recommendations import Recommendation, recommend_cards
from frx_graph.analyzers.timeline.device_time import (
    DeviceTime,
    LayoutTotals,
    TransferTotal,
    measure_devices,
    measure_layout_work,
    sum_transfers,
)
from frx_graph.analyzers.timeline.host_idle import HostWork, split_idle_time
from frx_graph.analyzers.timeline.host_time import (
    HostTime,
    Part,
    ShapeChanges,
    classify_operators,
    count_shape_changes,
    measure_host,
)
from frx_graph.analyzers.timeline.kernel_table import KernelTable, tabulate_kernels
from frx_graph.analyzers.timeline.labels import INSUFFICIENT, Answer, RunLabel, build_bottleneck, label_timeline
from frx_graph.analyzers.timeline.launches import Launches, measure_launches
from frx_graph.analyzers.timeline.windows import Windows, find_windows
from frx_graph.analyzers.trace.analysis import TraceAnalysis
from frx_graph.evidence.trace.intervals import intersect_spans, is_covered, subtract_spans, sum_spans
from frx_graph.records import Finding


@dataclass(frozen=True)
class Timeline:
    """A measured run. Shares are 0..1: for devices, means over the windows; for the host, over the used steps. None:
    not in the trace."""

    windows: Windows
    devices: tuple[DeviceTime, ...]
    transfers: tuple[TransferTotal, ...]
    kernels: KernelTable
    launches: Launches | None
    host: HostTime
    host_idle: Mapping[HostWork, int]
    """Idle nanoseconds of all devices without waits for input, by what the host does; the longest first."""
    layout: LayoutTotals
    shapes: ShapeChanges | None
    memory_share: float | None
    """Peak of a device's allocated memory."""

    @property
    def busy_share(self) -> float | None:
        """Return the time in which a device did anything."""
        return self._divide_by_devices([device.busy_ns for device in self.devices])

    @property
    def idle_share(self) -> float | None:
        """Return the time in which a device did nothing."""
        return None if self.busy_share is None else 1 - self.busy_share

    @property
    def kernel_share(self) -> float | None:
        """Return the time in which a kernel ran."""
        return self._divide_by_devices([device.kernel_ns for device in self.devices])

    @property
    def loading_share(self) -> float | None:
        """Return the time in which the program waits for a batch."""
        return self._divide_by_steps(self.host.loading_ns)

    @property
    def waiting_share(self) -> float | None:
        """Return the time in which a thread waits for a device."""
        return self._divide_by_steps(self.host.waiting_ns)

    @property
    def exposed_copy_share(self) -> float | None:
        """Return the time of copies from the host with no kernel beside them."""
        return self._divide_by_devices([device.exposed_host_to_device_ns for device in self.devices])

    @property
    def exposed_communication_share(self) -> float | None:
        """Return the time of communication without simultaneous computation: on devices, or else on the host."""
        if self.devices:
            return self._divide_by_devices([device.exposed_communication_ns for device in self.devices])
        return self._divide_by_steps(sum_spans(subtract_spans(self.host.collectives, self.host.computing)))

    @cached_property
    def host_bound_share(self) -> float | None:
        """Return the idle time of devices while the program did not wait for input."""
        loading = self.host.loading or ()
        return self._divide_by_devices([sum_spans(subtract_spans(device.idle, loading)) for device in self.devices])

    @cached_property
    def idle_while_loading_share(self) -> float | None:
        """Return the idle time of devices while the program waited for input."""
        if self.host.loading is None:
            return None
        loading = self.host.loading
        return self._divide_by_devices([sum_spans(intersect_spans(device.idle, loading)) for device in self.devices])

    @cached_property
    def idle_after_waits_share(self) -> float | None:
        """Return idle time of devices that begins while the host waits for them, apart from waits for input. The host
        could not launch before it knew that the device was done."""
        if self.host.waiting is None:
            return None
        loading, waiting = self.host.loading or (), self.host.waiting
        after = ([gap for gap in device.gaps if is_covered(waiting, gap[0])] for device in self.devices)
        return self._divide_by_devices([sum_spans(subtract_spans(gaps, loading)) for gaps in after])

    @property
    def layout_share(self) -> float | None:
        """Return the part of kernel time that changes layouts."""
        running = sum(device.kernel_ns for device in self.devices)
        return self.layout.device_ns / running if running else None

    def _divide_by_steps(self, time_ns: int | None) -> float | None:
        return None if time_ns is None or not self.windows.host_ns else time_ns / self.windows.host_ns

    def _divide_by_devices(self, times: Sequence[int]) -> float | None:
        whole = len(times) * self.windows.span_ns
        return sum(times) / whole if whole else None

    def collect_values(self) -> Mapping[str, float]:
        """Return the metrics of cards and labels by name; shares in percent. Unknown ones are left out."""
        known = self.launches
        shares = {
            "gpu_busy_pct": self.busy_share,
            "dataloader_wait_pct": self.loading_share,
            "sync_wait_pct": self.waiting_share,
            "idle_after_sync_pct": self.idle_after_waits_share,
            "host_bound_idle_pct": self.host_bound_share,
            "exposed_h2d_pct": self.exposed_copy_share,
            "exposed_communication_pct": self.exposed_communication_share,
            "layout_change_pct": self.layout_share,
            "peak_memory_pct": self.memory_share,
            "shape_change_pct": None if self.shapes is None else self.shapes.share,
            "small_kernel_pct": known.small / known.kernels if known else None,
            "optimizer_small_kernel_pct": known.small_parts.get(Part.OPTIMIZER, 0) / known.small
            if known and known.small
            else None,
            "starved_kernel_pct": known.starved / known.judged if known and known.judged else None,
        }
        found = {name: 100.0 * share for name, share in shares.items() if share is not None}
        if known is not None:
            found["median_cuda_kernel_duration_us"] = known.median_ns / 1e3
            if known.per_step is not None:
                found["kernel_count_per_step"] = known.per_step
        if self.windows.steps:
            found["step_ms"] = self.windows.span_ns / self.windows.steps / 1e6
        return found


_NAMED = 5
"""Limit on the kernels named for a bottleneck."""


@dataclass(frozen=True)
class RunAnalysis:
    """A timeline with all its labels, present ones first."""

    timeline: Timeline
    labels: tuple[RunLabel, ...]
    recommendations: tuple[Recommendation, ...]

    @property
    def present(self) -> tuple[RunLabel, ...]:
        """Return the labels that are present."""
        return tuple(label for label in self.labels if label.answer is Answer.PRESENT)

    @property
    def primary(self) -> RunLabel | None:
        """Return the cause with the highest cost, or a symptom without a known cause; None if nothing is known."""
        return next((label for label in self.present if label.label != INSUFFICIENT), None)

    @property
    def symptom(self) -> RunLabel | None:
        """Return the symptom of the cause, if it is present."""
        return next((label for label in self.present if label.symptom and label.label != INSUFFICIENT), None)


def analyze_timeline(analysis: TraceAnalysis, findings: Sequence[Finding]) -> RunAnalysis:
    """Analyse a trace; `findings` is the ordered result of `find_layout_copies` for it."""
    windows, trace = find_windows(analysis), analysis.tree.trace
    parts = classify_operators(analysis.tree)
    devices = measure_devices(analysis, windows)
    whole = trace.device_bytes
    host = measure_host(analysis, windows, parts)
    run = Timeline(
        windows=windows,
        devices=devices,
        transfers=sum_transfers(analysis, windows),
        kernels=tabulate_kernels(analysis, windows, parts),
        launches=measure_launches(analysis, windows, devices, parts),
        host=host,
        host_idle=split_idle_time(analysis, windows, devices, host.loading or ()),
        layout=measure_layout_work(analysis, windows, findings),
        shapes=count_shape_changes(analysis, windows, parts),
        memory_share=max(
            (peak / whole[device] for device, peak in trace.peak_allocated.items() if device in whole), default=None
        ),
    )
    labels = label_timeline(run)
    values = run.collect_values()
    converting = tuple(dict.fromkeys(name for work in run.layout.work for name in work.kernels))[:_NAMED]
    bottlenecks = [
        build_bottleneck(label, values, kernels=converting if label.label == "layout_churn" else ())
        for label in labels
        if label.answer is Answer.PRESENT
    ]
    return RunAnalysis(run, labels, recommend_cards(bottlenecks))
