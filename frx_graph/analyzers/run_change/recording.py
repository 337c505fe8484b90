"""The facts of a run, a trace or an advice that can be compared with those of another."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

MEMORY_TRAFFIC = "memory traffic"
COPY_TRAFFIC = "traffic of layout copies"


class RecordKind(enum.StrEnum):
    """Kinds of records. Only records of one kind are compared."""

    RUN = "run"
    TRACE = "trace"
    ADVICE = "advice"


@dataclass(frozen=True, slots=True)
class KernelUse:
    """The launches of one kernel in a step, and their time."""

    count: float
    ms: float


@dataclass(frozen=True, slots=True)
class KnownProblem:
    """A finding. `per_step` counts copies or occurrences in a step, and the others are its cost in a step; None if
    unknown."""

    rule: str
    title: str
    place: str
    per_step: float | None
    bytes_per_step: float | None = None
    ms_per_step: float | None = None
    place_in_model: str | None = None
    """Its function and module, which stay if the program is saved under another name; None: not known."""

    @property
    def file(self) -> str:
        """Return its place without the line."""
        return self.place.rpartition(":")[0]

    @property
    def is_free(self) -> bool:
        """Return True if it is known to cost nothing."""
        return (self.bytes_per_step if self.ms_per_step is None else self.ms_per_step) == 0


@dataclass(frozen=True, slots=True)
class Cost:
    """A total of a step, in the `unit` that `format_quantity` takes; None: not known."""

    value: float | None
    unit: str


@dataclass(frozen=True, slots=True)
class Recording:
    """One side. `step_ms` are the steps in order, without those that failed. `labels` are the bottlenecks with their
    share of the time, 0..1; `undecided` are those that the record cannot tell. `shares` are other shares of the step,
    0..1, and `shares_ms` their milliseconds in a step. Kernels are by name, problems by fingerprint. `costs` are totals
    of a step by name. `machine` names what the times depend on."""

    name: str
    kind: RecordKind
    step_ms: tuple[float, ...] = ()
    labels: Mapping[str, float] = field(default_factory=dict)
    undecided: frozenset[str] = frozenset()
    shares: Mapping[str, float] = field(default_factory=dict)
    shares_ms: Mapping[str, float] = field(default_factory=dict)
    kernels: Mapping[str, KernelUse] = field(default_factory=dict)
    per_step: bool = True
    """False: the record marks no steps, and `kernels` adds up all of it."""
    problems: Mapping[str, KnownProblem] = field(default_factory=dict)
    costs: Mapping[str, Cost] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)
