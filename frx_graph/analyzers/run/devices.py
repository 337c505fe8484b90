"""How busy and how full devices were while a run's steps ran, from samples."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from frx_graph.evidence.run.events import GpuSample


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """One device. Shares are 0..1, None where no sample has them."""

    device: int | None
    samples: int
    busy: float | None
    memory_busy: float | None
    """Time in which memory was read or written."""
    peak_memory: float | None
    """The most of its memory that was taken, by whatever program."""


def device_use(samples: Sequence[GpuSample], begin_ns: int | None, end_ns: int | None) -> tuple[DeviceUse, ...]:
    """Devices by number, within a time, which None leaves open. Of several devices those that never did anything in
    the whole run are left out: a sampler sees all of the machine's, and the program may use one of them."""
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
            busy=_mean([sample.busy_pct for sample in here]),
            memory_busy=_mean([sample.memory_busy_pct for sample in here]),
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


def _mean(percents: Sequence[float | None]) -> float | None:
    known = [percent for percent in percents if percent is not None]
    return statistics.fmean(known) / 100 if known else None
