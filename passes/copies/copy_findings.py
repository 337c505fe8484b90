"""Turn predicted copies into findings, one for all the copies of a line."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from frx_graph.capture.call_site import CallSite, merge_module_paths
from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import GraphFacts, ValueFacts
from frx_graph.facts.operator_families import EXPLICIT_COPIES, WRITING_COPIES
from frx_graph.measure.operators.operator_contract import OperatorContract
from frx_graph.passes import confidence
from frx_graph.passes.analysis import Analysis
from frx_graph.passes.call_groups import group_by_place
from frx_graph.passes.severity import grade_bytes, predict_saving
from frx_graph.records import Copy, CopyKind, Effort, Evidence, Finding, OperandRole, Risk, Severity
from frx_graph.support.plain_text import format_bytes

SHOWN = 3
"""Values described in the evidence of one finding; the rest is counted."""
_DTYPE_NAMES = {torch.float32: "fp32", torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16"}


@dataclass(frozen=True)
class CopyGroup:
    """All copies of one rule at one call site, forward and backward. Never empty."""

    copies: tuple[Copy, ...]

    @cached_property
    def site(self) -> CallSite:
        """Line of the first copy, with the module paths of all folded into one."""
        return replace(self.copies[0].site, module_path=merge_module_paths(self.modules))

    @cached_property
    def modules(self) -> tuple[str, ...]:
        """Module paths in order of appearance."""
        return tuple(dict.fromkeys(copy.site.module_path for copy in self.copies if copy.site.module_path))

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """Nodes in order of appearance."""
        return tuple(dict.fromkeys(copy.node for copy in self.copies))

    @cached_property
    def count(self) -> int:
        """Copies per step."""
        return sum(copy.count for copy in self.copies)

    @cached_property
    def bytes(self) -> int:
        """Traffic per step, read plus written."""
        return sum(copy.bytes for copy in self.copies)

    @cached_property
    def largest(self) -> Copy:
        """The copy that moves most; the first of equals."""
        return max(self.copies, key=lambda copy: copy.bytes)

    def count_in_phase(self, phase: Phase) -> int:
        """Return copies per step in one half of the step."""
        return sum(copy.count for copy in self.copies if copy.phase is phase)


@dataclass(frozen=True, slots=True)
class Remedy:
    """A fix that ends the copies of a group, and the least traffic that it certainly saves. `severity` replaces the one
    that follows from the saving. `needs_action` is False if the program itself needs no change for them."""

    fix: str
    effort: Effort = Effort.LOCAL
    risk: Risk = Risk.LOW
    sure_bytes: int = 0
    severity: Severity | None = None
    needs_action: bool = True


def group_copies(analysis: Analysis, rule: str) -> tuple[CopyGroup, ...]:
    """Return the copies that `rule` claims, by place, in order of first appearance."""
    owned = (copy for copy in analysis.copies if find_owner(copy) == rule)
    return tuple(CopyGroup(tuple(copies)) for copies in group_by_place(owned, lambda copy: copy.site))


def build_copy_finding(
    group: CopyGroup,
    analysis: Analysis,
    *,
    rule: str,
    title: str,
    remedy: Remedy,
    possible_bytes: int,
    evidence: Iterable[Evidence] = (),
) -> Finding:
    """Return the finding of one group. `possible_bytes` is the most traffic that the remedy saves; severity follows
    from it. Evidence common to all copies (counts, phases, their source) is added."""
    possible_bytes = possible_bytes if remedy.needs_action else 0
    severity = grade_bytes(possible_bytes, analysis.step_bytes) if remedy.severity is None else remedy.severity
    # An operator of the graph is certain, and so is a copy seen when its operator ran separately.
    copying, ops = EXPLICIT_COPIES | WRITING_COPIES, analysis.facts.op_by_node
    certain = (node in analysis.measurements or (node in ops and ops[node].operator in copying) for node in group.nodes)
    return Finding(
        rule=rule,
        title=title,
        severity=severity,
        site=group.site,
        nodes=group.nodes,
        count_per_step=group.count,
        bytes_per_step=possible_bytes,
        saving=predict_saving(remedy.sure_bytes, possible_bytes, analysis.step_bytes),
        effort=remedy.effort,
        risk=remedy.risk,
        fix=remedy.fix,
        confidence=confidence.MEASURED if all(certain) else _grade_prediction(group, analysis.contract),
        evidence=(_count_evidence(group), *evidence),
        copies=group.copies,
        modules=group.modules,
    )


def _grade_prediction(group: CopyGroup, contract: OperatorContract | None) -> float:
    """Return the confidence in copies inside operators that were not run."""
    if contract is None or not contract.documented:
        return confidence.INFERRED
    # ATen's source is certain; a library decides by heuristics.
    converted = any(copy.kind is CopyKind.REORDER for copy in group.copies)
    return confidence.ASSUMED if converted else confidence.MODELLED


def _count_evidence(group: CopyGroup) -> Evidence:
    backward = group.count_in_phase(Phase.BACKWARD)
    split = f", {backward} of them in the backward" if backward else ""
    moved = "1 copy per step moves" if group.count == 1 else f"{group.count} copies per step move"
    return Evidence(f"{moved} {format_bytes(group.bytes)}{split}", "predicted copies")


def format_value(value: ValueFacts) -> str:
    """Format a value: `(2, 64, 56, 56) fp32, strides (200704, 1, 3584, 64), channels_last`."""
    dtype = _DTYPE_NAMES.get(value.dtype, str(value.dtype).removeprefix("torch."))
    return f"{value.shape} {dtype}, strides {value.strides}, {value.layout}"


def find_owner(copy: Copy) -> str:
    """Return the code of the only rule that claims `copy`, so that totals never count it twice.

    Other rules may show the same copies as the price of a larger pattern; they leave `Finding.copies` empty.
    """
    if copy.role is OperandRole.WEIGHT:
        return "FRX007"
    if copy.kind in (CopyKind.EXPLICIT, CopyKind.RESHAPE):
        return "FRX002"
    return "FRX001"


def describe_copy(facts: GraphFacts, copy: Copy) -> str:
    """Describe the copied value and the cause of the copy."""
    value = facts.values.get(copy.value)
    return f"{format_value(value) if value is not None else copy.value}: {copy.cause}"


def summarize_texts(texts: Iterable[tuple[str, int]]) -> Iterator[Evidence]:
    """Yield the first few distinct texts as evidence, each with its total count, then the number of those left out."""
    counts: Counter[str] = Counter()
    for text, count in texts:
        counts[text] += count
    for text, count in itertools.islice(counts.items(), SHOWN):
        yield Evidence(f"{text} ({count}×)" if count > 1 else text, "eager graph")
    if len(counts) > SHOWN:
        yield Evidence(f"and {len(counts) - SHOWN} more", "eager graph")
