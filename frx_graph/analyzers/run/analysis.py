"""Analyse the record of a run: all its steps, and its steady state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frx_graph.analyzers.run.abstraction_tax import AbstractionTax, compute_abstraction_tax
from frx_graph.analyzers.run.batch_layouts import (
    StrideChange,
    collect_layouts,
    count_shape_changes,
    find_stride_changes,
)
from frx_graph.analyzers.run.diagnosis import Diagnosis, determine_diagnosis
from frx_graph.analyzers.run.figures import ScopeFigures, measure_devices, measure_host
from frx_graph.analyzers.run.hand_over import estimate_hand_over
from frx_graph.analyzers.run.labels import label_run
from frx_graph.analyzers.run.loader_workers import count_loader_workers
from frx_graph.analyzers.run.steps import (
    RunStep,
    Scope,
    Selector,
    count_unfinished_steps,
    extract_steps,
    group_by_process,
)
from frx_graph.analyzers.timeline.analysis import RunAnalysis, Timeline
from frx_graph.analyzers.timeline.host_time import Part
from frx_graph.analyzers.timeline.labels import RunLabel
from frx_graph.evidence.run.events import GpuSample, LoaderWait, PhaseSpan, ProfilerWindow, RunEvent, StepEnd, SyncWait
from frx_graph.evidence.run.host_samples import HostSample

_PHASES = (Part.FORWARD, Part.BACKWARD, Part.OPTIMIZER, Part.ZERO_GRAD)


def convert_trace(trace: Timeline) -> tuple[RunEvent, ...]:
    """Return the events of a trace whose program wrote none, without copies: the program continues meanwhile."""
    windows, host = trace.windows, trace.host
    events: list[RunEvent] = [
        StepEnd(at_ns=step.end_ns, step=step.number, duration_ns=step.end_ns - step.start_ns)
        for step in (*windows.left_out, *windows.used)
    ]
    if windows.used:
        events += [
            PhaseSpan(at_ns=end, phase=part.value, duration_ns=end - start)
            for part in _PHASES
            for start, end in host.part_spans.get(part, ())
        ]
        events += [LoaderWait(at_ns=end, duration_ns=end - start) for start, end in host.loading or ()]
        events += [SyncWait(at_ns=end, duration_ns=end - start) for start, end in host.waiting or ()]
    return tuple(sorted(events, key=lambda event: event.at_ns))


_ZONE_NS = 15 * 60 * 1_000_000_000
"""Smallest difference between time zones."""


@dataclass(frozen=True)
class ScopeAnalysis:
    """The steps of a scope and their analysis."""

    scope: Scope
    figures: ScopeFigures
    labels: tuple[RunLabel, ...]
    diagnosis: Diagnosis
    tax: AbstractionTax | None
    stride_changes: tuple[StrideChange, ...]


@dataclass(frozen=True)
class RunRecord:
    """A run. `from_trace` means that the program wrote no steps, so a profiler's are used. `clock_changes` counts
    clocks that were set back; `unfinished` counts steps that did not end."""

    event_count: int
    from_trace: bool
    clock_changes: int
    unfinished: int
    selector: Selector
    run: ScopeAnalysis
    steady_state: ScopeAnalysis

    @property
    def automatic(self) -> ScopeAnalysis:
        """Return the steady state if it has steps; otherwise the whole run."""
        return self.steady_state if self.steady_state.figures.timed else self.run


def analyze_record(
    events: Sequence[RunEvent],
    samples: Sequence[GpuSample] | None,
    trace: RunAnalysis | None,
    host: Sequence[HostSample] = (),
    processors: int | None = None,
) -> RunRecord:
    """Analyse `events` in writing order, `samples` of devices and of the `host` from outside, and the `trace` of a part
    of the run. Without devices there are no samples; None: no sampler looked for them. `processors` are the
    machine's."""
    records = group_by_process(events)
    timeline = None if trace is None else trace.timeline
    profiled = timeline if not records else None
    from_trace = profiled is not None
    if profiled is not None:
        records = group_by_process(convert_trace(profiled))
    steps = tuple(step for record in records for step in extract_steps(record))
    known = collect_layouts(events)
    sampled = (*(samples or ()), *(event for event in events if isinstance(event, GpuSample)))
    windows = [event for event in events if isinstance(event, ProfilerWindow)]
    told = [one for one in windows if one.kernels or one.median_kernel_us is not None or one.small_kernels is not None]
    kernels = told[-1] if told else None
    # A profiler's schedule has its own warm-up, and its window leaves out an unusual step.
    selector = Selector(skip_first_n=0) if from_trace else Selector()

    # Samples before and after the steps can be recognised.
    placed = not from_trace and _is_on_one_clock(steps, [one.at_ns for one in sampled])
    host_placed = not from_trace and _is_on_one_clock(steps, [one.at_ns for one in host])

    def analyze_scope(name: Scope, chosen: Sequence[RunStep]) -> ScopeAnalysis:
        begin = min((step.begin_ns for step in chosen), default=None)
        end = max((step.end_ns for step in chosen), default=None)
        devices = measure_devices(sampled, begin, end) if placed else measure_devices(sampled, None, None)
        figures = ScopeFigures(
            steps=tuple(chosen),
            devices=devices,
            looked_for_devices=samples is not None,
            host=measure_host(host, begin, end) if host_placed else measure_host(host, None, None),
            shapes=count_shape_changes(known, chosen),
            kernels=kernels,
            trace=timeline,
            loader_workers=count_loader_workers(events),
            processors=processors,
            hand_over_ns=estimate_hand_over(known, chosen, events),
        )
        labels = label_run(figures, () if trace is None else trace.labels)
        return ScopeAnalysis(
            scope=name,
            figures=figures,
            labels=labels,
            diagnosis=determine_diagnosis(figures, labels),
            tax=compute_abstraction_tax(figures),
            stride_changes=find_stride_changes(known, chosen),
        )

    left_out = {step.number for step in profiled.windows.left_out} if profiled is not None else set()
    steady = [step for step in selector.select(steps) if step.number not in left_out]
    return RunRecord(
        event_count=len(events),
        from_trace=from_trace,
        clock_changes=sum(record.clock > 0 for record in records),
        unfinished=sum(map(count_unfinished_steps, records)),
        selector=selector,
        run=analyze_scope(Scope.RUN, steps),
        steady_state=analyze_scope(Scope.STEADY_STATE, steady),
    )


def _is_on_one_clock(steps: Sequence[RunStep], times_ns: Sequence[int]) -> bool:
    """Return False if samples are hours away from the steps: `nvidia-smi` writes local time without a zone."""
    if not steps or not times_ns:
        return True
    begin, end = min(step.begin_ns for step in steps), max(step.end_ns for step in steps)
    return max(begin - max(times_ns), min(times_ns) - end) < _ZONE_NS // 2
