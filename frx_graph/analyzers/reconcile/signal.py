"""Define the signals of layers for or against a diagnosis, and the record of a diagnosis."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from frx_graph.analyzers.kernels.analysis import LabelledKernel
from frx_graph.analyzers.kernels.labels import KernelLabel
from frx_graph.analyzers.kernels.ptx_analysis import PtxLabel, StaticKernel
from frx_graph.analyzers.reconcile.matched_kernels import MatchedKernel, RunKernel, SourceKernel
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
class Weight:
    """Weight of a finding or label in a diagnosis, with the same fields as a signal."""

    grade: Grade
    about: str = EVERYTHING
    alone: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisRule:
    """One diagnosis. `told_by` are the layers that can give more than a hint; `decides` lists the metrics that Nsight
    Compute must measure. `findings` weighs rules of CUDA source, and `labels` those of PTX and counters, by name. The
    functions add signals of their layer; that of counters also gets the kernel's source."""

    name: str
    title: str
    told_by: frozenset[Layer]
    decides: Preset
    findings: Mapping[str, Weight] = field(compare=False)
    labels: Mapping[str, Weight] = field(default_factory=dict, compare=False)
    inspect_source: Callable[[SourceKernel], Iterable[Signal]] = lambda _source: ()
    inspect_ptx: Callable[[StaticKernel], Iterable[Signal]] = lambda _kernel: ()
    inspect_counters: Callable[[LabelledKernel, SourceKernel | None], Iterable[Signal]]
    inspect_run: Callable[[RunKernel], Iterable[Signal]] = lambda _run: ()

    def signals(self, kernel: MatchedKernel) -> Iterator[Signal]:
        """Yield the signals of each layer."""
        if kernel.source is not None:
            for found in kernel.source.findings:
                if (weight := self.findings.get(found.card.id)) is not None:
                    yield _weigh(Layer.SOURCE, found.card.id, found.seen, weight, found.line)
            yield from self.inspect_source(kernel.source)
        for static in kernel.ptx:
            yield from self._weigh_labels(Layer.PTX, static.labels)
            yield from self.inspect_ptx(static)
        for labelled in kernel.ncu:
            yield from self._weigh_labels(Layer.NCU, labelled.labels)
            yield from self.inspect_counters(labelled, kernel.source)
        for run in kernel.runs:
            yield from self.inspect_run(run)

    def _weigh_labels(self, layer: Layer, labels: Sequence[KernelLabel | PtxLabel]) -> Iterator[Signal]:
        for one in labels:
            if (weight := self.labels.get(one.label)) is not None:
                yield _weigh(layer, one.label, one.evidence, weight)


def _weigh(layer: Layer, label: str, evidence: str, weight: Weight, line: int | None = None) -> Signal:
    return Signal(layer, label, True, weight.grade, evidence, weight.about, weight.alone, line)


def signal_counter(label: str, evidence: str, *, supports: bool, about: str = EVERYTHING, alone: bool = True) -> Signal:
    """Return a Nsight Compute counter as a signal."""
    return Signal(Layer.NCU, label, supports, Grade.MEASURED, evidence, about, alone)
