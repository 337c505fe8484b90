"""Turn labels into one diagnosis with its cause, confidence, and reasons against the others.

An idle device often has the highest score, but is a symptom: a known cause is reported instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from frx_graph.analyzers.kernels.recommendations import Recommendation, recommend_cards
from frx_graph.analyzers.run.figures import ScopeFigures
from frx_graph.analyzers.run.labels import describe_unexplained
from frx_graph.analyzers.run.steps import Activity
from frx_graph.analyzers.timeline.labels import (
    HOST_BOUND,
    INPUT_WAIT,
    INSUFFICIENT,
    UNPRICED,
    Answer,
    RunLabel,
    build_bottleneck,
)
from frx_graph.passes import confidence

FEW_STEPS = 3
"""With fewer steps, a single unusual one decides."""
LEAST_IN_MODEL = 0.5
"""Share of the step time from which the model's own work takes most of it."""
BUSY_PROCESSORS = 0.7
"""Share of the processors from which workers take time from a model on the CPU; as in `rec_feed_the_device`."""
_MODEL_PARTS = (Activity.FORWARD, Activity.BACKWARD, Activity.OPTIMIZER)
CLOSE = 0.05
"""Smaller score differences may reverse in the next run: step times of an undisturbed run vary by some percent."""
_METRICS_OF_DEVICES = frozenset(
    [
        "gpu_busy_pct",
        "peak_memory_pct",
        "exposed_h2d_pct",
        "sync_wait_pct",
        "idle_after_sync_pct",
        "host_bound_idle_pct",
    ]
)
"""Metrics that a program without a device does not have."""


@dataclass(frozen=True, slots=True)
class WhyNot:
    """A label that is not the diagnosis, and the reason."""

    label: str
    answer: Answer
    reason: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A diagnosis. `primary` is the label of the highest score, including symptoms. `user_facing` is the cause with the
    highest cost, or else the symptom. None means that no bottleneck is known. `confidence` is 0..1, None without a
    label."""

    primary: RunLabel | None
    user_facing: RunLabel | None
    confidence: float | None
    reason: str
    evidence: tuple[str, ...]
    why_not: tuple[WhyNot, ...]
    recommendations: tuple[Recommendation, ...]


def determine_diagnosis(figures: ScopeFigures, labels: Sequence[RunLabel]) -> Diagnosis:
    """Diagnose from all `labels`, in the order of `run_labels`."""
    present = [label for label in labels if label.answer is Answer.PRESENT]
    told = [label for label in present if label.label != INSUFFICIENT] or present
    primary = max(told, key=lambda label: label.score, default=None)
    user_facing = next(iter(told), None)
    values, known = figures.collect_values(), any(not label.symptom for label in present)
    sure, reason = _explain_diagnosis(figures, user_facing, told[1:])
    return Diagnosis(
        primary=primary,
        user_facing=user_facing,
        confidence=sure,
        reason=reason,
        evidence=_collect_evidence(figures, user_facing, told),
        why_not=tuple(_explain_rejection(label) for label in labels if label is not user_facing),
        # Advice on a symptom ranks behind advice on its known cause.
        recommendations=_keep_measurable(
            figures,
            recommend_cards(
                [build_bottleneck(label, values, UNPRICED if label.symptom and known else 1.0) for label in present]
            ),
        ),
    )


def _keep_measurable(figures: ScopeFigures, found: Sequence[Recommendation]) -> tuple[Recommendation, ...]:
    """Return the cards without checks that need a device, if there is none; a card without checks is left out."""
    if figures.uses_device:
        return tuple(found)
    kept = (
        replace(one, checks=tuple(check for check in one.checks if check.step.value not in _METRICS_OF_DEVICES))
        for one in found
    )
    return tuple(one for one in kept if one.checks)


def _explain_diagnosis(
    figures: ScopeFigures, found: RunLabel | None, others: Sequence[RunLabel]
) -> tuple[float | None, str]:
    if found is None:
        said = describe_model_work(figures.means, figures.uses_device, figures.busy)
        return None, f"no recorded activity holds the run back{said}{_suggest_recording(figures)}"
    sure, reasons = found.confidence, []
    if found.label == INSUFFICIENT:
        return sure, f"too little was recorded to name a bottleneck{_suggest_recording(figures)}"
    rivals = [label for label in others if not label.symptom]
    if not rivals:
        reasons.append("the only cause that was found")
    elif found.score - rivals[0].score < CLOSE:
        sure = min(sure, confidence.MODELLED)
        reasons.append(f"{rivals[0].label} costs about as much")
    else:
        reasons.append(f"it costs most; next is {rivals[0].label}")
    if figures.dominant_stall == found.label:
        reasons.append("of all waits it takes most of the step time")
    if figures.steps and len(figures.timed) < FEW_STEPS:
        sure = min(sure, confidence.ASSUMED)
        reasons.append(f"but {len(figures.timed)} steps are few to tell by")
    return sure, "; ".join(reasons)


def describe_model_work(shares: Mapping[Activity, float], uses_device: bool, busy: float | None) -> str:
    """Describe the model's own work, if it takes most of the step time; else return "". For a program without a device,
    the host's times tell that, `shares` of the step time; otherwise the `busy` share of devices does."""
    if uses_device:
        return f": devices are busy {busy:.0%} of the time" if busy is not None and busy > 1 - HOST_BOUND else ""
    known = {part: shares[part] for part in _MODEL_PARTS if shares.get(part)}
    if sum(known.values()) < LEAST_IN_MODEL:
        return ""
    parts = ", ".join(f"{part} {share:.1%}" for part, share in known.items())
    return f": the model's own work takes the time ({parts})"


def _suggest_recording(figures: ScopeFigures) -> str:
    """Mention a likely bottleneck that was not recorded."""
    if Activity.LOADER in figures.means or not figures.between or figures.between < INPUT_WAIT:
        return ""
    return (
        f", but {figures.between:.1%} of the time passes between steps, where a loop waits for its batch, and no such "
        "wait was recorded: use `frx_graph.instrument_dataloader(loader)`"
    )


def _collect_evidence(figures: ScopeFigures, found: RunLabel | None, told: Sequence[RunLabel]) -> tuple[str, ...]:
    lines = []
    if found is not None:
        lines += [found.evidence, *(label.evidence for label in told if label.symptom and label is not found)]
        if figures.unexplained is not None and figures.means and found.label != INSUFFICIENT:
            lines.append(describe_unexplained(figures))
    waits = found is not None and found.label == "input_bound"
    if waits or (found is None and figures.loader_workers):
        lines += _describe_contention(figures)
    return tuple(lines)


def _describe_contention(figures: ScopeFigures) -> Iterator[str]:
    """Describe the processors that loader workers share with a model on the CPU, if few are left."""
    busy, count = figures.processors_busy, figures.loader_workers
    if busy is None or busy < BUSY_PROCESSORS or count is None:
        return
    said = f"the program keeps {busy:.0%} of the processors busy"
    workers = "1 loader worker competes" if count == 1 else f"{count} loader workers compete"
    yield (
        f"{said}: {workers} with the model for them"
        if count
        else f"{said}: loader workers would share them with the model"
    )


def _explain_rejection(label: RunLabel) -> WhyNot:
    why = "" if label.answer is not Answer.PRESENT else "a symptom: " if label.symptom else "costs less: "
    return WhyNot(label.label, label.answer, f"{why}{label.evidence}")
