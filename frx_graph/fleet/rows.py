"""Build the rows of a run: the columns of the tables, with only values that a table can hold.

Names went through `clean_line`; shares are 0..1, numbers finite. Impossible and unrecorded values are null.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

from frx_graph.analyzers.run.steps import Scope
from frx_graph.analyzers.timeline.labels import REMOVABLE, Answer
from frx_graph.errors import EvidenceError
from frx_graph.reports.render.source_path import cut_path
from frx_graph.reports.runs.run_document import RunResult, ScopePart, StrideChangePart
from frx_graph.reports.runs.trace_document import TraceResult
from frx_graph.support.plain_text import NAME_LIMIT, clean_line

MOST_ROWS = 1000
"""Findings of one run, and as many labels and cards, that become rows: ten times as many as a large program has."""
_LARGEST = 1 << 53
"""Largest whole number that is believed; JSON numbers cannot hold all larger ones."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run. `seconds` is the total of all timed steps of all processes; `digest` covers the analysed files."""

    place: str
    run_id: str
    digest: str
    frx_version: str
    anew: bool
    steps: int
    seconds: float | None
    bottleneck: str | None
    confidence: float | None
    traced: bool
    rows_left_out: int


@dataclass(frozen=True, slots=True)
class LabelRow:
    """One label of a run. `share` is its cost as a part of the time of all steps; null if unknown."""

    label: str
    answer: str
    symptom: bool
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRow:
    """One layout finding of a run.

    `site` identifies the place in the program. `share` is of the time of profiled steps; `bytes_per_step` are the bytes
    read and written needlessly.
    """

    rule: str
    site: str
    file: str | None = None
    line: int | None = None
    function: str | None = None
    module_path: str | None = None
    subject: str
    title: str
    share: float | None = None
    bytes_per_step: float | None = None


@dataclass(frozen=True, slots=True)
class AdviceRow:
    """One card of advice on a run. `share` is the largest part of the step time that it can save."""

    card: str
    title: str
    priority: str
    effort: str
    risk: str
    share: float | None


@dataclass(frozen=True, slots=True)
class ProblemRow:
    """A run that could not be read."""

    place: str
    reason: str


@dataclass(frozen=True, slots=True)
class RunRows:
    """All rows of one run."""

    run: RunRow
    labels: tuple[LabelRow, ...]
    findings: tuple[FindingRow, ...]
    advice: tuple[AdviceRow, ...]


def build_run_rows(result: RunResult, place: str, *, anew: bool) -> RunRows:
    """Return a run's rows, for the scope that `frx analyze` shows. Raises `EvidenceError` for an impossible count."""
    scope = result.get_scope(Scope.AUTO)
    if not 0 <= result.step_count < _LARGEST:
        raise EvidenceError(f"{place}: its summary counts {result.step_count} steps")
    labels = tuple(_iterate_labels(scope))
    findings = (*_iterate_trace_findings(result.trace), *map(_build_stride_row, scope.layout_findings))
    advice = tuple(_iterate_advice(scope))
    diagnosis = scope.diagnosis
    return RunRows(
        run=RunRow(
            place=cut_path(place, NAME_LIMIT),
            run_id=clean_line(result.run_id),
            digest=_compute_digest(result),
            frx_version=clean_line(result.frx_version, 40),
            anew=anew,
            steps=result.step_count,
            seconds=_sum_seconds(result),
            bottleneck=diagnosis.user_facing_bottleneck and clean_line(diagnosis.user_facing_bottleneck, 80),
            confidence=_check_share(diagnosis.confidence),
            traced=result.trace is not None,
            rows_left_out=sum(max(0, len(rows) - MOST_ROWS) for rows in (labels, findings, advice)),
        ),
        labels=labels[:MOST_ROWS],
        findings=findings[:MOST_ROWS],
        advice=advice[:MOST_ROWS],
    )


def _compute_digest(result: RunResult) -> str:
    """Return a digest that is equal for a run under two names, such as its folder and its zip."""
    # The analysed files, or the result if no file remains.
    files = [f"{source.role}\0{source.path}\0{source.sha256}" for source in result.sources]
    text = "\n".join(sorted(files)) if files else result.model_dump_json()
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def _sum_seconds(result: RunResult) -> float | None:
    """Return the time of all timed steps; None if no step is timed, or a process with steps has no time."""
    times = [_multiply_finite(process.steps, process.step_ms) for process in result.run.run_summary.processes]
    return math.fsum(filter(None, times)) / 1e3 if times and None not in times else None


def _iterate_labels(scope: ScopePart) -> Iterator[LabelRow]:
    for label in {one.label: one for one in scope.labels}.values():
        costs = label.answer is Answer.PRESENT and label.label in REMOVABLE
        yield LabelRow(
            label=clean_line(label.label, 80),
            answer=label.answer.value,
            symptom=label.symptom,
            share=_check_share(label.score) if costs else None,
        )


def _iterate_advice(scope: ScopePart) -> Iterator[AdviceRow]:
    for card in {one.id: one for one in scope.diagnosis.recommendations}.values():
        yield AdviceRow(
            card=clean_line(card.id, 80),
            title=clean_line(card.title),
            priority=card.priority,
            effort=clean_line(card.effort, 20),
            risk=clean_line(card.risk, 20),
            share=_convert_speedup(card.estimated_speedup_pct_max),
        )


def _iterate_trace_findings(trace: TraceResult | None) -> Iterator[FindingRow]:
    if trace is None:
        return
    steps, span_ms = len(trace.window.steps), _multiply_finite(max(1, len(trace.devices)), trace.window.span_ms)
    for work in trace.layout:
        time, moved, site = _multiply_finite(1, work.total_ms), _multiply_finite(1, work.bytes), work.site
        yield FindingRow(
            rule=clean_line(work.rule, 20),
            site=clean_line(work.fingerprint, 80),
            file=None if site is None else clean_line(site.file),
            line=None if site is None or not 0 < site.line < _LARGEST else site.line,
            function=None if site is None else clean_line(site.function),
            module_path=None if site is None else clean_line(site.module_path) or None,
            subject=clean_line(work.operator),
            title=clean_line(work.title),
            share=_check_share(time / span_ms) if time is not None and span_ms else None,
            bytes_per_step=moved / steps if moved is not None and steps else None,
        )


def _build_stride_row(change: StrideChangePart) -> FindingRow:
    # The record does not show how much copying this causes.
    name = clean_line(change.tensor)
    title = f"The strides of {'input' if change.of == 'batch' else 'parameter'} `{name}` change between steps"
    return FindingRow(rule=change.rule, site=f"{change.of} {name}", subject=name, title=title)


def _convert_speedup(faster_pct: float | None) -> float | None:
    """Return the part of the time that a speed-up by this percentage saves."""
    if faster_pct is None or not math.isfinite(faster_pct) or faster_pct < 0:
        return None
    return faster_pct / (100 + faster_pct)


def _check_share(value: float | None) -> float | None:
    return value if value is not None and 0 <= value <= 1 else None


def _multiply_finite(count: int, value: float | None) -> float | None:
    """Return `count` times `value`; None unless that is a possible measurement."""
    if value is None or not 0 <= count < _LARGEST or not 0 <= value < _LARGEST:
        return None
    return float(count * value)
