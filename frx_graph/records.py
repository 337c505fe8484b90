"""The frozen records of advice and rewrites that all rooms share.

Bytes are memory traffic: what is read plus what is written. A layout copy of a tensor of `n` bytes is `2 * n`.
Unknown is None, never zero.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Interval

from frx_graph.capture.call_site import CallSite
from frx_graph.capture.captured_graph import Phase
from frx_graph.evidence.measurement import Measurement
from frx_graph.support.json_fields import Count, NullFor


class Severity(enum.StrEnum):
    """Importance of a finding, by the share of a step's memory traffic that it wastes, or by what it breaks."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    INFO = "info"


class Effort(enum.StrEnum):
    """Amount of the user's code that the fix touches."""

    ONE_LINE = "one-line"
    LOCAL = "local"
    REFACTOR = "refactor"


class Risk(enum.StrEnum):
    """Likelihood that the fix changes more than speed."""

    LOW = "LOW"
    MEDIUM = "MEDIUM"
    HIGH = "HIGH"


class Basis(enum.StrEnum):
    """Basis of a number: predicted from the graph, or observed in a run."""

    PREDICTED = "predicted"
    OBSERVED = "observed"


class CopyKind(enum.StrEnum):
    """Cause of a copy."""

    EXPLICIT = "explicit"
    """The program asked: `.contiguous()`, `.clone()`, `.to(memory_format=...)`."""
    RESHAPE = "reshape"
    """A reshape or flatten whose strides do not allow a view."""
    OPERATOR = "operator"
    """An operator copies an operand inside, because its kernel wants other strides."""
    REORDER = "reorder"
    """A library converts to a private layout and back (oneDNN's blocked formats, cuDNN's nchw↔nhwc kernels)."""


HIDDEN_KINDS = frozenset({CopyKind.OPERATOR, CopyKind.REORDER})
"""Copies without an operator in the graph: their traffic adds to the graph's own."""


class OperandRole(enum.StrEnum):
    """Role of the copied tensor in the operator that copies it."""

    INPUT = "input"
    WEIGHT = "weight"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Copy:
    """The layout copies of one kind and role that a step makes at one node of one graph."""

    node: str
    site: CallSite
    operator: str
    kind: CopyKind
    role: OperandRole
    value: str
    """The value that is copied."""
    bytes: Count
    """Traffic (read + written), summed over `count` copies."""
    count: Count
    phase: Phase
    basis: Basis
    cause: str
    """What made the copy necessary, in a few words."""


@dataclass(frozen=True, slots=True)
class Saving:
    """Expected saving of a fix. Predictions are in percent of the step's memory traffic. If a choice of layout rests on
    timed operators, they are in percent of the modelled time of traffic and timed operators together. `measured_pct` is
    in percent of the measured step; in advice on a trace it is the part of the device's busy time that the copies
    took."""

    predicted_pct_min: float | None = None
    predicted_pct_max: float | None = None
    measured_pct: float | None = None


TIMED_OPERATORS = "anchor measurement"
"""Source of evidence that rests on timed operators."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One fact about a finding."""

    text: str
    source: str
    """Where it was read or measured."""
    basis: Basis = Basis.PREDICTED
    measurements: tuple[Measurement, ...] = ()
    """The numbers that it rests on, as far as they were read from files of a run."""


class Fixability(enum.StrEnum):
    """Ability of `frx fix` to change the source for a finding."""

    FIXABLE = "fixable"
    UNSAFE = "unsafe"
    """Fixable with `--unsafe-fixes`: strides of outputs, or the precision of arithmetic, change on purpose."""
    NOT_FIXABLE = "not_fixable"


@dataclass(frozen=True, slots=True)
class SourceEdit:
    """The bytes of a file from `start` up to `end`, replaced by `text`. Lines and columns count from 1, columns in code
    points."""

    file: str
    start: Count
    end: Count
    text: str
    start_line: Count
    start_column: Count
    end_line: Count
    end_column: Count


@dataclass(frozen=True, slots=True)
class FixOffer:
    """The change of the source that would fix a finding, or the reason why there is none."""

    fixability: Fixability
    reason: str = ""
    """Why it is not fixable; empty if it is."""
    edits: tuple[SourceEdit, ...] = ()
    diff: str = ""
    """The hunks of the change as a unified diff, without the files' names."""
    fixer: Annotated[str, NullFor("")] = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One layout problem at one call site, with its fix."""

    rule: str
    title: str
    severity: Severity
    site: CallSite
    nodes: tuple[str, ...]
    count_per_step: Count | None
    """Null if it is not known per step."""
    bytes_per_step: Count | None
    """Traffic (read + written) that the fix saves at most."""
    saving: Saving
    effort: Effort
    risk: Risk
    fix: str
    confidence: Annotated[float, Interval(ge=0, le=1)]
    evidence: tuple[Evidence, ...] = ()
    basis: Basis = Basis.PREDICTED
    """`observed` if a real step showed the problem, `predicted` if it was derived from the graph."""
    copies: tuple[Copy, ...] = ()
    """The layout copies that the finding answers for; each copy belongs to one finding."""
    graph_id: Annotated[str, NullFor("")] = ""
    modules: tuple[str, ...] = ()
    """All module paths of the call site."""
    offer: FixOffer | None = None
    """What `frx fix` can do; null in advice that was not made from source, or by an older version."""

    @property
    def rests_on_times(self) -> bool:
        """True if the saving was computed from the times of operators."""
        return any(fact.source == TIMED_OPERATORS for fact in self.evidence)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something that was examined and left alone, with the reason. Examples are a graph that could not be captured, a
    rule that needs an unknown fact, and a rewrite that cannot apply."""

    subject: str
    reason: str
    nodes: tuple[str, ...] = ()
    site: CallSite | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rewrite bound to the operators `nodes` of one graph of an inner compiler; `choices`, if the rewrite has any,
    gives the new form of each. `predicted_seconds` is the saving per run of the graph: the price of the graph before
    the rewrite less that after it, both as the inner compiler runs them. `run_seconds` is the price of a run without
    any rewrite."""

    rewrite: str
    graph_id: str
    nodes: tuple[str, ...]
    choices: tuple[str, ...] = ()
    predicted_seconds: float | None = None
    run_seconds: float | None = field(default=None, compare=False)
