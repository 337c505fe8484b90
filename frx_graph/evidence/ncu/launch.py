"""One launch of a kernel, as Nsight Compute has seen it."""

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

    `kind` is OPT for an optimisation, INF for information, WRN for a doubt. `speedup_pct` is its estimate: of the whole
    kernel if `speedup_kind` is `global`, of the part that the rule looks at if it is `local`.
    """

    name: str
    kind: str
    text: str
    speedup_pct: float | None
    section: str = ""
    speedup_kind: str = ""


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """`values` are by the name of a metric of `metrics.METRICS`, or of a stall, in the unit of that; what is not there
    was not measured. `line` is where the launch begins in the file `source`, None in one that has no lines."""

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
    """What the file calls each of the metrics."""
    rules: tuple[NcuRule, ...] = ()
    device_name: str = ""
    """As the driver calls the device; empty where the file does not say."""
    ranges: tuple[str, ...] = ()
    """Names of the NVTX ranges in which it was launched, the outermost first; empty where the file has none."""

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
"""Of what could not be read so many are named."""


class Form(StrEnum):
    """Forms of a file: a row of a table is a metric, or a launch; or it is a binary report."""

    LONG = "long"
    WIDE = "wide"
    REPORT = "report"


@dataclass(slots=True)
class NcuExport:
    """One file. Where something stands is its line, from 1; in a report, which has none, the launch, from 1."""

    source: str
    form: Form = Form.LONG
    number_format: NumberFormat = NumberFormat.POINT
    launches: int = 0
    foreign_lines: int = 0
    """Lines of ncu, or of the program that was profiled."""
    unknown_units: dict[str, int] = field(default_factory=dict)
    """Metrics that are used here, measured in a unit that is not known: with the place where each is seen first."""
    unreadable: dict[str, int] = field(default_factory=dict)
    """The same of values that are no numbers."""

    def note_unit(self, what: str, place: int) -> None:
        """A metric with a unit that is not known."""
        _note(self.unknown_units, what, place)

    def note_value(self, what: str, place: int) -> None:
        """A value that is no number."""
        _note(self.unreadable, what, place)


def _note(noted: dict[str, int], what: str, place: int) -> None:
    if len(noted) < _REPORTED:
        noted.setdefault(what, place)
