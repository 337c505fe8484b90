"""Read samples of devices, `gpu_metrics.csv`, as nvidia-smi writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from frx_graph.evidence.run.events import GpuSample
from frx_graph.evidence.run.sample_rows import BYTES, COUNT, PERCENT, Quantity, read_sample_rows

_QUANTITIES: Final[Mapping[str, Quantity]] = {
    "index": Quantity("device", COUNT),
    "utilization.gpu": Quantity("busy_pct", PERCENT, 100.0, whole=False),
    "utilization.memory": Quantity("memory_busy_pct", PERCENT, 100.0, whole=False),
    "memory.used": Quantity("memory_used", BYTES),
    "memory.total": Quantity("memory_total", BYTES),
}


def read_device_samples(path: Path) -> tuple[GpuSample, ...]:
    """Return the samples in the file at `path`, in its order. Raises as `read_sample_rows`."""
    return tuple(GpuSample(at_ns=at_ns, **values) for at_ns, values in read_sample_rows(path, _QUANTITIES))
