"""Label the bottlenecks of a run, from its own record and a profiler's trace.

The thresholds are the published ones in `frx_graph/analyzers/timeline/labels.py`. Events show the whole run from the
host. A profiler sees devices, but only a part of the run; `_OF_TRACES` lists the labels that it judges better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from frx_graph.analyzers.run.figures import ScopeFigures
from frx_graph.analyzers.run.steps import Activity
from frx_graph.analyzers.timeline.host_time import FEWEST_STEPS
from frx_graph.analyzers.timeline.labels import (
    CHANGES,
    COPY_TIME,
    FEWEST_CHANGES,
    FEWEST_KERNELS,
    HOST_BOUND,
    IDLE,
    INPUT_WAIT,
    INSUFFICIENT,
    LEAST_BUSY,
    MEMORY,
    SMALL_KERNEL_US,
    SMALL_KERNELS,
    SYNC_WAIT,
    UNPRICED,
    Answer,
    RunLabel,
    judge_share,
    make_absent,
    make_undecidable,
    sort_labels,
)
from frx_graph.passes import confidence

_OF_TRACES = frozenset(
    {
        *("copy_bound", "sync_bound", "launch_bound", "host_bound", "communication_bound", "layout_churn"),
        "underutilized_gpu",
    }
)
"""Labels that a profiler judges better: they depend on the device's work at the same time."""


def label_run(figures: ScopeFigures, of_trace: Sequence[RunLabel]) -> tuple[RunLabel, ...]:
    """Return all labels in the order of `sort_labels`. `of_trace` are a profiler's, if there is one."""
    own: dict[str, RunLabel] = {}
    for name, judge in _RULES.items():
        own[name] = judge(name, figures, own)
    traced = {label.label: label for label in of_trace if label.label != INSUFFICIENT}
    chosen = {name: _choose_label(own[name], label) if name in own else label for name, label in traced.items()}
    found = own | chosen
    if found["input_bound"].answer is Answer.PRESENT and _is_undecided("input_bound", traced):
        # A trace that has no DataLoader cannot tell waiting for input from waiting for the host.
        seen = found["host_bound"].evidence
        found["host_bound"] = make_absent("host_bound", f"{seen}; the run waits for input meanwhile: input_bound")
    if not any(label.answer is Answer.PRESENT for label in found.values()):
        found[INSUFFICIENT] = _judge_unexplained(figures) or found[INSUFFICIENT]
    return sort_labels(found.values())


def _is_undecided(name: str, labels: Mapping[str, RunLabel]) -> bool:
    return name in labels and labels[name].answer is Answer.UNDECIDABLE


def _judge_unexplained(run: ScopeFigures) -> RunLabel | None:
    """Return a label for steps of which too much is in no recorded activity, while devices are not busy; else None."""
    share, busy = run.unexplained, run.busy
    if share is None or share < HOST_BOUND or (busy is not None and busy > 1 - HOST_BOUND):
        return None
    said = describe_unexplained(run)
    return RunLabel(INSUFFICIENT, Answer.PRESENT, share, confidence.MEASURED, said, symptom=True)


def describe_unexplained(run: ScopeFigures) -> str:
    """Describe the share of the step time that no record covers: within the marks of steps, or between them."""
    said = f"{run.unexplained or 0.0:.1%} of the step time is in no recorded activity"
    if run.undivided is None or run.between is None:
        return said
    within, between = f"{run.undivided:.1%}", f"{run.between:.1%}"
    if "0.0%" in (within, between):
        return f"{said}, all {'within' if between == '0.0%' else 'between'} the marked steps"
    return f"{said}: {within} within the marked steps, {between} between them"


def _choose_label(own: RunLabel, traced: RunLabel) -> RunLabel:
    """Choose between the label of the whole run and that of a profiler, and mention the other."""
    if Answer.UNDECIDABLE in (own.answer, traced.answer):
        return own if own.answer is not Answer.UNDECIDABLE or traced.answer is Answer.UNDECIDABLE else traced
    first, second = (traced, own) if own.label in _OF_TRACES else (own, traced)
    if first.answer is second.answer:
        return first
    whose = "the record of the whole run" if second is own else "the profiled part of it"
    sure = min(first.confidence, confidence.MODELLED)
    return replace(first, confidence=sure, evidence=f"{first.evidence} ({whose} says otherwise: {second.evidence})")


def _judge_stall(name: str, run: ScopeFigures, _: Mapping[str, RunLabel]) -> RunLabel:
    activity, line, text, unknown = _STALLS[name]
    worst = run.find_worst(activity)
    if worst is None:
        if name == "input_bound" and run.between:
            unknown += f"; {run.between:.1%} of the time passes between steps"
        return make_undecidable(name, unknown if run.timed else "no step was timed")
    process, share = worst
    several = len({step.process for step in run.timed}) > 1
    who = f", in process {process}, the one that does most" if several else ""
    workers = f", with {_describe_workers(run)}" if name == "input_bound" and run.loader_workers is not None else ""
    said = f"{text} {share:.1%} of the step time{who}{workers}"
    if share >= line and run.busy is not None and run.busy > 1 - IDLE:
        return make_absent(name, f"{said}, but devices are busy {run.busy:.1%} of the time: they have work meanwhile")
    return judge_share(name, share, line, said)


def _describe_workers(run: ScopeFigures) -> str:
    """Describe the workers that load batches."""
    count = run.loader_workers
    workers = "no worker processes" if not count else "1 worker process" if count == 1 else f"{count} worker processes"
    cores = run.processors
    return workers if cores is None else f"{workers} on {cores} core{'' if cores == 1 else 's'}"


def _judge_memory_pressure(name: str, run: ScopeFigures, _: Mapping[str, RunLabel]) -> RunLabel:
    share = run.peak_memory
    if share is None:
        return make_undecidable(name, "no sample says how much of a device's memory was taken")
    said = f"{share:.1%} of a device's memory is taken at most"
    return judge_share(name, share, MEMORY, said, price=UNPRICED)


def _judge_shape_instability(name: str, run: ScopeFigures, _: Mapping[str, RunLabel]) -> RunLabel:
    shapes = run.shapes
    if shapes is None:
        few = f"the shapes of fewer than {FEWEST_STEPS} batches were recorded"
        return make_undecidable(name, few if run.steps else "no step was recorded")
    said = f"{shapes.changes} of {shapes.steps - 1} steps have a batch of other shapes than the step before"
    if shapes.share >= CHANGES and shapes.changes < FEWEST_CHANGES:
        return make_absent(name, f"{said}: as the last batch of a data set makes")
    return judge_share(name, shapes.share, CHANGES, said, price=UNPRICED)


def _judge_gpu_utilization(name: str, run: ScopeFigures, _: Mapping[str, RunLabel]) -> RunLabel:
    busy = run.sampled_busy
    if busy is None:
        return make_undecidable(name, "no sample says how busy a device was")
    said = f"devices are busy {busy:.1%} of the time, by {sum(device.samples for device in run.devices)} samples"
    if busy >= LEAST_BUSY:
        return make_absent(name, f"{said}; not below {LEAST_BUSY:.0%}")
    return RunLabel(name, Answer.PRESENT, 1 - busy, confidence.MEASURED, said, symptom=True)


def _judge_launch_bound(name: str, run: ScopeFigures, others: Mapping[str, RunLabel]) -> RunLabel:
    """Conclude from an idle device without another explanation: only a trace shows why kernels waited."""
    known = run.kernels
    if known is None or known.kernels is None or known.median_kernel_us is None or known.small_kernels is None:
        return make_undecidable(name, "no profiler recorded kernels")
    if known.kernels < FEWEST_KERNELS:
        return make_undecidable(name, f"{known.kernels} kernels are too few to tell")
    said = (
        f"a profiler saw {known.kernels:,} kernels, half of them shorter than {known.median_kernel_us:.3g} us; "
        f"{known.small_kernels:.0%} take less than {SMALL_KERNEL_US:g} us"
    )
    if known.median_kernel_us >= SMALL_KERNEL_US or known.small_kernels < SMALL_KERNELS:
        return make_absent(name, f"{said}: they are not small")
    if others["shape_instability"].answer is Answer.PRESENT:
        return make_absent(name, f"{said}, but shapes change, which costs time by itself")
    stall = next((one for one in _STALLS if others[one].answer is Answer.PRESENT), None)
    if stall is not None:
        return make_absent(name, f"{said}, but the device waits since the run is {stall}")
    busy = run.sampled_busy
    if busy is None:
        return make_undecidable(name, f"{said}, but no sample says how busy the device was")
    if busy >= LEAST_BUSY:
        return make_absent(name, f"{said}, but devices are busy {busy:.1%} of the time")
    stable = others["shape_instability"].answer is Answer.ABSENT
    said += f"; devices are busy {busy:.1%} of the time, and nothing else explains that"
    sure = confidence.MODELLED if stable else confidence.ASSUMED
    return RunLabel(name, Answer.PRESENT, (1 - busy) * known.small_kernels, sure, said)


def _judge_host_bound(name: str, run: ScopeFigures, others: Mapping[str, RunLabel]) -> RunLabel:
    """Conclude from an idle device without another explanation: only a trace shows what the host did meanwhile."""
    busy = run.sampled_busy
    if busy is None:
        return make_undecidable(name, "no sample says how busy a device was")
    said = f"devices are idle {1 - busy:.1%} of the time, by samples"
    if 1 - busy < HOST_BOUND:
        return make_absent(name, f"{said}, below {HOST_BOUND:.0%}")
    cause = next((one for one in (*_STALLS, "launch_bound") if others[one].answer is Answer.PRESENT), None)
    if cause is not None:
        return make_absent(name, f"{said}, since the run is {cause}")
    return RunLabel(name, Answer.PRESENT, 1 - busy, confidence.ASSUMED, f"{said}, and no recorded wait explains it")


def _judge_telemetry(name: str, run: ScopeFigures, _: Mapping[str, RunLabel]) -> RunLabel:
    recorded = {
        "steps were timed": run.timed,
        "a profiler recorded a part of the run": run.trace is not None,
        "samples say how busy a device was": run.sampled_busy is not None,
    }
    if known := [said for said, there in recorded.items() if there]:
        return make_absent(name, f"enough was recorded: {', and '.join(known)}")
    said = "no step was timed, and no sample says how busy a device was"
    return RunLabel(name, Answer.PRESENT, 1.0, confidence.MEASURED, said, symptom=True)


_STALLS = {
    "input_bound": (
        Activity.LOADER,
        INPUT_WAIT,
        "the program waits for its DataLoader during",
        "no wait for a DataLoader was recorded",
    ),
    "copy_bound": (Activity.H2D, COPY_TIME, "copies from the host take", "no copy from the host was recorded"),
    "sync_bound": (
        Activity.SYNC,
        SYNC_WAIT,
        "the program waits for devices during",
        "no wait for a device was recorded",
    ),
}
_RULES: Mapping[str, Callable[[str, ScopeFigures, Mapping[str, RunLabel]], RunLabel]] = {
    **dict.fromkeys(_STALLS, _judge_stall),
    "memory_pressure": _judge_memory_pressure,
    "shape_instability": _judge_shape_instability,
    "underutilized_gpu": _judge_gpu_utilization,
    "launch_bound": _judge_launch_bound,
    "host_bound": _judge_host_bound,
    INSUFFICIENT: _judge_telemetry,
}
"""Judges in this order: the last ones conclude from time that the labels before them do not explain."""
