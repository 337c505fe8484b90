"""Exports as Nsight Compute writes them, made by hand: rows of metrics, and rows of launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

IDENTITY = (
    "ID",
    "Process ID",
    "Process Name",
    "Host Name",
    "Kernel Name",
    "Context",
    "Stream",
    "Block Size",
    "Grid Size",
    "Device",
    "CC",
)
METRIC = ("Section Name", "Metric Name", "Metric Unit", "Metric Value")
RULE = ("Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup")
SOL, MEMORY, OCCUPANCY, RAW = (
    "GPU Speed Of Light Throughput",
    "Memory Workload Analysis",
    "Occupancy",
    "Command line profiler metrics",
)


@dataclass(frozen=True)
class Launch:
    """What the columns before the metrics say."""

    number: int = 0
    kernel: str = "void copy(float *, int)"
    block: str = "(128, 1, 1)"
    grid: str = "(1024, 1, 1)"
    device: str = "0"
    capability: str = "9.0"

    @property
    def cells(self) -> tuple[str, ...]:
        fixed = (str(self.number), "58960", "app", "127.0.0.1", self.kernel, "1", "7", self.block, self.grid)
        return (*fixed, self.device, self.capability)


def row(*cells: str) -> str:
    """Every cell in quotation marks, as in all exports."""
    return ",".join(f'"{cell}"' for cell in cells)


def metric(launch: Launch, section: str, name: str, unit: str, value: str) -> str:
    """A row of a long export; one with rules has a comma more at its end."""
    return row(*launch.cells, section, name, unit, value)


def long_export(*rows: str, rules: bool = False, end: str = "\n") -> str:
    """A table of these rows."""
    header = row(*IDENTITY, *METRIC, *(RULE if rules else ()))
    return end.join((header, *rows, ""))


def wide_export(names: Sequence[str], units: Sequence[str], *launches: tuple[Launch, Sequence[str]]) -> str:
    """A row of names, one of units, and one for each launch with its values."""
    rows = [row(*IDENTITY, *names), row(*("" for _ in IDENTITY), *units)]
    rows += [row(*launch.cells, *values) for launch, values in launches]
    return "\n".join((*rows, ""))
