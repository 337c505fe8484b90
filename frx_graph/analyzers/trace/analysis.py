"""Prepare a trace for findings: its steps, its layout copies, and the time that could be saved."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from frx_graph.analyzers.trace.copies import TraceCopy, find_copies
from frx_graph.analyzers.trace.operators import is_operator
from frx_graph.capture.call_site import CallSite, merge_module_paths
from frx_graph.evidence.trace.intervals import measure_exclusive, measure_union
from frx_graph.evidence.trace.sites import CallSites
from frx_graph.evidence.trace.steps import Steps, find_steps
from frx_graph.evidence.trace.torch_trace import TorchTrace
from frx_graph.evidence.trace.tree import NONE, TraceTree, build_tree

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class TraceAnalysis:
    """A trace, linked and cut to its steps. `copies` and `work` were launched within a step. `work` are activities of a
    device's memory or arithmetic, except host transfers."""

    tree: TraceTree
    steps: Steps
    sites: CallSites
    copies: tuple[TraceCopy, ...]
    work: tuple[int, ...]

    @property
    def on_device(self) -> bool:
        """Return False for a trace without device activities: its times are the CPU's."""
        return bool(self.work)

    @cached_property
    def busy_ns(self) -> int:
        """Return the total working time of the devices; without devices, the time in which an operator ran."""
        if not self.on_device:
            return measure_union(
                (operator.start_ns, operator.end_ns)
                for operator in self.tree.operators
                if not operator.annotation and self.steps.find_position(operator.start_ns) is not None
            )
        return sum(
            measure_union((start, end) for start, end, _ in spans) for spans in self._list_spans_by_device({}).values()
        )

    @cached_property
    def wall_ns(self) -> int:
        """Return the host time of the steps."""
        return sum(step.end_ns - step.start_ns for step in self.steps.steps)

    @cached_property
    def compiled(self) -> bool:
        """Return True if Inductor compiled a part of the program: torch names its graphs, Triton its kernels."""
        return any("CompiledFxGraph" in operator.name for operator in self.tree.operators) or any(
            activity.name.startswith("triton_") for activity in self.tree.activities
        )

    @cached_property
    def scanned(self) -> tuple[int, ...]:
        """Return the dispatched operators within the steps, and compiled ones that launched something."""
        return tuple(
            index
            for index, operator in enumerate(self.tree.operators)
            if (is_operator(operator) or self.tree.launched[index])
            and self.steps.find_position(operator.start_ns) is not None
        )

    def find_site(self, operator: int) -> CallSite:
        """Return the call site of an operator; the trace itself for `NONE`."""
        if operator == NONE:
            return CallSite(str(self.tree.trace.path), 0, "no operator")
        return self.sites.find_site(operator)

    def merge_sites(self, operators: Sequence[int]) -> CallSite:
        """Return one site for operators at one line."""
        sites = list(map(self.find_site, operators))
        return replace(sites[0], module_path=merge_module_paths(site.module_path for site in sites))

    def measure_busy_alone(self, owners: Mapping[int, int]) -> dict[int, int]:
        """Return, by owner, the busy time in which only its activities ran; `owners` is by owned activity."""
        total: Counter[int] = Counter()
        for spans in self._list_spans_by_device(owners).values():
            total.update(measure_exclusive(spans))
        return total

    def _list_spans_by_device(self, owners: Mapping[int, int]) -> dict[int | None, list[tuple[int, int, int]]]:
        spans: dict[int | None, list[tuple[int, int, int]]] = defaultdict(list)
        for index in self.work:
            activity = self.tree.activities[index]
            spans[activity.device].append((activity.start_ns, activity.end_ns, owners.get(index, NONE)))
        return spans

    def measure_host_copies(self, copies: Iterable[TraceCopy]) -> int:
        """Return the CPU time of operators that made copies without a device."""
        makers = (self.tree.operators[copy.maker] for copy in copies if not copy.activities)
        return measure_union((maker.start_ns, maker.end_ns) for maker in makers)


def prepare_trace(trace: TorchTrace) -> TraceAnalysis:
    """Link the events, find the steps, and keep the events within them."""
    tree = build_tree(trace)
    steps = find_steps(trace, tree.launch_ns)
    work = tuple(
        index
        for index, activity in enumerate(tree.activities)
        if steps.find_position(tree.launch_ns[index]) is not None and not activity.is_host_transfer
    )
    copies = tuple(copy for copy in find_copies(tree) if steps.find_position(copy.start_ns) is not None)
    return TraceAnalysis(tree, steps, CallSites(tree), copies, work)


def sum_known(values: Iterable[_Number | None]) -> _Number | None:
    """Return the sum; None if a value is unknown."""
    listed = list(values)
    known = [value for value in listed if value is not None]
    return sum(known) if len(known) == len(listed) else None


def average_per_step(total: int, steps: Steps) -> int:
    """Return an average over the steps, at least 1 if there was any."""
    return max(1, round(total / len(steps))) if total else 0


def count_steps_with(copies: Sequence[TraceCopy], steps: Steps) -> int:
    """Count the steps with any of the copies."""
    return len({steps.find_position(copy.start_ns) for copy in copies} - {None})
