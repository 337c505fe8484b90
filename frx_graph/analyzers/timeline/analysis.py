"""Analyse a trace: its timeline, labels and recommendations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frx_graph.analyzers.kernels.recommendations import Bottleneck, Recommendation, recommendations
from frx_graph.analyzers.timeline.labels import INSUFFICIENT, Answer, RunLabel, run_labels
from frx_graph.analyzers.timeline.timeline import Timeline, timeline
from frx_graph.analyzers.trace.analysis import TraceAnalysis
from frx_graph.records import Finding

_NAMED = 5
"""Kernels of a bottleneck that are named."""


@dataclass(frozen=True)
class RunAnalysis:
    """A timeline with all its labels, those that hold first."""

    timeline: Timeline
    labels: tuple[RunLabel, ...]
    recommendations: tuple[Recommendation, ...]

    @property
    def present(self) -> tuple[RunLabel, ...]:
        """Return the labels that hold."""
        return tuple(label for label in self.labels if label.answer is Answer.PRESENT)

    @property
    def primary(self) -> RunLabel | None:
        """Return the cause that costs most, or a symptom without a known cause; None if nothing is known."""
        return next((label for label in self.present if label.label != INSUFFICIENT), None)

    @property
    def symptom(self) -> RunLabel | None:
        """Return the symptom of the cause, if it is seen."""
        return next((label for label in self.present if label.symptom and label.label != INSUFFICIENT), None)


def analyse_run(analysis: TraceAnalysis, findings: Sequence[Finding]) -> RunAnalysis:
    """Analyse a trace; `findings` are those of `copy_findings` on it, in order."""
    run = timeline(analysis, findings)
    labels = run_labels(run)
    values = run.values()
    bottlenecks = [
        Bottleneck(
            label=label.label,
            score=label.score,
            evidence=(label.evidence,),
            kernels=_kernels(run, label),
            values=values,
            most_speedup_pct=label.most_speedup_pct,
            confidence=label.confidence,
        )
        for label in labels
        if label.answer is Answer.PRESENT
    ]
    return RunAnalysis(run, labels, recommendations(bottlenecks))


def _kernels(run: Timeline, label: RunLabel) -> tuple[str, ...]:
    if label.label != "layout_churn":
        return ()
    return tuple(dict.fromkeys(name for work in run.layout.work for name in work.kernels))[:_NAMED]
