"""Define the signals of layers for or against a diagnosis, and the record of a diagnosis."""

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
    """Sources of evidence, from source code to runs."""

    SOURCE = "source"
    PTX = "ptx"
    NCU = "ncu"
    PROFILER = "profiler"
    """A trace of a run."""


class Grade(enum.IntEnum):
    """Weights of a signal."""

    HINT = 1
    """It often occurs with the defect, but also with other conditions."""
    CERTAIN = 2
    """It follows from the code, or from a kernel's name, but does not prove a cost."""
    COUNTED = 3
    """The assembler has counted it."""
    MEASURED = 4
    """The hardware has counted it while the kernel ran."""

    @property
    def label(self) -> GradeLabel:
        """Return the name in lower case."""
        return cast("GradeLabel", self.name.lower())


EVERYTHING = ""
"""Side of a signal that does not distinguish more than the diagnosis."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One statement by one layer about one kernel. `label` is its rule, label or counter; `about` is the side of the
    defect: a counter of loads says nothing about stores. A signal that is not `alone` makes no diagnosis by itself."""

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
    """One diagnosis. `told_by` are the layers that can give more than a hint; `decides` lists the metrics that Nsight
    Compute must measure."""

    name: str
    title: str
    signals: Callable[[MatchedKernel], Iterable[Signal]]
    told_by: frozenset[Layer]
    decides: Preset


def signal_source_findings(
    source: SourceKernel | None, grades: Mapping[str, Grade], about: str = EVERYTHING
) -> Iterator[Signal]:
    """Yield the findings of these rules for CUDA source."""
    for finding in source.findings if source is not None else ():
        grade = grades.get(finding.card.id)
        if grade is not None:
            yield Signal(Layer.SOURCE, finding.card.id, True, grade, finding.seen, about, line=finding.line)


def signal_label(layer: Layer, label: KernelLabel | PtxLabel, grade: Grade, about: str = EVERYTHING) -> Signal:
    """Return a label of PTX or Nsight Compute as a signal."""
    return Signal(layer, label.label, True, grade, label.evidence, about)


def signal_counter(label: str, evidence: str, *, supports: bool, about: str = EVERYTHING, alone: bool = True) -> Signal:
    """Return a Nsight Compute counter as a signal."""
    return Signal(Layer.NCU, label, supports, Grade.MEASURED, evidence, about, alone)
