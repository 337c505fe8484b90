"""Find what differs between two recordings: step times, labels, shares, kernels and problems."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from frx_graph.analyzers.run_change.finding_cost import CostDifference, FindingChange, compare_costs
from frx_graph.analyzers.run_change.recording import KernelUse, KnownProblem, Recording, RecordKind
from frx_graph.analyzers.run_change.step_times import StepChange, StepVerdict, compare_step_times
from frx_graph.analyzers.timeline.labels import INSUFFICIENT

_SHARE_POINTS = 0.02
"""Smallest difference of two shares that is listed: a choice, as are the next two."""
_KERNEL_CHANGE = 0.2
"""Smallest relative change of a kernel's time in a step that is listed, unless its launches change."""
_LAUNCH_CHANGE = 0.05
"""Smallest relative change of a kernel's launches in a step that is listed."""
_NUMBER = re.compile(r"\b\d[\d.,]*")


@dataclass(frozen=True, slots=True)
class LabelChange:
    """A label, and its share of the time on each side; None: not present there."""

    label: str
    before: float | None
    after: float | None


@dataclass(frozen=True, slots=True)
class ShareChange:
    """A share of the step's time on both sides, and its milliseconds; None: not a time, or no steps."""

    name: str
    before: float
    after: float
    before_ms: float | None = None
    after_ms: float | None = None


@dataclass(frozen=True, slots=True)
class CostChange:
    """A total of a step on both sides; None: not known."""

    name: str
    unit: str
    before: float | None
    after: float | None


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
    A side that `recorded_too_little` names no bottleneck. `finding_cost` is None if what a step costs is not known.
    Findings of `one_sided_rules` do not count. `other_machine` names what else differs."""

    before: Recording
    after: Recording
    steps: StepChange | None
    labels_resolved: tuple[LabelChange, ...]
    labels_new: tuple[LabelChange, ...]
    labels_kept: tuple[LabelChange, ...]
    undecided: tuple[str, ...]
    before_recorded_too_little: bool
    after_recorded_too_little: bool
    shares: tuple[ShareChange, ...]
    kernels: tuple[KernelChange, ...]
    problems_resolved: tuple[KnownProblem, ...]
    problems_new: tuple[KnownProblem, ...]
    problems_kept: int
    costs: tuple[CostChange, ...]
    finding_cost: CostDifference | None
    one_sided_rules: frozenset[str]
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
        known = self.steps is not None or self.finding_cost is not None
        return known or bool(found) or bool(problems)

    @property
    def worse(self) -> bool:
        """Return True if the second side is worse for any reason."""
        return bool(self.regressions)

    @property
    def regressions(self) -> tuple[str, ...]:
        """Return why the second side is worse: slower steps, a new bottleneck, a step or findings that cost more. If
        its steps are faster, none of these counts."""
        if self._is_faster:
            return ()
        slower = self.steps is not None and self.steps.verdict is StepVerdict.SLOWER
        labels = [f"it is {one.label}" for one in self.labels_new]
        return (*(["its steps are slower"] if slower else []), *labels, *self._list_costlier_findings())

    @property
    def improvements(self) -> tuple[str, ...]:
        """Return why the second side is better: faster steps; of advice, a step that costs less. In a run or trace,
        only times prove a gain."""
        if self.before.kind is not RecordKind.ADVICE:
            return ("its steps are faster",) if self._is_faster else ()
        if self.finding_cost is None:
            gone = self._count_findings(self.problems_resolved)
            one_less = gone and not self._count_findings(self.problems_new)
            return (f"{gone:,} {'finding is' if gone == 1 else 'findings are'} resolved",) if one_less else ()
        return (self.finding_cost.describe(),) if self.finding_cost.amount < 0 else ()

    @property
    def better(self) -> bool:
        """Return True if the second side is better, and worse in nothing."""
        return bool(self.improvements) and not self.worse

    @property
    def _is_faster(self) -> bool:
        return self.steps is not None and self.steps.verdict is StepVerdict.FASTER

    def _list_costlier_findings(self) -> Iterator[str]:
        """Yield how much more a step costs; if that is not known, how many findings are new."""
        new, cost = self._count_findings(self.problems_new), self.finding_cost
        if cost is not None and cost.amount > 0:
            yield cost.describe()
        elif cost is None and new:
            yield f"it has {new:,} new {'finding' if new == 1 else 'findings'}"

    def _count_findings(self, problems: Iterable[KnownProblem]) -> int:
        return sum(not one.is_free and one.rule not in self.one_sided_rules for one in problems)


def compare_recordings(before: Recording, after: Recording) -> RunChange:
    """Compare two recordings of one kind."""
    undecided = (before.undecided & after.labels.keys()) | (after.undecided & before.labels.keys())
    undecided -= {INSUFFICIENT}
    labels = [
        LabelChange(name, before.labels.get(name), after.labels.get(name))
        for name in dict.fromkeys((*before.labels, *after.labels))
        if name not in undecided and name != INSUFFICIENT
    ]
    pairs = _match_problems(before.problems, after.problems)
    matched = set(pairs.values())
    findings = FindingChange(
        gone=tuple(one for key, one in before.problems.items() if key not in pairs),
        new=tuple(one for key, one in after.problems.items() if key not in matched),
        kept=tuple((before.problems[old], after.problems[new]) for old, new in pairs.items()),
    )
    one_sided = _find_one_sided_rules(before, after)
    return RunChange(
        before=before,
        after=after,
        steps=compare_step_times(before.step_ms, after.step_ms),
        labels_resolved=tuple(one for one in labels if one.after is None),
        labels_new=tuple(one for one in labels if one.before is None),
        labels_kept=tuple(one for one in labels if one.before is not None and one.after is not None),
        undecided=tuple(sorted(undecided)),
        before_recorded_too_little=INSUFFICIENT in before.labels,
        after_recorded_too_little=INSUFFICIENT in after.labels,
        shares=tuple(_list_shares(before, after)),
        kernels=tuple(sorted(_list_kernels(before, after), key=lambda one: -abs(one.ms))),
        problems_resolved=findings.gone,
        problems_new=findings.new,
        problems_kept=len(pairs),
        costs=tuple(_list_costs(before, after)),
        finding_cost=compare_costs(before, after, findings.leave_out(one_sided)),
        one_sided_rules=one_sided,
        other_machine=(
            *_list_machine(before.machine, after.machine),
            *_describe_steps(before, after),
            *_describe_rules(one_sided),
        ),
    )


def _match_problems(before: Mapping[str, KnownProblem], after: Mapping[str, KnownProblem]) -> dict[str, str]:
    """Return the fingerprints of problems that both sides have, by that of the first side.

    Fingerprints contain the file. Problems that are left over match by rule, title and place in the model if they are
    in a file that the first side does not name: the program may have been saved under another name.
    """
    pairs = {key: key for key in before if key in after}
    files = {one.file for one in before.values()}
    left_over: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for key, one in after.items():
        if key not in pairs and one.place_in_model is not None and one.file not in files:
            left_over[_describe_problem(one)].append(key)
    for key, one in before.items():
        alike = left_over.get(_describe_problem(one))
        if key not in pairs and alike:
            pairs[key] = alike.pop(0)
    return pairs


def _describe_problem(one: KnownProblem) -> tuple[str, str, str]:
    """Return the rule, the title without its numbers, which may be measured, and the place in the model."""
    return one.rule, _NUMBER.sub("", one.title), one.place_in_model or ""


def _find_one_sided_rules(before: Recording, after: Recording) -> frozenset[str]:
    """Return the rules of advice with findings on one side only, where they may not have run on the other."""
    if before.kind is not RecordKind.ADVICE:
        return frozenset()
    first, second = ({one.rule for one in side.problems.values()} for side in (before, after))
    return frozenset(first ^ second)


def _describe_rules(one_sided: frozenset[str]) -> Iterator[str]:
    if one_sided:
        yield f"rules: only one side has findings of {', '.join(sorted(one_sided))}, so what these cost is not compared"


def _list_costs(before: Recording, after: Recording) -> Iterator[CostChange]:
    for name, old in before.costs.items():
        new = after.costs.get(name)
        if new is not None and (old.value is not None or new.value is not None):
            yield CostChange(name, old.unit, old.value, new.value)
    if before.kind is RecordKind.ADVICE:
        first, second = _sum_waste_by_rule(before), _sum_waste_by_rule(after)
        if shared := first.keys() & second.keys():
            sums = (sum(side[rule] for rule in shared) for side in (first, second))
            yield CostChange("traffic that the findings waste", "byte", *sums)


def _sum_waste_by_rule(side: Recording) -> dict[str, float]:
    """Return the traffic that the findings of each rule waste, without rules of unknown traffic."""
    sums: dict[str, float] = defaultdict(float)
    for one in side.problems.values():
        sums[one.rule] += math.nan if one.bytes_per_step is None else one.bytes_per_step
    return {rule: waste for rule, waste in sums.items() if not math.isnan(waste)}


def _list_shares(before: Recording, after: Recording) -> Iterator[ShareChange]:
    for name, old in before.shares.items():
        new = after.shares.get(name)
        if new is not None and abs(new - old) >= _SHARE_POINTS:
            yield ShareChange(name, old, new, before.shares_ms.get(name), after.shares_ms.get(name))


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
