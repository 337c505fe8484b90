"""What one layer says for or against a diagnosis, and what every diagnosis file offers to the registry."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from frx_graph.analyzers.kernels.labels import KernelLabel
from frx_graph.analyzers.kernels.ptx_analysis import PtxLabel
from frx_graph.analyzers.reconcile.matched_kernels import MatchedKernel, SourceKernel
from frx_graph.evidence.ncu.presets import Preset

GradeLabel = Literal["hint", "certain", "counted", "measured"]


class Layer(enum.StrEnum):
    """Where something is known from, from what is written to what has run."""

    SOURCE = "source"
    PTX = "ptx"
    NCU = "ncu"
    PROFILER = "profiler"
    """A trace of a run."""


class Grade(enum.IntEnum):
    """How much a signal weighs."""

    HINT = 1
    """It often goes with the defect, and with other things."""
    CERTAIN = 2
    """It follows from the code, or from a kernel's name; not that it costs anything."""
    COUNTED = 3
    """The assembler has counted the thing itself."""
    MEASURED = 4
    """The hardware has, while the kernel ran."""

    @property
    def label(self) -> GradeLabel:
        """In a word."""
        return cast("GradeLabel", self.name.lower())


EVERYTHING = ""
"""What a signal is about that knows no more than the diagnosis."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One word of one layer on one kernel. `label` is its rule, label or counter. `about` is which side of the defect
    it speaks of: a counter of loads says nothing of stores. One that is not `alone` makes no diagnosis by itself: it is
    what one would see, if another layer says why."""

    layer: Layer
    label: str
    supports: bool
    grade: Grade
    evidence: str
    about: str = EVERYTHING
    alone: bool = True
    line: int | None = None


@dataclass(frozen=True, slots=True)
class DiagnosisRule:
    """One diagnosis. `told_by` are the layers that can say it, or agree, with more than a hint; `decides` is what
    Nsight Compute has to measure for it."""

    name: str
    title: str
    signals: Callable[[MatchedKernel], Iterable[Signal]]
    told_by: frozenset[Layer]
    decides: Preset


def of_source(source: SourceKernel | None, grades: Mapping[str, Grade], about: str = EVERYTHING) -> Iterator[Signal]:
    """The findings of these rules of CUDA source."""
    for finding in source.findings if source is not None else ():
        grade = grades.get(finding.card.id)
        if grade is not None:
            yield Signal(Layer.SOURCE, finding.card.id, True, grade, finding.seen, about, line=finding.line)


def of_label(layer: Layer, label: KernelLabel | PtxLabel, grade: Grade, about: str = EVERYTHING) -> Signal:
    """A label of PTX or of Nsight Compute, as it is."""
    return Signal(layer, label.label, True, grade, label.evidence, about)


def counter(label: str, evidence: str, *, supports: bool, about: str = EVERYTHING, alone: bool = True) -> Signal:
    """What a counter of Nsight Compute says."""
    return Signal(Layer.NCU, label, supports, Grade.MEASURED, evidence, about, alone)
