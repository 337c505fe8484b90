"""Reconcile all layers: diagnose each kernel, list findings that no other layer supports, and name missing evidence."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from frx_graph.analyzers.layers import Layers
from frx_graph.analyzers.reconcile import DIAGNOSES
from frx_graph.analyzers.reconcile.confidence import Confidence, Judgement, Standing, judge
from frx_graph.analyzers.reconcile.matched_kernels import MatchedKernel, match_kernels
from frx_graph.analyzers.reconcile.missing_evidence import MissingEvidence, find_missing_evidence
from frx_graph.analyzers.reconcile.signal import DiagnosisRule, Layer, Signal

_NO_DIAGNOSIS = "no diagnosis of several layers covers it"
_OF_THE_RUN = "it is of the whole run, and no kernel's"
_OTHER_CAUSES = "it has several causes, and no other layer says which"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A diagnosis of one kernel, with signals for and against it, strongest first."""

    rule: DiagnosisRule
    kernel: MatchedKernel
    confidence: Confidence
    agreeing: tuple[Signal, ...]
    contradicting: tuple[Signal, ...]

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Return the layers that agree."""
        return tuple(layer for layer in Layer if any(one.layer is layer for one in self.agreeing))


class Why(enum.StrEnum):
    """Reasons why no diagnosis includes a layer's finding."""

    REFUTED = "refuted"
    """A more reliable layer contradicts it."""
    DISPUTED = "disputed"
    """An equally reliable layer contradicts it."""
    SYMPTOM = "symptom"
    """It has several possible causes, and no layer identifies one."""
    ONE_LAYER = "one_layer"
    """No diagnosis of several layers covers it."""


@dataclass(frozen=True, slots=True)
class Unreconciled:
    """A finding without support, or contradicted. `diagnosis` is the unsupported diagnosis, None if only its layer can
    make it; `kernel` is None for the whole run."""

    why: Why
    layer: Layer
    label: str
    kernel: MatchedKernel | None
    evidence: str
    reason: str
    diagnosis: DiagnosisRule | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """Diagnoses, the surest first, then those with the most time."""

    diagnoses: tuple[Diagnosis, ...]
    unreconciled: tuple[Unreconciled, ...]
    kernels: tuple[MatchedKernel, ...]
    layers_available: tuple[Layer, ...]
    missing: tuple[MissingEvidence, ...]


def reconcile(layers: Layers) -> Reconciliation:
    """Reconcile all available layers."""
    kernels = match_kernels(layers)
    diagnoses: list[Diagnosis] = []
    unreconciled: list[Unreconciled] = []
    missing: list[MissingEvidence] = []
    for kernel in kernels:
        findings = tuple(_list_findings(kernel))
        labels = {(one.layer, one.label) for one in findings}
        told: set[tuple[Layer, str]] = set()
        for rule in DIAGNOSES:
            signals = tuple(rule.signals(kernel))
            judgement = judge(signals)
            # Counters that mean nothing by themselves are not findings.
            if judgement is None or _is_silent(judgement, labels):
                continue
            told |= {(one.layer, one.label) for one in signals if one.supports}
            if judgement.confidence is not None:
                agreeing, contradicting = judgement.agreeing, judgement.contradicting
                diagnoses.append(Diagnosis(rule, kernel, judgement.confidence, agreeing, contradicting))
            unreconciled += _list_unheld(rule, kernel, judgement, labels)
            missing += find_missing_evidence(rule, kernel, signals, judgement, layers)
        unreconciled += (one for one in findings if (one.layer, one.label) not in told)
    for label in layers.trace.run.present if layers.trace is not None else ():
        one = Unreconciled(Why.ONE_LAYER, Layer.PROFILER, label.label, None, label.evidence, _OF_THE_RUN)
        unreconciled.append(one)
    # Sorting keeps the order of kernels, and of diagnoses of one kernel.
    diagnoses.sort(key=lambda one: -one.confidence)
    unreconciled.sort(key=lambda one: list(Why).index(one.why))
    missing.sort(key=lambda one: -(one.confidence or 0))
    known = {Layer.SOURCE: layers.source, Layer.PTX: layers.ptx, Layer.NCU: layers.ncu, Layer.PROFILER: layers.trace}
    available = tuple(layer for layer, found in known.items() if found is not None)
    return Reconciliation(tuple(diagnoses), tuple(unreconciled), kernels, available, tuple(missing))


_WHY = {Standing.REFUTED: Why.REFUTED, Standing.DISPUTED: Why.DISPUTED, Standing.UNSUPPORTED: Why.SYMPTOM}


def _is_silent(judgement: Judgement, labels: set[tuple[Layer, str]]) -> bool:
    return judgement.standing is Standing.UNSUPPORTED and not any(
        (one.layer, one.label) in labels for side in judgement.sides for one in side.agreeing
    )


def _list_unheld(
    rule: DiagnosisRule, kernel: MatchedKernel, judgement: Judgement, labels: set[tuple[Layer, str]]
) -> Iterator[Unreconciled]:
    """Yield findings of sides that do not hold, unless a side that holds has them."""
    agreeing = judgement.agreeing
    for side in judgement.sides:
        if (why := _WHY.get(side.standing)) is None:
            continue
        own = [one for one in side.contradicting if one.about == side.about] or side.contradicting
        against = "; ".join(f"{one.layer}: {one.evidence}" for one in own)
        for one in side.agreeing:
            is_finding = one.alone or (one.layer, one.label) in labels
            if one.about == side.about and one not in agreeing and is_finding:
                reason = against if why is not Why.SYMPTOM else _OTHER_CAUSES
                yield Unreconciled(why, one.layer, one.label, kernel, one.evidence, reason, rule, one.line)


def _list_findings(kernel: MatchedKernel) -> Iterator[Unreconciled]:
    """Yield all findings of a kernel, as if there were no diagnosis."""

    def make_finding(layer: Layer, label: str, evidence: str, line: int | None = None) -> Unreconciled:
        return Unreconciled(Why.ONE_LAYER, layer, label, kernel, evidence, _NO_DIAGNOSIS, line=line)

    for finding in kernel.source.findings if kernel.source is not None else ():
        yield make_finding(Layer.SOURCE, finding.card.id, finding.seen, finding.line)
    for static in kernel.ptx:
        yield from (make_finding(Layer.PTX, label.label, label.evidence) for label in static.labels)
    for labelled in kernel.ncu:
        yield from (make_finding(Layer.NCU, label.label, label.evidence) for label in labelled.labels)
