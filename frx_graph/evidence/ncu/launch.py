"""One launch of a kernel in Nsight Compute's output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from frx_graph.evidence.measurement import Measurement, Provenance
from frx_graph.evidence.ncu.metrics import BY_NAME, COUNT, PERCENT
from frx_graph.evidence.number_format import NumberFormat

Dimensions = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class NcuRule:
    """The result of a rule of Nsight Compute for a launch.

    `kind` is OPT for an optimisation, INF for information, WRN for a doubt. `speedup_pct` is its estimate: for the
    whole kernel if `speedup_kind` is `global`, for the part that the rule covers if it is `local`.
    """

    name: str
    kind: str
    text: str
    speedup_pct: float | None
    section: str = ""
    speedup_kind: str = ""


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One launch. `values` are by the name of a metric in `metrics.METRICS`, or of a stall, in its unit; missing ones
    were not measured. `line` is the launch's first line in the file `source`, None if the file has no lines."""

    number: str
    process: str
    kernel: str
    device: str
    compute_capability: str
    grid: Dimensions | None
    block: Dimensions | None
    source: str
    line: int | None
    values: Mapping[str, float]
    names: Mapping[str, str] = field(default_factory=dict)
    """Names of the metrics in the file."""
    rules: tuple[NcuRule, ...] = ()
    device_name: str = ""
    """The driver's name for the device; empty if the file has none."""
    ranges: tuple[str, ...] = ()
    """Names of the NVTX ranges around the launch, outermost first; empty if the file has none."""

    @property
    def blocks(self) -> int | None:
        """Product of the grid's dimensions."""
        return None if self.grid is None else self.grid[0] * self.grid[1] * self.grid[2]

    def list_measurements(self) -> Iterator[Measurement]:
        """Yield each value as a separate fact."""
        for name, value in self.values.items():
            metric = BY_NAME.get(name)
            unit = metric.unit if metric is not None else PERCENT if name.startswith("stall_share") else COUNT
            at = Provenance(self.source, self.line, self.names.get(name, name))
            yield Measurement(name, value, unit, f"launch {self.number} of {self.kernel}", at)


_REPORTED = 20
"""Limit on the named items that could not be read."""


class Form(StrEnum):
    """Forms of a file: a table row is a metric, or a launch; or it is a binary report."""

    LONG = "long"
    WIDE = "wide"
    REPORT = "report"


@dataclass(slots=True)
class NcuExport:
    """One file. Positions are lines, from 1; in a report, which has none, launches from 1."""

    source: str
    form: Form = Form.LONG
    number_format: NumberFormat = NumberFormat.POINT
    launches: int = 0
    foreign_lines: int = 0
    """Other lines by ncu, or by the profiled program."""
    unknown_units: dict[str, int] = field(default_factory=dict)
    """Used metrics with an unknown unit, and the first place of each."""
    unreadable: dict[str, int] = field(default_factory=dict)
    """Used metrics with values that are not numbers, and the first place of each."""
    impossible: dict[str, int] = field(default_factory=dict)
    """Shares of a peak below 0 or clearly above 100 %, which are left out, and the first place of each."""

    def note_unit(self, what: str, place: int) -> None:
        """Note a metric with an unknown unit."""
        _note_first(self.unknown_units, what, place)

    def note_value(self, what: str, place: int) -> None:
        """Note a value that is not a number."""
        _note_first(self.unreadable, what, place)

    def note_impossible(self, what: str, place: int) -> None:
        """Note a share of a peak that cannot be."""
        _note_first(self.impossible, what, place)


def _note_first(noted: dict[str, int], what: str, place: int) -> None:
    if len(noted) < _REPORTED:
        noted.setdefault(what, place)
