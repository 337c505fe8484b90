"""Recognise copies of unrolled loops: repeated at one line, in one call of one module."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.passes.copies.view_chain import compute_value_key, trace_views
from frx_graph.records import Copy

_MAX_BETWEEN = 48
"""Most operators between one round of a loop and the next. A transformer block has about 30."""


def find_loop_copies(facts: GraphFacts, copies: Iterable[Copy]) -> Mapping[str, str | None]:
    """Return the nodes of those `copies` that are two or more rounds of a loop.

    That is copies of one line in one module and phase, with neither source nor result written to. The value is the base
    that all their sources are parts of, or None if each round uses the result of the one before.
    """
    by_line: dict[tuple[object, ...], list[Copy]] = defaultdict(list)
    for copy in copies:
        if copy.site.line and not _is_written(facts, copy):
            by_line[(copy.site, copy.phase)].append(copy)
    loops: dict[str, str | None] = {}
    for rounds in by_line.values():
        if len(rounds) < 2:
            continue
        base = _find_common_base(facts, rounds)
        if base is not None:
            loops.update((copy.node, base) for copy in rounds)
        elif all(_depends_on(facts, later.value, earlier.node) for earlier, later in itertools.pairwise(rounds)):
            loops.update((copy.node, None) for copy in rounds)
    return loops


def _is_written(facts: GraphFacts, copy: Copy) -> bool:
    made = facts.op_by_node[copy.node].outputs
    return any(facts.values[name].mutated for name in (copy.value, *made))


def _find_common_base(facts: GraphFacts, rounds: Sequence[Copy]) -> str | None:
    """Return the value that the rounds copy part by part; None if there is none or a round copies all of it."""
    bases = {trace_views(facts, copy.value).base for copy in rounds}
    base = facts.values[bases.pop()]
    if bases or len({compute_value_key(facts, copy.value) for copy in rounds}) < len(rounds):
        return None
    return base.name if all(facts.values[copy.value].numel < base.numel for copy in rounds) else None


def _depends_on(facts: GraphFacts, value: str, node: str) -> bool:
    """Return True if `value` is computed from the result of `node`, a few operators before."""
    pending, seen = [value], {value}
    while pending and len(seen) <= _MAX_BETWEEN:
        op = facts.get_producer(pending.pop(0))
        if op is None:
            continue
        if op.node == node:
            return True
        pending.extend(name for name in op.inputs if name not in seen)
        seen.update(op.inputs)
    return False
