"""What GPUs do and hold while a configuration runs alone: sampled into its folder, and read back."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

from frx_graph.errors import EvidenceError
from frx_graph.evidence.run.bundle_layout import GPU_METRICS
from frx_graph.evidence.run.device_samples import read_device_samples
from frx_graph.measure.machine.device_state import loaded_nvml
from frx_graph.runs.collect.device_sampling import HEADER, device_rows, visible_devices
from frx_graph.runs.collect.sampling import Sampler


@contextlib.contextmanager
def devices_sampled(
    folder: Path, interval_seconds: float, environment: Mapping[str, str], nvml: ModuleType | None = None
) -> Iterator[None]:
    """While the block runs, `gpu_metrics.csv` in `folder` is written; not where there is no device."""
    nvml = nvml or loaded_nvml()
    devices = visible_devices(nvml, environment) if nvml is not None else {}
    if nvml is None or not devices:
        yield
        return
    path = folder / GPU_METRICS
    path.write_bytes(HEADER)
    sampler = Sampler(path, interval_seconds, device_rows(nvml, devices))
    sampler.start()
    try:
        yield
    finally:
        sampler.stop()


def device_figures(folder: Path) -> tuple[float | None, float | None]:
    """How busy the devices were on average, 0..100, and the largest part of a device's memory that was in use; None
    where that was not sampled."""
    path = folder / GPU_METRICS
    if not path.exists():
        return None, None
    try:
        samples = read_device_samples(path)
    except EvidenceError:
        return None, None
    busy = [sample.busy_pct for sample in samples if sample.busy_pct is not None]
    ratios = [
        sample.memory_used / sample.memory_total
        for sample in samples
        if sample.memory_used is not None and sample.memory_total
    ]
    return statistics.fmean(busy) if busy else None, max(ratios, default=None)
