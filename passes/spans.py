"""Summarise a graph's traffic and copies as runs of operators by module and memory layout."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from frx_graph.advice import LayoutSpan
from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.layout import Layout, is_channels_last, is_contiguous
from frx_graph.passes.call_groups import group_by
from frx_graph.passes.costs.operator_costs import OpCost, count_op_costs
from frx_graph.passes.costs.operator_traffic import find_fresh_outputs
from frx_graph.records import HIDDEN_KINDS, Copy

MAX_SPANS = 60
"""Most blocks that one picture shows legibly."""
NO_LAYOUT = "-"
_IMAGE_RANKS = (4, 5)


@dataclass(frozen=True, slots=True)
class _OperatorTraffic:
    """One operator that moves memory. `module` is None if only the root is known, `layout` if no output of rank 4 or 5
    names one."""

    module: tuple[str, ...] | None
    phase: Phase
    layout: Layout | None
    layout_bytes: int
    bytes: int
    copies: int
    copy_bytes: int


@dataclass(frozen=True, slots=True)
class _ModuleRun:
    """Consecutive steps of one module, its path cut to the depth of the picture."""

    module: tuple[str, ...]
    phase: Phase
    steps: list[_OperatorTraffic]


def build_layout_spans(
    facts: GraphFacts, copies: Sequence[Copy], costs: Mapping[str, OpCost] | None = None
) -> tuple[LayoutSpan, ...]:
    """Return the operators of the step in execution order, in at most `MAX_SPANS` spans.

    A span ends at a change of phase or module path, the path cut to the greatest depth within the limit. If the limit
    allows, it also ends at a change of layout. Its layout is that of most bytes written in rank 4 and 5, or `-`.
    `costs` is `op_costs(facts)`, if known already.
    """
    costs = count_op_costs(facts) if costs is None else costs
    copies_at = group_by(copies, lambda copy: copy.node)
    every = (_build_step(op, facts, costs[op.node].bytes, copies_at.get(op.node, ())) for op in facts.ops)
    steps = [step for step in every if step.bytes]
    root = next((step.module[0] for step in steps if step.module), "")
    deepest = max((len(step.module) for step in steps if step.module), default=0)
    for depth, by_layout in itertools.product(range(deepest, -1, -1), (True, False)):
        runs = _group_runs(steps, depth, by_layout=by_layout)
        if len(runs) <= MAX_SPANS:
            break
    return tuple(_build_span(run, root) for run in runs)


def _build_step(op: OpFacts, facts: GraphFacts, own_bytes: int, copies: Sequence[Copy]) -> _OperatorTraffic:
    images = [value for value in find_fresh_outputs(op, facts) if _has_distinct_layout(value)]
    largest = max(images, key=lambda value: value.bytes, default=None)
    return _OperatorTraffic(
        module=_get_module(op),
        phase=op.phase,
        layout=largest.layout if largest is not None else None,
        layout_bytes=largest.bytes if largest is not None else 0,
        bytes=facts.calls * own_bytes + sum(copy.bytes for copy in copies if copy.kind in HIDDEN_KINDS),
        copies=sum(copy.count for copy in copies),
        copy_bytes=sum(copy.bytes for copy in copies),
    )


def _get_module(op: OpFacts) -> tuple[str, ...] | None:
    """Return the module path; None for autograd's sums of gradients between modules."""
    parts = tuple(op.site.module_path.split("."))
    return None if not op.site.line or (op.phase is Phase.BACKWARD and len(parts) == 1) else parts


def _has_distinct_layout(value: ValueFacts) -> bool:
    """Return True for images with a distinct layout: not those that are plain and channels-last at once."""
    both = is_contiguous(value.shape, value.strides) and is_channels_last(value.shape, value.strides)
    return len(value.shape) in _IMAGE_RANKS and not both


def _group_runs(steps: Sequence[_OperatorTraffic], depth: int, *, by_layout: bool) -> list[_ModuleRun]:
    """Group consecutive steps of one module, phase and layout; a step without module or layout joins the last run."""
    runs: list[_ModuleRun] = []
    layout: Layout | None = None
    for step in steps:
        run = runs[-1] if runs else None
        module = step.module[:depth] if step.module is not None else run.module if run is not None else ()
        changed = by_layout and step.layout is not None and layout is not None and step.layout is not layout
        if run is not None and (run.module, run.phase) == (module, step.phase) and not changed:
            run.steps.append(step)
            layout = step.layout or layout
        else:
            runs.append(_ModuleRun(module, step.phase, [step]))
            layout = step.layout
    return runs


def _build_span(run: _ModuleRun, root: str) -> LayoutSpan:
    written: Counter[str] = Counter()
    for step in run.steps:
        if step.layout is not None:
            written[step.layout.value] += step.layout_bytes
    return LayoutSpan(
        module_path=".".join(run.module) or root,
        phase=run.phase,
        layout=max(written, key=written.__getitem__, default=NO_LAYOUT),
        ops=len(run.steps),
        bytes=sum(step.bytes for step in run.steps),
        copies=sum(step.copies for step in run.steps),
        copy_bytes=sum(step.copy_bytes for step in run.steps),
    )
