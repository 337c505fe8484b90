"""Label the bottlenecks of a run from its timeline.

Each label is present, absent, or undecidable if the trace lacks the data. Thresholds come from the published label set
unless stated: 20 % of a step waiting for input, 15 % copying, 10 % waiting for devices, 35 % of a device used.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from frx_graph.analyzers.kernels.recommendations import Bottleneck
from frx_graph.analyzers.timeline.host_idle import HOST_WORK_TEXTS
from frx_graph.analyzers.timeline.host_time import FEWEST_STEPS
from frx_graph.evidence.trace.intervals import sum_spans
from frx_graph.passes import confidence
from frx_graph.passes.severity import MEDIUM_SHARE

if TYPE_CHECKING:
    from frx_graph.analyzers.timeline.analysis import Timeline
    from frx_graph.analyzers.timeline.launches import Launches

INSUFFICIENT = "insufficient_telemetry"
REMOVABLE = frozenset(
    {"input_bound", "copy_bound", "sync_bound", "communication_bound", "launch_bound", "host_bound", "layout_churn"}
)
"""Labels whose score is a part of the time without other work, so that a run cannot gain more."""
INPUT_WAIT = 0.20
COPY_TIME = 0.15
SYNC_WAIT = 0.10
LEAST_BUSY = 0.35
IDLE = 0.05
"""A host that waits while devices have work costs nothing, so this much device time must be lost with the wait. It is
half of the lowest threshold for waits, and well above usual idle time: 2 % in a trace whose queues never run dry."""
COMMUNICATION = 0.10
"""As for waiting, since exposed communication is a wait for other devices."""
LEAST_COMPUTING = 0.01
"""Share of the steps that operators take on the host; with less, the trace does not show the program's computation."""
MEMORY = 0.90
CHANGES = 0.30
"""Published thresholds for a device's memory, and for steps."""
FEWEST_CHANGES = 2
"""A single change comes from the last batch of a data set, or the first of another phase."""
LAYOUT = MEDIUM_SHARE
"""Share from which a layout finding counts as medium. No label with a known cost has a lower score."""
UNPRICED = LAYOUT / 2
"""Score of a problem whose cost the trace does not show, so that it ranks behind those with a known cost."""
HOST_BOUND = 0.20
"""As for input: the device has no work, because the host has not launched any."""
_TOLD_WORK = 0.05
"""Least share of the idle time for an activity of the host to be named."""
LONG_CALLS = 0.1
"""Share of the steps in one runtime function, as for waiting."""
_CALL = re.compile(r"(?:cu|cuda|hip)[A-Z]\w{,60}")
"""Functions of a device's runtime or driver."""
_OPERATOR = re.compile(r"[A-Za-z_]\w{,30}::\w{1,60}")
_NAMED = 3
"""Operators that are named for small kernels."""
SMALL_KERNELS = 0.5
STARVED = 0.5
"""Half of the kernels, so that the statement holds for most of them."""
SMALL_KERNEL_US = 10.0
"""Published threshold for a small kernel."""
FEWEST_KERNELS = 30
"""Fewest kernels for medians and shares: half of 30 is known to within 18 points, at two sigma."""


class Answer(enum.StrEnum):
    """Answers to a label."""

    PRESENT = "present"
    ABSENT = "absent"
    UNDECIDABLE = "undecidable"


@dataclass(frozen=True, slots=True)
class RunLabel:
    """One label. `score` is its share of the time, 0..1; at most `UNPRICED` if that is unknown, and 0 unless it is
    present. `evidence` is the observation, or the missing data. Another label causes a `symptom`."""

    label: str
    answer: Answer
    score: float
    confidence: float
    evidence: str
    symptom: bool = False

    @property
    def most_speedup_pct(self) -> float | None:
        """Highest speed-up in percent from removing it; None if unbounded."""
        return 100.0 * (1 / (1 - self.score) - 1) if self.label in REMOVABLE and self.score < 1 else None


def build_bottleneck(
    label: RunLabel, values: Mapping[str, float], price: float = 1.0, kernels: tuple[str, ...] = ()
) -> Bottleneck:
    """Return a label as a bottleneck that calls for advice, at `price` times its score."""
    return Bottleneck(
        label=label.label,
        score=price * label.score,
        evidence=(label.evidence,),
        kernels=kernels,
        values=values,
        most_speedup_pct=label.most_speedup_pct,
        confidence=label.confidence,
    )


def label_timeline(run: Timeline) -> tuple[RunLabel, ...]:
    """Return all labels: present ones first, by score; causes before symptoms."""
    return sort_labels(judge(name, run) for name, judge in _RULES.items())


def sort_labels(labels: Iterable[RunLabel]) -> tuple[RunLabel, ...]:
    """Sort labels: present ones first, by score; causes before symptoms."""
    order = [Answer.PRESENT, Answer.UNDECIDABLE, Answer.ABSENT]
    return tuple(sorted(labels, key=lambda one: (order.index(one.answer), one.symptom, -one.score, one.label)))


def judge_share(label: str, share: float, line: float, said: str, price: float = 1.0) -> RunLabel:
    """Judge a label by its share of time, 0..1: present from `line` on, at `price` times the share."""
    if share < line:
        return make_absent(label, f"{said}; below {line:.0%}")
    return _make_present(label, price * min(1.0, share), said)


def make_absent(label: str, said: str) -> RunLabel:
    """Return a label that is absent, with the reason."""
    return RunLabel(label, Answer.ABSENT, 0.0, confidence.MEASURED, said)


def make_undecidable(label: str, said: str) -> RunLabel:
    """Return a label that cannot be judged, and the missing data."""
    return RunLabel(label, Answer.UNDECIDABLE, 0.0, 0.0, said)


def _judge_input_bound(name: str, run: Timeline) -> RunLabel:
    share, busy, idle = run.loading_share, run.busy_share, run.idle_while_loading_share
    if share is None:
        if busy is not None and busy > 1 - INPUT_WAIT:
            return make_absent(name, f"no DataLoader is in the trace, and devices are busy {busy:.1%} of the time")
        return make_undecidable(name, "no DataLoader is in the trace: input that comes in another way is not seen")
    said = f"the program waits for its DataLoader {share:.1%} of the steps"
    if idle is not None:
        said += f", and a device is idle meanwhile {idle:.1%} of the time"
        if share >= INPUT_WAIT and idle < IDLE:
            return make_absent(name, f"{said}: they have work meanwhile")
    return judge_share(name, share, INPUT_WAIT, said)


def _judge_copy_bound(name: str, run: Timeline) -> RunLabel:
    share = run.exposed_copy_share
    if share is None:
        return make_undecidable(name, "no device did anything in this trace")
    said = f"copies from the host run {share:.1%} of the time with no kernel beside them"
    return judge_share(name, share, COPY_TIME, said)


def _judge_sync_bound(name: str, run: Timeline) -> RunLabel:
    waiting, after = run.waiting_share, run.idle_after_waits_share
    if waiting is None:
        return make_undecidable(name, "no call of a device runtime is in the trace")
    if after is None:
        return make_undecidable(name, "no device did anything in this trace, so what waiting costs is not known")
    said = f"the host waits for devices {waiting:.1%} of the steps, after which they are idle {after:.1%} of the time"
    if waiting < SYNC_WAIT:
        return make_absent(name, f"{said}; waiting is below {SYNC_WAIT:.0%}")
    if after < IDLE:
        return make_absent(name, f"{said}; the devices have work meanwhile, and hardly any idle time follows")
    return _make_present(name, after, said)


def _judge_communication_bound(name: str, run: Timeline) -> RunLabel:
    share = run.exposed_communication_share
    if share is None or (not run.devices and not run.host.collectives):
        return make_undecidable(name, "neither a device nor a collective is in the trace")
    if not run.devices and sum_spans(run.host.computing) < LEAST_COMPUTING * run.windows.host_ns:
        time_ms = run.host.collectives_ns / 1e6
        return make_undecidable(
            name, f"{time_ms:,.1f} ms of collectives, but hardly an operator that could have hidden them"
        )
    if run.devices and not any(device.communication_ns for device in run.devices):
        return make_absent(name, "no kernel communicates")
    said = f"communication runs {share:.1%} of the time with no computation beside it"
    return judge_share(name, share, COMMUNICATION, said)


def _judge_launch_bound(name: str, run: Timeline) -> RunLabel:
    known, idle = run.launches, run.host_bound_share
    if known is None or idle is None:
        return make_undecidable(name, "no kernel is in the trace")
    if known.kernels < FEWEST_KERNELS:
        return make_undecidable(name, f"{known.kernels} kernels are too few to tell")
    if not known.judged:
        return make_undecidable(name, "no launch is in the trace, so what kernels waited for is not known")
    small, starved, median_us = known.small / known.kernels, known.starved / known.judged, known.median_ns / 1e3
    count = f"{known.kernels} kernels" if known.per_step is None else f"{known.per_step:,.0f} kernels a step"
    said = (
        f"{count}, half of them shorter than {median_us:.3g} us; {small:.0%} take less than "
        f"{SMALL_KERNEL_US:g} us, {starved:.0%} were launched onto a stream that had run dry; a device is idle "
        f"{idle:.1%} of the time with no wait for input"
    )
    if known.small:
        said += f"; {_describe_small(known)}"
    if idle < HOST_BOUND:
        return make_absent(name, f"{said}, below {HOST_BOUND:.0%}")
    if median_us >= SMALL_KERNEL_US or small < SMALL_KERNELS:
        return make_absent(name, f"{said}: the kernels are not small")
    if starved < STARVED:
        return make_absent(name, f"{said}: most kernels were launched in time")
    return _make_present(name, idle, said)


def _describe_small(known: Launches) -> str:
    """Return where small kernels are launched: the part of the step with most of them, and the operators."""
    part, count = next(iter(known.small_parts.items()))
    said = f"{count / known.small:.0%} of the small ones are launched in the part '{part}'"
    # Names in traces are untrusted, and this text goes into briefs.
    named = [one for one in known.small_operators if _OPERATOR.fullmatch(one)][:_NAMED]
    return f"{said}, most by {', '.join(named)}" if named else said


def _judge_host_bound(name: str, run: Timeline) -> RunLabel:
    """Judge idle time that nothing else explains. Waits for input count here unless they are a bottleneck."""
    waits_for_input = _judge_input_bound("input_bound", run).answer is Answer.PRESENT
    idle = run.host_bound_share if waits_for_input else run.idle_share
    if idle is None:
        return make_undecidable(name, "no device did anything in this trace")
    said = f"devices are idle {idle:.1%} of the time"
    if idle < HOST_BOUND:
        return make_absent(name, f"{said}, below {HOST_BOUND:.0%}")
    if _judge_launch_bound("launch_bound", run).answer is Answer.PRESENT:
        return make_absent(name, f"{said}, since small kernels are launched too late: launch_bound")
    whole = sum(run.host_idle.values())
    doing = [
        f"{HOST_WORK_TEXTS[work]} ({time / whole:.0%})"
        for work, time in run.host_idle.items()
        if time >= _TOLD_WORK * whole
    ]
    if doing:
        said += f"; meanwhile the host {', '.join(doing)}"
    after = _judge_sync_bound("sync_bound", run)
    if after.answer is Answer.PRESENT and idle - after.score < HOST_BOUND:
        return make_absent(name, f"{said}. {after.score:.1%} of the time follow waits: sync_bound")
    return _make_present(name, idle - after.score, said)


def _judge_layout_churn(name: str, run: Timeline) -> RunLabel:
    share = run.layout_share
    if share is None:
        return make_undecidable(name, "no kernel is in the trace, and host libraries convert without saying so")
    whole = share * (run.kernel_share or 0.0)
    said = f"{share:.1%} of the time in which kernels run changes layouts, {whole:.1%} of all time"
    return judge_share(name, whole, LAYOUT, said)


def _judge_memory_pressure(name: str, run: Timeline) -> RunLabel:
    share = run.memory_share
    if share is None:
        return make_undecidable(name, "the trace does not say how much of a device's memory was allocated")
    said = f"tensors take {share:.1%} of a device's memory at most"
    return judge_share(name, share, MEMORY, said, price=UNPRICED)


def _judge_shape_instability(name: str, run: Timeline) -> RunLabel:
    shapes = run.shapes
    if shapes is None:
        return make_undecidable(name, f"shapes were not recorded in each of {FEWEST_STEPS} steps")
    said = f"{shapes.changes} of {shapes.steps - 1} steps compute on other shapes than the step before"
    if shapes.changes < FEWEST_CHANGES or shapes.share < CHANGES:
        return make_absent(name, said)
    return _make_present(name, UNPRICED * shapes.share, said)


def _judge_gpu_utilization(name: str, run: Timeline) -> RunLabel:
    busy = run.busy_share
    if busy is None:
        return make_undecidable(name, "no device did anything in this trace")
    said = f"devices are busy {busy:.1%} of the time"
    if busy >= LEAST_BUSY:
        return make_absent(name, f"{said}; not below {LEAST_BUSY:.0%}")
    longest = next(iter(run.host.calls), None)
    if longest is not None and longest.total_ns > LONG_CALLS * run.windows.host_ns:
        # Names in traces are untrusted, and this text goes into briefs.
        call = longest.name if _CALL.fullmatch(longest.name) else "one function"
        said += f"; the host spends {longest.total_ns / run.windows.host_ns:.0%} of it in {call}"
    return RunLabel(name, Answer.PRESENT, 1 - busy, confidence.MEASURED, said, symptom=True)


def _judge_telemetry(name: str, run: Timeline) -> RunLabel:
    if run.devices:
        return make_absent(name, "the trace holds what devices did")
    only_host = run.host.computing and run.host.waiting is None
    what = "no device did anything in this trace"
    if only_host:
        what = "devices were not recorded, only the CPU's operators"
    said = f"{what}, so no device bottleneck can show"
    return RunLabel(name, Answer.PRESENT, 1.0, confidence.MEASURED, said, symptom=True)


def _make_present(label: str, score: float, said: str) -> RunLabel:
    return RunLabel(label, Answer.PRESENT, min(1.0, score), confidence.MEASURED, said)


_RULES: Mapping[str, Callable[[str, Timeline], RunLabel]] = {
    "input_bound": _judge_input_bound,
    "copy_bound": _judge_copy_bound,
    "sync_bound": _judge_sync_bound,
    "communication_bound": _judge_communication_bound,
    "launch_bound": _judge_launch_bound,
    "host_bound": _judge_host_bound,
    "layout_churn": _judge_layout_churn,
    "memory_pressure": _judge_memory_pressure,
    "shape_instability": _judge_shape_instability,
    "underutilized_gpu": _judge_gpu_utilization,
    INSUFFICIENT: _judge_telemetry,
}
