"""Read layout work from a profiler trace: conversion kernels of libraries, and copies by operators."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from frx_graph.analyzers.observations.observation import (
    ANY_ROLE,
    CONVERSIONS,
    QuietCall,
    RunFile,
    SeenCall,
    Setting,
    Sighting,
    Work,
)
from frx_graph.analyzers.trace.analysis import TraceAnalysis
from frx_graph.analyzers.trace.copies import TraceCopy
from frx_graph.analyzers.trace.kernel_names import KernelClass, is_compiled_copy, kernel_class
from frx_graph.analyzers.trace.operators import is_operator
from frx_graph.capture.call_site import CallSite
from frx_graph.capture.captured_graph import Phase
from frx_graph.evidence.measurement import Measurement, Provenance
from frx_graph.evidence.trace.events import ActivityKind, Operand
from frx_graph.evidence.trace.sites import records_stacks
from frx_graph.evidence.trace.tree import NONE
from frx_graph.records import CopyKind, OperandRole

OUTSIDE = "what runs outside of operators"
"""Replaces the operator of a kernel that none launched, in a trace that has operators."""
_Alike: TypeAlias = tuple[object, ...]
_SHOWN_ON_HOST: frozenset[CopyKind | None] = frozenset({CopyKind.EXPLICIT, CopyKind.RESHAPE, CopyKind.OPERATOR})
"""What a CPU's libraries convert inside their operators is in no trace."""


def trace_sightings(analysis: TraceAnalysis) -> RunFile:
    """Observe all layout work within the steps of a trace, and the operators without any."""
    alike: dict[_Alike, list[TraceCopy]] = defaultdict(list)
    for copy in analysis.copies:
        alike[_alike(analysis, copy)].append(copy)
    return RunFile(
        source=str(analysis.tree.trace.path),
        # torch calls AMD's devices "cuda", too.
        setting=Setting("cuda" if analysis.on_device else "cpu", analysis.compiled),
        observations=tuple(_sighting(analysis, copies) for copies in alike.values()),
        quiet=tuple(_quiet_calls(analysis)),
        shows=_SHOWN_ON_HOST | ({CopyKind.REORDER} if analysis.on_device else frozenset()),
    )


def _alike(analysis: TraceAnalysis, copy: TraceCopy) -> _Alike:
    site = _site(analysis, copy)
    place = None if site is None else site.place
    return (copy.kind, _calls(analysis, copy), copy.operand, copy.target, _roles(analysis, copy), place, copy.phase)


def _sighting(analysis: TraceAnalysis, copies: Sequence[TraceCopy]) -> Sighting:
    first = copies[0]
    sizes = [copy.bytes for copy in copies]
    known = [size for size in sizes if size is not None]
    steps = len(analysis.steps) if analysis.steps.annotated else None
    nanoseconds = sum(_duration_ns(analysis, copy) for copy in copies)
    size = sum(known) if len(known) == len(sizes) else None
    kernels = Counter(name for copy in copies for name in _names(analysis, copy))
    return Sighting(
        work=_work(first),
        kernels=tuple(name for name, _ in kernels.most_common()),
        where=_where(analysis, first),
        count=len(copies),
        steps=steps,
        calls=_calls(analysis, first),
        copied=first.operand,
        kinds=_kinds(analysis, first),
        roles=_roles(analysis, first),
        site=_site(analysis, first),
        phase=first.phase,
        seconds=nanoseconds / 1e9,
        bytes=size,
        measurements=tuple(_measurements(analysis, first, len(copies), nanoseconds, size, steps)),
    )


def _measurements(
    analysis: TraceAnalysis, first: TraceCopy, count: int, nanoseconds: int, size: int | None, steps: int | None
) -> Iterator[Measurement]:
    extent = "in_trace" if steps is None else "per_step"
    operator = [] if first.maker == NONE else [analysis.tree.operators[first.maker].name]
    subject = " under ".join((*_names(analysis, first)[:1], *operator))
    at = Provenance(str(analysis.tree.trace.path), None, _where(analysis, first))
    yield Measurement(f"copies_{extent}", count / (steps or 1), "count", subject, at)
    yield Measurement(f"time_{extent}", nanoseconds / 1e9 / (steps or 1), "s", subject, at)
    if size is not None:
        yield Measurement(f"traffic_{extent}", size / (steps or 1), "byte", subject, at)


def _work(copy: TraceCopy) -> Work:
    return Work.CONVERSION if copy.kind is CopyKind.REORDER else Work.COPY


def _names(analysis: TraceAnalysis, copy: TraceCopy) -> tuple[str, ...]:
    return tuple(analysis.tree.activities[index].name for index in copy.activities)


def _where(analysis: TraceAnalysis, copy: TraceCopy) -> str:
    """Locate the event in the file: by correlation id, operator number, or else time."""
    for index in copy.activities:
        correlation = analysis.tree.activities[index].correlation
        if correlation is not None:
            return f"correlation {correlation}"
    number = analysis.tree.operators[copy.maker].external_id if copy.maker != NONE else None
    return f"External id {number}" if number is not None else f"ts {copy.start_ns / 1e3:.3f}"


def _duration_ns(analysis: TraceAnalysis, copy: TraceCopy) -> int:
    if copy.activities:
        return sum(analysis.tree.activities[index].duration_ns for index in copy.activities)
    return analysis.tree.operators[copy.maker].duration_ns


def _calls(analysis: TraceAnalysis, copy: TraceCopy) -> tuple[SeenCall, ...]:
    tree = analysis.tree
    calls: list[SeenCall] = []
    if any(is_compiled_copy(tree.activities[index].name) for index in copy.activities):
        # Inductor's copies are what it has left of the clones of the program.
        calls.append(SeenCall("aten::clone"))
    operator = copy.maker
    if operator == NONE and analysis.scanned:
        calls.append(SeenCall(OUTSIDE))
    while operator != NONE:
        if is_operator(tree.operators[operator]):
            calls.append(_seen_call(analysis, operator))
        operator = tree.parents[operator]
    return tuple(calls)


def _seen_call(analysis: TraceAnalysis, operator: int) -> SeenCall:
    call = analysis.tree.operators[operator]
    return SeenCall(call.name, _tensors(call.operands))


def _tensors(operands: Sequence[Operand | None] | None) -> tuple[Operand, ...] | None:
    """Return the tensors; None if none is known: lists of tensors have no shapes in a trace."""
    return tuple(one for one in operands or () if one is not None and one.shape) or None


def _kinds(analysis: TraceAnalysis, copy: TraceCopy) -> frozenset[CopyKind | None]:
    if copy.kind is CopyKind.REORDER:
        return CONVERSIONS
    compiled = any(is_compiled_copy(analysis.tree.activities[index].name) for index in copy.activities)
    return _SHOWN_ON_HOST if compiled else frozenset({copy.kind})


def _roles(analysis: TraceAnalysis, copy: TraceCopy) -> frozenset[OperandRole]:
    """Return possible roles. A backward writes the gradients of image and weight."""
    if copy.kind is not CopyKind.REORDER:
        return ANY_ROLE
    role = copy.role
    if role is None:
        return _possible_roles(analysis, copy)
    if role is OperandRole.OUTPUT and copy.phase is Phase.BACKWARD:
        return frozenset({OperandRole.OUTPUT, OperandRole.WEIGHT})
    return frozenset({role})


def _possible_roles(analysis: TraceAnalysis, copy: TraceCopy) -> frozenset[OperandRole]:
    kinds = {kernel_class(analysis.tree.activities[index].name) for index in copy.activities}
    if copy.phase is Phase.FORWARD and kinds == {KernelClass.TO_CHANNELS_LAST}:
        return frozenset({OperandRole.INPUT, OperandRole.WEIGHT})
    if copy.phase is Phase.FORWARD and kinds == {KernelClass.FROM_CHANNELS_LAST}:
        return frozenset({OperandRole.OUTPUT})
    return ANY_ROLE


def _site(analysis: TraceAnalysis, copy: TraceCopy) -> CallSite | None:
    trace = analysis.tree.trace
    if not records_stacks(trace.operators, len(trace.frames)):
        return None
    site = analysis.site(copy.operator)
    # Line 0 is the trace itself.
    return site if site.line else None


def _quiet_calls(analysis: TraceAnalysis) -> Iterator[QuietCall]:
    """Yield operators without layout work in, above or below them. On a device only those count that launched
    kernels."""
    tree = analysis.tree
    makers = {copy.maker for copy in analysis.copies}
    loud = {operator for maker in makers for operator in _upwards(analysis, maker)}
    for index, parent in enumerate(tree.parents):
        if parent in makers:
            makers.add(index)
    launched = _with_kernels(analysis) if analysis.on_device else None
    counts: Counter[tuple[SeenCall, Phase]] = Counter()
    noisy: set[tuple[SeenCall, Phase]] = set()
    for index in analysis.scanned:
        call = _seen_call(analysis, index)
        if call.operands is None or not is_operator(tree.operators[index]):
            continue
        phase = Phase.FORWARD if tree.backward_of[index] is None else Phase.BACKWARD
        if index in loud or index in makers:
            noisy.add((call, phase))
        elif launched is None or index in launched:
            counts[call, phase] += 1
    for (call, phase), count in counts.items():
        if (call, phase) not in noisy:
            yield QuietCall(call, phase, count)


def _upwards(analysis: TraceAnalysis, operator: int) -> Iterator[int]:
    while operator != NONE:
        yield operator
        operator = analysis.tree.parents[operator]


def _with_kernels(analysis: TraceAnalysis) -> set[int]:
    found: set[int] = set()
    for index, activity in enumerate(analysis.tree.activities):
        if activity.kind is ActivityKind.KERNEL:
            for operator in _upwards(analysis, analysis.tree.launcher[index]):
                if operator in found:
                    break
                found.add(operator)
    return found
