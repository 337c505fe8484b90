"""Find what differs between two recordings: step times, labels, shares, kernels and problems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from frx_graph.analyzers.run_change.recording import KernelUse, KnownProblem, Recording
from frx_graph.analyzers.run_change.step_times import StepChange, StepVerdict, compare_step_times
from frx_graph.analyzers.timeline.labels import INSUFFICIENT

_SHARE_POINTS = 0.02
"""Smallest difference of two shares that is listed: a choice, as are the next two."""
_KERNEL_CHANGE = 0.2
"""Smallest relative change of a kernel's time in a step that is listed, unless its launches change."""
_LAUNCH_CHANGE = 0.05
"""Smallest relative change of a kernel's launches in a step that is listed."""


@dataclass(frozen=True, slots=True)
class LabelChange:
    """A label, and its share of the time on each side; None: not present there."""

    label: str
    before: float | None
    after: float | None


@dataclass(frozen=True, slots=True)
class ShareChange:
    """A share of the step's time on both sides."""

    name: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class KernelChange:
    """A kernel on both sides; None: not launched there."""

    name: str
    before: KernelUse | None
    after: KernelUse | None

    @property
    def ms(self) -> float:
        """Return the milliseconds that a step gains by it; negative for a step that becomes faster."""
        return (self.after.ms if self.after else 0.0) - (self.before.ms if self.before else 0.0)


@dataclass(frozen=True, slots=True)
class RunChange:
    """Differences of two recordings. Labels that one side cannot decide are `undecided`, and neither new nor resolved.
    `other_machine` names what differs between the machines."""

    before: Recording
    after: Recording
    steps: StepChange | None
    labels_resolved: tuple[LabelChange, ...]
    labels_new: tuple[LabelChange, ...]
    labels_kept: tuple[LabelChange, ...]
    undecided: tuple[str, ...]
    shares: tuple[ShareChange, ...]
    kernels: tuple[KernelChange, ...]
    problems_resolved: tuple[KnownProblem, ...]
    problems_new: tuple[KnownProblem, ...]
    problems_kept: int
    other_machine: tuple[str, ...]

    @property
    def per_step(self) -> bool:
        """Return True if kernels are counted per step."""
        return self.before.per_step and self.after.per_step

    @property
    def comparable(self) -> bool:
        """Return True if both sides have something in common that can be compared."""
        found = self.labels_resolved or self.labels_new or self.labels_kept or self.kernels
        problems = self.problems_resolved or self.problems_new or self.problems_kept
        return self.steps is not None or bool(found) or bool(problems)

    @property
    def worse(self) -> bool:
        """Return True if the second side is worse for any reason."""
        return bool(self.regressions)

    @property
    def regressions(self) -> tuple[str, ...]:
        """Return why the second side is worse: slower steps, a new bottleneck, a new finding. Of faster steps, another
        bottleneck limits the rest, and too little telemetry is not a bottleneck: neither is a regression."""
        verdict = self.steps.verdict if self.steps is not None else None
        slower = ["its steps are slower"] if verdict is StepVerdict.SLOWER else []
        bottlenecks = () if verdict is StepVerdict.FASTER else self.labels_new
        labels = [f"it is {one.label}" for one in bottlenecks if one.label != INSUFFICIENT]
        new = len(self.problems_new)
        return (*slower, *labels, *([f"it has {new:,} new {'finding' if new == 1 else 'findings'}"] if new else ()))


def compare_recordings(before: Recording, after: Recording) -> RunChange:
    """Compare two recordings of one kind."""
    undecided = (before.undecided & after.labels.keys()) | (after.undecided & before.labels.keys())
    labels = [
        LabelChange(name, before.labels.get(name), after.labels.get(name))
        for name in dict.fromkeys((*before.labels, *after.labels))
        if name not in undecided
    ]
    gone = [one for key, one in before.problems.items() if key not in after.problems]
    new = [one for key, one in after.problems.items() if key not in before.problems]
    return RunChange(
        before=before,
        after=after,
        steps=compare_step_times(before.step_ms, after.step_ms),
        labels_resolved=tuple(one for one in labels if one.after is None),
        labels_new=tuple(one for one in labels if one.before is None),
        labels_kept=tuple(one for one in labels if one.before is not None and one.after is not None),
        undecided=tuple(sorted(undecided)),
        shares=tuple(_list_shares(before.shares, after.shares)),
        kernels=tuple(sorted(_list_kernels(before, after), key=lambda one: -abs(one.ms))),
        problems_resolved=tuple(gone),
        problems_new=tuple(new),
        problems_kept=len(before.problems.keys() & after.problems.keys()),
        other_machine=(*_list_machine(before.machine, after.machine), *_describe_steps(before, after)),
    )


def _list_shares(before: Mapping[str, float], after: Mapping[str, float]) -> Iterator[ShareChange]:
    for name in before:
        if name in after and abs(after[name] - before[name]) >= _SHARE_POINTS:
            yield ShareChange(name, before[name], after[name])


def _list_kernels(before: Recording, after: Recording) -> Iterator[KernelChange]:
    """Yield kernels that appeared, went, or changed. One side without kernels shows nothing about the other, nor do
    steps about a record without."""
    alike = before.kernels and after.kernels and before.per_step is after.per_step
    for name in dict.fromkeys((*before.kernels, *after.kernels)) if alike else ():
        old, new = before.kernels.get(name), after.kernels.get(name)
        if (
            old is None
            or new is None
            or _differs(old.count, new.count, _LAUNCH_CHANGE)
            or _differs(old.ms, new.ms, _KERNEL_CHANGE)
        ):
            yield KernelChange(name, old, new)


def _describe_steps(before: Recording, after: Recording) -> Iterator[str]:
    if before.kernels and after.kernels and before.per_step is not after.per_step:
        yield "steps: marked on one side only, so kernels are not compared"


def _differs(old: float, new: float, share: float) -> bool:
    return abs(new - old) > share * max(old, new)


def _list_machine(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for name in before:
        if name in after and before[name] != after[name]:
            yield f"{name}: {before[name]}, then {after[name]}"
