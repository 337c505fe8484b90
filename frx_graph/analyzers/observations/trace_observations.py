"""Read layout work from a profiler trace: conversion kernels of libraries, and copies by operators."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import takewhile

from frx_graph.analyzers.observations.observation import (
    ANY_ROLE,
    CONVERSIONS,
    COPIES,
    Observation,
    ObservedCall,
    QuietCall,
    RunFile,
    RunSetting,
    Work,
    derive_roles,
)
from frx_graph.analyzers.trace.analysis import TraceAnalysis, sum_known
from frx_graph.analyzers.trace.copies import TraceCopy
from frx_graph.analyzers.trace.kernel_names import is_compiled_copy
from frx_graph.analyzers.trace.operators import get_phase, is_operator, iterate_upwards
from frx_graph.capture.call_site import CallSite
from frx_graph.capture.captured_graph import Phase
from frx_graph.evidence.measurement import Measurement, Provenance
from frx_graph.evidence.trace.events import ActivityKind, Operator
from frx_graph.evidence.trace.sites import has_stacks
from frx_graph.evidence.trace.tree import NONE, TraceTree
from frx_graph.records import CopyKind, OperandRole

OUTSIDE = "what runs outside of operators"
"""Replaces the operator of a kernel without a launching operator, in a trace that has operators."""


def observe_trace(analysis: TraceAnalysis) -> RunFile:
    """Observe all layout work within the steps of a trace, and the operators without any."""
    alike: dict[object, list[TraceCopy]] = defaultdict(list)
    for copy in analysis.copies:
        site = _find_site(analysis, copy)
        place = None if site is None else site.place
        calls, roles = _list_calls(analysis, copy), _list_roles(analysis, copy)
        alike[copy.kind, calls, copy.operand, copy.target, roles, place, copy.phase].append(copy)
    return RunFile(
        source=str(analysis.tree.trace.path),
        # torch also calls AMD devices "cuda".
        setting=RunSetting("cuda" if analysis.on_device else "cpu", analysis.compiled),
        observations=tuple(_observe_copies(analysis, copies) for copies in alike.values()),
        quiet=tuple(_find_quiet_calls(analysis)),
        shows=COPIES | ({CopyKind.REORDER} if analysis.on_device else frozenset()),
    )


def _observe_copies(analysis: TraceAnalysis, copies: Sequence[TraceCopy]) -> Observation:
    tree, first = analysis.tree, copies[0]
    steps = len(analysis.steps) if analysis.steps.annotated else None
    seconds = sum(_measure_duration(tree, copy) for copy in copies) / 1e9
    size = sum_known(copy.bytes for copy in copies)
    where = _locate_event(analysis, first)
    operator = [] if first.maker == NONE else [tree.operators[first.maker].name]
    subject = " under ".join((*_list_kernels(analysis, first)[:1], *operator))
    extent, at = "in_trace" if steps is None else "per_step", Provenance(str(tree.trace.path), None, where)
    facts = (("copies", len(copies), "count"), ("time", seconds, "s"), ("traffic", size, "byte"))
    kernels = Counter(name for copy in copies for name in _list_kernels(analysis, copy))
    kinds = COPIES if any(map(is_compiled_copy, _list_kernels(analysis, first))) else frozenset({first.kind})
    return Observation(
        work=Work.CONVERSION if first.kind is CopyKind.REORDER else Work.COPY,
        kernels=tuple(name for name, _ in kernels.most_common()),
        where=where,
        count=len(copies),
        steps=steps,
        calls=_list_calls(analysis, first),
        copied=first.operand,
        kinds=CONVERSIONS if first.kind is CopyKind.REORDER else kinds,
        roles=_list_roles(analysis, first),
        site=_find_site(analysis, first),
        phase=first.phase,
        seconds=seconds,
        bytes=size,
        measurements=tuple(
            Measurement(f"{name}_{extent}", value / (steps or 1), unit, subject, at)
            for name, value, unit in facts
            if value is not None
        ),
    )


def _measure_duration(tree: TraceTree, copy: TraceCopy) -> int:
    activities = [tree.activities[index].duration_ns for index in copy.activities]
    return sum(activities) if activities else tree.operators[copy.maker].duration_ns


def _list_kernels(analysis: TraceAnalysis, copy: TraceCopy) -> tuple[str, ...]:
    return tuple(analysis.tree.activities[index].name for index in copy.activities)


def _locate_event(analysis: TraceAnalysis, copy: TraceCopy) -> str:
    """Locate the event in the file: by correlation id, operator number, or else time."""
    for index in copy.activities:
        correlation = analysis.tree.activities[index].correlation
        if correlation is not None:
            return f"correlation {correlation}"
    number = analysis.tree.operators[copy.maker].external_id if copy.maker != NONE else None
    return f"External id {number}" if number is not None else f"ts {copy.start_ns / 1e3:.3f}"


def _list_calls(analysis: TraceAnalysis, copy: TraceCopy) -> tuple[ObservedCall, ...]:
    tree = analysis.tree
    calls: list[ObservedCall] = []
    if any(map(is_compiled_copy, _list_kernels(analysis, copy))):
        # Inductor's copies are the clones of the program that it kept.
        calls.append(ObservedCall("aten::clone"))
    if copy.maker == NONE and analysis.scanned:
        calls.append(ObservedCall(OUTSIDE))
    callers = (tree.operators[index] for index in iterate_upwards(tree, copy.maker))
    return (*calls, *map(_describe_call, filter(is_operator, callers)))


def _describe_call(operator: Operator) -> ObservedCall:
    # Lists of tensors have no shapes in a trace, so without any tensor the operands are unknown.
    tensors = tuple(one for one in operator.operands or () if one is not None and one.shape)
    return ObservedCall(operator.name, tensors or None)


def _list_roles(analysis: TraceAnalysis, copy: TraceCopy) -> frozenset[OperandRole]:
    """Return possible roles. A backward writes the gradients of image and weight."""
    if copy.kind is not CopyKind.REORDER:
        return ANY_ROLE
    if copy.role is None:
        return derive_roles(_list_kernels(analysis, copy), copy.phase)
    if copy.role is OperandRole.OUTPUT and copy.phase is Phase.BACKWARD:
        return frozenset({OperandRole.OUTPUT, OperandRole.WEIGHT})
    return frozenset({copy.role})


def _find_site(analysis: TraceAnalysis, copy: TraceCopy) -> CallSite | None:
    trace = analysis.tree.trace
    if not has_stacks(trace.operators, len(trace.frames)):
        return None
    site = analysis.find_site(copy.operator)
    # Line 0 is the trace itself.
    return site if site.line else None


def _find_quiet_calls(analysis: TraceAnalysis) -> Iterator[QuietCall]:
    """Yield operators without layout work inside, above or below them; on a device, only launchers of kernels."""
    tree = analysis.tree
    makers = {copy.maker for copy in analysis.copies}
    loud = {operator for maker in makers for operator in iterate_upwards(tree, maker)}
    for index, parent in enumerate(tree.parents):
        if parent in makers:
            makers.add(index)
    launchers: set[int] = set()
    for index, activity in enumerate(tree.activities):
        if activity.kind is ActivityKind.KERNEL:
            callers = iterate_upwards(tree, tree.launcher[index])
            launchers.update(takewhile(lambda operator: operator not in launchers, callers))
    counts: Counter[tuple[ObservedCall, Phase]] = Counter()
    noisy: set[tuple[ObservedCall, Phase]] = set()
    for index in analysis.scanned:
        call = _describe_call(tree.operators[index])
        if call.operands is None or not is_operator(tree.operators[index]):
            continue
        phase = get_phase(tree, index)
        if index in loud or index in makers:
            noisy.add((call, phase))
        elif not analysis.on_device or index in launchers:
            counts[call, phase] += 1
    for (call, phase), count in counts.items():
        if (call, phase) not in noisy:
            yield QuietCall(call, phase, count)
