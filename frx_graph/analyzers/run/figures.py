"""Measure a scope of steps: figures only, no conclusions."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

from frx_graph.analyzers.run.steps import Activity, RunStep, group_steps
from frx_graph.analyzers.timeline.analysis import Timeline
from frx_graph.analyzers.timeline.host_time import ShapeChanges
from frx_graph.evidence.run.events import GpuSample, ProfilerWindow
from frx_graph.evidence.run.host_samples import HostSample


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """One device. Shares are 0..1, None if no sample has them."""

    device: int | None
    samples: int
    busy: float | None
    memory_busy: float | None
    """Time in which memory was read or written."""
    peak_memory: float | None
    """Peak of the used memory, over all programs."""


def measure_devices(samples: Sequence[GpuSample], begin_ns: int | None, end_ns: int | None) -> tuple[DeviceUse, ...]:
    """Return devices by number, between two times; None leaves an end open. If there are several, devices that never
    worked are left out, since a sampler sees all of the machine's."""
    gathered: dict[int | None, list[GpuSample]] = defaultdict(list)
    worked = {sample.device for sample in samples if sample.busy_pct}
    for sample in samples:
        within = (begin_ns is None or sample.at_ns >= begin_ns) and (end_ns is None or sample.at_ns <= end_ns)
        if within and (not worked or sample.device in worked):
            gathered[sample.device].append(sample)
    return tuple(
        DeviceUse(
            device=device,
            samples=len(here),
            busy=_average_percent(sample.busy_pct for sample in here),
            memory_busy=_average_percent(sample.memory_busy_pct for sample in here),
            peak_memory=max(
                (
                    sample.memory_used / sample.memory_total
                    for sample in here
                    if sample.memory_used is not None and sample.memory_total
                ),
                default=None,
            ),
        )
        for device, here in sorted(gathered.items(), key=lambda item: -1 if item[0] is None else item[0])
    )


@dataclass(frozen=True, slots=True)
class HostUse:
    """The program's processes. None if no sample has it."""

    samples: int
    busy_processors: float | None
    """Processors' worth of time, on average."""
    peak_memory: int | None
    """Bytes of all processes together; pages that they share count once for each."""
    peak_processes: int | None


def measure_host(samples: Sequence[HostSample], begin_ns: int | None, end_ns: int | None) -> HostUse | None:
    """Return what the program's processes used between two times; None leaves an end open. None without samples."""
    here = [
        one
        for one in samples
        if (begin_ns is None or one.at_ns >= begin_ns) and (end_ns is None or one.at_ns <= end_ns)
    ]
    if not here:
        return None
    return HostUse(
        samples=len(here),
        busy_processors=_average_percent(one.busy_pct for one in here),
        peak_memory=max((one.memory for one in here if one.memory is not None), default=None),
        peak_processes=max((one.processes for one in here if one.processes is not None), default=None),
    )


def _average_percent(percents: Iterable[float | None]) -> float | None:
    average = _average_known(percents)
    return None if average is None else average / 100


def _average_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


STALL_LABELS = {Activity.LOADER: "input_bound", Activity.H2D: "copy_bound", Activity.SYNC: "sync_bound"}
_DEVICE_ACTIVITIES = frozenset([Activity.H2D, Activity.D2H, Activity.SYNC])
_FEW = 0.5
"""Processes with fewer steps than this part of the maximum do other work, such as evaluation, and delay none."""


@dataclass(frozen=True)
class ScopeFigures:
    """The steps of a scope and their devices. `kernels` is the last window of a profiler that has figures, `trace` a
    profiler's record of a part of the run, `hand_over_ns` the estimated time a step to take in a batch from workers.
    `loader_workers` counts the DataLoaders' worker processes, `processors` those of the machine.
    Times and shares cover complete steps that did not fail; None: not recorded."""

    steps: tuple[RunStep, ...]
    devices: tuple[DeviceUse, ...]
    looked_for_devices: bool
    host: HostUse | None
    shapes: ShapeChanges | None
    kernels: ProfilerWindow | None
    trace: Timeline | None
    hand_over_ns: float | None = None
    loader_workers: int | None = None
    processors: int | None = None

    @cached_property
    def timed(self) -> tuple[RunStep, ...]:
        """Return the steps that count."""
        return tuple(step for step in self.steps if step.whole and not step.failed and step.wall_ns > 0)

    @cached_property
    def wall_ns(self) -> int:
        """Return the time of these steps in all processes together."""
        return sum(step.wall_ns for step in self.timed)

    @cached_property
    def walls_ms(self) -> tuple[float, ...]:
        """Return the time of each step, sorted."""
        return tuple(sorted(step.wall_ns / 1e6 for step in self.timed))

    @property
    def step_ms(self) -> float | None:
        """Return the mean from batch to batch."""
        return self.wall_ns / len(self.timed) / 1e6 if self.timed else None

    @property
    def median_ms(self) -> float | None:
        """Return the median."""
        return statistics.median(self.walls_ms) if self.walls_ms else None

    @property
    def p90_ms(self) -> float | None:
        """Return the 90th percentile."""
        return self.walls_ms[math.ceil(0.9 * len(self.walls_ms)) - 1] if self.walls_ms else None

    @property
    def steps_per_s(self) -> float | None:
        """Return the rate of one process."""
        return len(self.timed) / (self.wall_ns / 1e9) if self.timed else None

    @cached_property
    def means(self) -> Mapping[Activity, float]:
        """Return shares of the steps' time, 0..1, for processes that recorded them. Without steps, they are shares of
        the profiler's record."""
        if not self.steps and self.trace is not None:
            whole = {Activity.LOADER: self.trace.loading_share, Activity.SYNC: self.trace.waiting_share}
            return {activity: share for activity, share in whole.items() if share is not None}
        known = {activity: [step for step in self.timed if activity in step.times] for activity in Activity}
        return {
            activity: sum(step.times[activity] for step in steps) / sum(step.wall_ns for step in steps)
            for activity, steps in known.items()
            if steps
        }

    @property
    def restarts(self) -> float | None:
        """Return the share of the waits for a batch in which a loader began to iterate; None without waits."""
        return sum(step.restart_ns for step in self.timed) / self._waited_ns if self._waited_ns else None

    @property
    def handing_over(self) -> float | None:
        """Return the share of the waits for a batch that taking it in from workers explains, by an estimate."""
        if self.hand_over_ns is None or not self._waited_ns:
            return None
        return min(1.0, self.hand_over_ns * len(self.timed) / self._waited_ns)

    @property
    def _waited_ns(self) -> int:
        return sum(step.times.get(Activity.LOADER, 0) for step in self.timed)

    @property
    def unexplained(self) -> float | None:
        """Return the share of the steps' time that no record covers."""
        return sum(step.unexplained_ns for step in self.timed) / self.wall_ns if self.timed else None

    @property
    def between(self) -> float | None:
        """Return the share of the steps' time before the program's mark that no record covers."""
        known = [step for step in self.timed if step.between_ns is not None]
        if not known:
            return None
        return sum(step.between_ns or 0 for step in known) / sum(step.wall_ns for step in known)

    @property
    def undivided(self) -> float | None:
        """Return the share of the steps' time within the program's mark that no record covers."""
        return None if self.unexplained is None or self.between is None else self.unexplained - self.between

    @property
    def workers_per_processor(self) -> float | None:
        """Return the number of loader workers for each processor."""
        if self.loader_workers is None or self.processors is None:
            return None
        return self.loader_workers / self.processors

    def find_worst(self, activity: Activity) -> tuple[int | None, float] | None:
        """Return the process whose steps take the largest share of the time, and that share: the others wait for it."""
        parts = group_steps(self.timed)
        most = max(map(len, parts.values()), default=0)
        shares = [
            (process, sum(step.times[activity] for step in steps) / sum(step.wall_ns for step in steps))
            for process, steps in parts.items()
            if len(steps) >= _FEW * most and all(activity in step.times for step in steps)
        ]
        return max(shares, key=itemgetter(1), default=None)

    @property
    def dominant_stall(self) -> str | None:
        """Return the longest of waiting, copying and synchronising; None if there is none."""
        stalls = {label: self.means[activity] for activity, label in STALL_LABELS.items() if self.means.get(activity)}
        return max(stalls, key=lambda label: stalls[label], default=None)

    @property
    def sampled_busy(self) -> float | None:
        """Return the busy share of devices by samples."""
        return _average_known(device.busy for device in self.devices)

    @property
    def busy(self) -> float | None:
        """Return the busy share of devices: a profiler's, which sees each kernel; else by samples."""
        measured = None if self.trace is None else self.trace.busy_share
        return self.sampled_busy if measured is None else measured

    @property
    def uses_device(self) -> bool:
        """Return False if a sampler looked for devices, and nothing recorded shows one."""
        if not self.looked_for_devices:
            return True
        traced = self.trace is not None and (self.trace.busy_share is not None or self.trace.memory_share is not None)
        return bool(self.devices) or traced or self.kernels is not None or bool(_DEVICE_ACTIVITIES & self.means.keys())

    @property
    def processors_busy(self) -> float | None:
        """Return the share of the machine's processors that the program uses; None if unknown, or if a device does the
        computing."""
        if self.uses_device or self.host is None or self.host.busy_processors is None or not self.processors:
            return None
        return min(1.0, self.host.busy_processors / self.processors)

    @property
    def memory_busy(self) -> float | None:
        """Return the memory-busy share of devices by samples."""
        return _average_known(device.memory_busy for device in self.devices)

    @property
    def peak_memory(self) -> float | None:
        """Return the used memory share of the fullest device, by samples; else the allocated one, by a profiler."""
        sampled = max((device.peak_memory for device in self.devices if device.peak_memory is not None), default=None)
        return self.trace.memory_share if sampled is None and self.trace is not None else sampled

    def collect_values(self) -> Mapping[str, float]:
        """Return the metrics of cards by name; shares in percent. Those of the whole run come before a profiler's."""
        shares = {
            "dataloader_wait_pct": self.means.get(Activity.LOADER),
            "loader_restart_pct": self.restarts,
            "hand_over_pct": self.handing_over,
            "workers_per_processor_pct": self.workers_per_processor,
            "processors_busy_pct": self.processors_busy,
            "unexplained_pct": self.unexplained,
            "h2d_pct": self.means.get(Activity.H2D),
            "sync_wait_pct": self.means.get(Activity.SYNC),
            "gpu_busy_pct": self.busy,
            "peak_memory_pct": self.peak_memory,
            "shape_change_pct": None if self.shapes is None else self.shapes.share,
        }
        found = {} if self.trace is None else dict(self.trace.collect_values())
        found |= {name: 100.0 * share for name, share in shares.items() if share is not None}
        if self.step_ms is not None:
            found["step_ms"] = self.step_ms
        return found
