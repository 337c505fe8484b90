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


NVTX = (
    "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
    "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
)


def nvtx_cell(*ranges: str) -> str:
    """A cell of the first column, with the ranges that are open, the outermost first."""
    return "58960 " + "".join(f' "<default domain>:{name}:none:none:none:none:none:none" ' for name in ranges)


def nvtx_export(
    launches: Sequence[tuple[Launch, str]],
    metrics: Sequence[tuple[str, str, str]] = (("gpu__time_duration.sum", "us", "6.75"),),
    *,
    wide: bool = True,
) -> str:
    """What `--nvtx` adds: two columns before the kernel's name. `metrics` are name, unit and value, of each launch."""
    at = IDENTITY.index("Kernel Name")

    def cells(launch: Launch, ranges: str) -> tuple[str, ...]:
        return (*launch.cells[:at], ranges.replace('"', '""'), "", *launch.cells[at:])

    header = (*IDENTITY[:at], *NVTX, *IDENTITY[at:])
    if wide:
        rows = [row(*header, *(name for name, _, _ in metrics))]
        rows.append(row(*("" for _ in header), *(unit for _, unit, _ in metrics)))
        rows += [row(*cells(*launch), *(value for _, _, value in metrics)) for launch in launches]
    else:
        rows = [row(*header, *METRIC)]
        rows += [row(*cells(*launch), RAW, *one) for launch in launches for one in metrics]
    return "\n".join((*rows, ""))
