"""Read samples of a program's processes, `host_metrics.csv`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from frx_graph.evidence.run.sample_rows import BYTES, COUNT, PERCENT, Quantity, read_sample_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSample:
    """The processes of a program at one moment, in nanoseconds since 1970. None: unknown."""

    at_ns: int
    processes: int | None = None
    busy_pct: float | None = None
    """Processor time since the last sample; 100 is one processor."""
    memory: int | None = None
    """Bytes in memory; pages that processes share count once for each."""


_MOST_PERCENT = 100.0 * (1 << 16)
_QUANTITIES: Final[Mapping[str, Quantity]] = {
    "processes": Quantity("processes", COUNT),
    "cpu": Quantity("busy_pct", PERCENT, _MOST_PERCENT, whole=False),
    "memory.rss": Quantity("memory", BYTES),
}


def read_host_samples(path: Path) -> tuple[HostSample, ...]:
    """Return the samples in the file at `path`, in its order. Raises as `read_sample_rows`."""
    return tuple(HostSample(at_ns=at_ns, **values) for at_ns, values in read_sample_rows(path, _QUANTITIES))
