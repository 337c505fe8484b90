"""Judge whether a copy that the program asks for is needed.

The operators after a copy are replayed on the source's strides. If each takes those strides without making a copy, and
nothing visible to the caller changes, the copy is needless.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

import torch

from frx_graph.capture.captured_graph import InputKind
from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.layout import Layout, StridePattern, classify_strides
from frx_graph.facts.operator_families import LAYOUT_COPIES
from frx_graph.facts.operator_overload import find_overload
from frx_graph.passes.analysis import Analysis
from frx_graph.passes.copies.copy_loops import find_loop_copies
from frx_graph.passes.copies.prediction import find_call_form
from frx_graph.passes.copies.stride_replay import Strides, have_same_strides, replay_operator
from frx_graph.passes.copies.view_chain import STORAGE_READERS, compute_value_key, is_view, trace_views
from frx_graph.records import Copy

MAX_OPERATORS = 48
"""Most operators followed behind one copy. A transformer block has about 30; beyond one block no verdict is safe."""


class Necessity(enum.StrEnum):
    """Purpose of a copy, in order of precedence."""

    UNUSED = "unused"
    """Nothing reads the result."""
    SAME_LAYOUT = "same_layout"
    """The source has that layout already, and neither it nor the copy is written to or returned."""
    UNDONE = "undone"
    """A later copy brings the source's layout back: without both the program is the same."""
    REPEATED = "repeated"
    """The same value was copied to the same layout before."""
    CONSTANT = "constant"
    """A copy of a parameter or buffer, or, in inference, of what is computed from those alone: the same every call."""
    UNNEEDED = "unneeded"
    """Everything that uses the copy takes the source's strides."""
    LOOP = "loop"
    """The line makes it repeatedly in one call of one module, and nothing writes to it or its source. It belongs to an
    unrolled loop whose rounds depend on each other, or go over parts of one value."""
    NEEDED = "needed"
    """None of these, as far as is known."""


REMOVABLE = frozenset(Necessity) - {Necessity.LOOP, Necessity.NEEDED}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Judgement of one copy.

    `partner` makes it needless: the node of the copy that undoes it or of the first of repeated ones, or the value that
    a loop takes apart. `wanted_by` is the operator behind the copy that is not known to take the source's strides.
    `plain_weights` belong to convolutions that would run in channels-last without the copy and then convert their
    weight, unless it is converted ahead.
    """

    copy: Copy
    necessity: Necessity
    partner: str | None = None
    wanted_by: str | None = None
    plain_weights: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _ReplayResult:
    """Result of replaying the users of a copy on its source."""

    accepted: bool
    vanished: tuple[str, ...] = ()
    wanted_by: str | None = None
    plain_weights: tuple[str, ...] = ()


def judge_copies(analysis: Analysis, copies: tuple[Copy, ...]) -> tuple[Verdict, ...]:
    """Return a verdict for each of `copies`, in order. A copy without an operator in the graph is NEEDED."""
    facts = analysis.facts
    position = {op.node: index for index, op in enumerate(facts.ops)}
    judged = [copy for copy in copies if _is_judgeable(facts, copy)]
    trials = {copy.node: _replay_without_copy(analysis, facts.op_by_node[copy.node], position) for copy in judged}
    undone_by = {node: name for node, trial in trials.items() if trial.accepted for name in trial.vanished}
    undoing = {name: node for node, name in undone_by.items()}
    repeats = _find_repeats(facts, judged)
    steady = _find_constant_values(facts) if judged else frozenset()
    verdicts = []
    for copy in copies:
        trial, op = trials.get(copy.node), facts.op_by_node.get(copy.node)
        if trial is None or op is None:
            verdict = Verdict(copy, Necessity.NEEDED)
        elif _is_unread(facts, op.outputs[0]):
            verdict = Verdict(copy, Necessity.UNUSED)
        elif _has_same_layout(facts, op):
            verdict = Verdict(copy, Necessity.SAME_LAYOUT)
        elif partner := undone_by.get(copy.node) or undoing.get(copy.node):
            verdict = Verdict(copy, Necessity.UNDONE, partner)
        elif copy.node in repeats:
            verdict = Verdict(copy, Necessity.REPEATED, repeats[copy.node])
        elif _is_constant(facts, op.inputs[0], steady):
            verdict = Verdict(copy, Necessity.CONSTANT)
        elif trial.accepted:
            verdict = Verdict(copy, Necessity.UNNEEDED, plain_weights=trial.plain_weights)
        else:
            verdict = Verdict(copy, Necessity.NEEDED, wanted_by=trial.wanted_by)
        verdicts.append(verdict)
    needed = [v.copy for v in verdicts if v.necessity is Necessity.NEEDED and v.copy.node in trials]
    loops = find_loop_copies(facts, needed)
    return tuple(
        replace(v, necessity=Necessity.LOOP, partner=loops[v.copy.node]) if v.copy.node in loops else v
        for v in verdicts
    )


def _is_judgeable(facts: GraphFacts, copy: Copy) -> bool:
    op = facts.op_by_node.get(copy.node)
    return op is not None and op.operator in LAYOUT_COPIES and len(op.outputs) == 1 and bool(op.inputs)


def _get_source_and_result(facts: GraphFacts, op: OpFacts) -> tuple[ValueFacts, ValueFacts]:
    return facts.values[op.inputs[0]], facts.values[op.outputs[0]]


def _is_unread(facts: GraphFacts, value: str) -> bool:
    """Return True if `value` is not returned and all its views are unread."""
    if facts.values[value].user_visible or facts.values[value].mutated:
        return False
    return all(is_view(op) and all(_is_unread(facts, name) for name in op.outputs) for op in facts.get_users(value))


def _has_same_layout(facts: GraphFacts, op: OpFacts) -> bool:
    source, result = _get_source_and_result(facts, op)
    if source.mutated or result.mutated or result.user_visible or _is_storage_read(facts, result):
        return False
    return source.dense and have_same_strides(source.shape, source.strides, result.strides)


def _is_constant(facts: GraphFacts, source: str, constants: Container[str]) -> bool:
    base = facts.values[trace_views(facts, source).base]
    if base.kind in (InputKind.PARAMETER, InputKind.BUFFER):
        return not base.mutated
    return source in constants


def _find_constant_values(facts: GraphFacts) -> frozenset[str]:
    """Return the values computed from parameters, buffers and constants (`arange`) alone, which are the same on every
    call. A training step changes parameters, so it has none."""
    if facts.train:
        return frozenset()
    stored = (InputKind.PARAMETER, InputKind.BUFFER)
    constants = {name for name, value in facts.values.items() if value.kind in stored and not value.mutated}
    for op in facts.ops:
        overload = find_overload(op.target)
        if overload is None or op.opaque or torch.Tag.nondeterministic_seeded in overload.tags:
            continue
        if all(name in constants for name in op.inputs):
            constants.update(name for name in op.outputs if not facts.values[name].mutated)
    return frozenset(constants)


def _find_repeats(facts: GraphFacts, copies: list[Copy]) -> Mapping[str, str]:
    """Return node → the node that made the same copy before, in the same phase."""
    first: dict[tuple[object, ...], str] = {}
    repeats: dict[str, str] = {}
    for copy in copies:
        source, result = _get_source_and_result(facts, facts.op_by_node[copy.node])
        if source.mutated or result.mutated:
            continue
        key = (compute_value_key(facts, source.name), result.strides, copy.phase)
        before = first.setdefault(key, copy.node)
        if before != copy.node:
            repeats[copy.node] = before
    return repeats


def _replay_without_copy(analysis: Analysis, copy_op: OpFacts, position: Mapping[str, int]) -> _ReplayResult:
    """Replay everything behind a copy as if its users read the source."""
    facts = analysis.facts
    source, result = _get_source_and_result(facts, copy_op)
    if result.mutated or source.mutated or result.user_visible or not result.users or _is_storage_read(facts, result):
        return _ReplayResult(accepted=False)
    changed: dict[str, Strides] = {result.name: source.strides}
    queue = [position[user] for user in result.users]
    heapq.heapify(queue)
    vanished: list[str] = []
    plain_weights: list[str] = []
    done: set[int] = set()
    while queue:
        index = heapq.heappop(queue)
        if index in done:
            continue
        done.add(index)
        op = facts.ops[index]
        if len(done) > MAX_OPERATORS:
            return _ReplayResult(accepted=False)
        if any(_is_storage_read(facts, facts.values[name]) for name in op.outputs):
            return _ReplayResult(accepted=False, wanted_by=op.node)
        if op.operator in LAYOUT_COPIES and _is_noop(facts, op, changed):
            vanished.append(op.node)
            continue
        strides = replay_operator(op, facts, changed) if _accepts_strides(analysis, op, changed) else None
        if strides is None:
            return _ReplayResult(accepted=False, wanted_by=op.node)
        plain_weights.extend(_find_plain_weight(facts, op, changed))
        for name, now in zip(op.outputs, strides, strict=True):
            value = facts.values[name]
            if have_same_strides(value.shape, value.strides, now):
                continue
            if value.user_visible or value.mutated:
                return _ReplayResult(accepted=False)
            changed[name] = now
            for user in value.users:
                heapq.heappush(queue, position[user])
    return _ReplayResult(accepted=True, vanished=tuple(vanished), plain_weights=tuple(plain_weights))


def _find_plain_weight(facts: GraphFacts, op: OpFacts, changed: Mapping[str, Strides]) -> tuple[str, ...]:
    """Return the weight of a convolution whose input would become channels-last, if the weight is not."""
    if op.operator != "aten.convolution" or op.inputs[0] not in changed:
        return ()
    weight = facts.values[op.inputs[1]]
    return (weight.name,) if weight.layout is Layout.PLAIN else ()


def _is_storage_read(facts: GraphFacts, value: ValueFacts) -> bool:
    """Return True if an operator reads the memory behind `value` by address, directly or through a view."""
    shared = facts.values_by_storage[value.storage]
    return any(user.operator in STORAGE_READERS for view in shared for user in facts.get_users(view.name))


def _is_noop(facts: GraphFacts, op: OpFacts, changed: Mapping[str, Strides]) -> bool:
    source, result = _get_source_and_result(facts, op)
    now = changed.get(source.name)
    same_kind = source.dtype is result.dtype and source.device == result.device
    return now is not None and same_kind and not result.mutated and have_same_strides(source.shape, now, result.strides)


def _accepts_strides(analysis: Analysis, op: OpFacts, changed: Mapping[str, Strides]) -> bool:
    """Return True if `op` is known to run on the changed strides without a copy inside."""
    if op.opaque or op.mutates or op.operator in STORAGE_READERS:
        return False
    if is_view(op) or op.pointwise or op.operator in LAYOUT_COPIES:
        return True
    return all(
        _accepts_operand(analysis, op, index, analysis.facts.values[name], changed[name])
        for index, name in enumerate(op.inputs)
        if name in changed
    )


def _accepts_operand(analysis: Analysis, op: OpFacts, index: int, value: ValueFacts, strides: Strides) -> bool:
    pattern = classify_strides(value.shape, strides)
    if pattern is StridePattern.CONTIGUOUS:
        return True
    if analysis.contract is None:
        return False
    rank, form = len(value.shape), find_call_form(op, analysis.facts)
    entry = analysis.contract.get_entry(op.target, index, pattern, value.dtype, rank=rank, case=form)
    return entry is not None and not entry.copied
