"""Turn findings into claims about operator calls, in the terms that files of a run use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from frx_graph.analyzers.trace.operators import COPY, EXPLICIT, RESHAPES
from frx_graph.capture.call_site import CallSite
from frx_graph.capture.captured_graph import Phase
from frx_graph.evidence.dtype import DType
from frx_graph.evidence.trace.events import Operand
from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.operator_families import get_profiler_names
from frx_graph.records import Copy, CopyKind, Finding, OperandRole

_OF_OPERATORS = frozenset({"FRX004", "FRX008", "FRX010", "FRX015"})
"""Rules for whole operators whose layout costs time; by themselves they claim no copy."""
_CLONE = frozenset({"aten::clone"})
"""Operators that a compiler shows for any copy."""
_PRODUCTS = frozenset(f"aten::{name}" for name in ("matmul", "linear", "einsum", "tensordot", "bilinear"))
"""Operators whose operands are folded: the graph has products of two or three dimensions instead."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim that an operator call copies, or (without `role` and `kind`) runs in a layout that costs time.

    `operators` are the names that a profiler may show for the call. `operands` are its tensors without scalars, empty
    if its names cover calls with different operands. `copied` is the tensor before the copy. `finding` is the position
    of the finding that makes the claim.
    """

    finding: int
    operators: frozenset[str]
    operands: tuple[Operand, ...]
    site: CallSite
    phase: Phase
    copied: Operand | None = None
    role: OperandRole | None = None
    kind: CopyKind | None = None


def derive_claims(findings: Sequence[Finding], graphs: Mapping[str, GraphFacts]) -> tuple[Claim, ...]:
    """Return the claims of all findings on layouts; `graphs` are by id."""
    found: list[Claim] = []
    for number, finding in enumerate(findings):
        facts = graphs.get(finding.graph_id)
        if facts is None:
            continue
        found.extend(_claim_copy(number, copy, facts) for copy in finding.copies if copy.node in facts.op_by_node)
        nodes = finding.nodes if finding.rule in _OF_OPERATORS else ()
        ops = [facts.op_by_node[node] for node in nodes if node in facts.op_by_node]
        found.extend(
            Claim(number, get_profiler_names([op.operator]), _list_operands(op, facts), op.site, op.phase) for op in ops
        )
    return tuple(dict.fromkeys(found))


def _claim_copy(number: int, copy: Copy, facts: GraphFacts) -> Claim:
    op = facts.op_by_node[copy.node]
    value = facts.values.get(copy.value)
    inside = copy.operator == op.operator and copy.kind not in (CopyKind.EXPLICIT, CopyKind.RESHAPE)
    return Claim(
        finding=number,
        operators=_list_operator_names(copy, op),
        # A requested copy is a clone in the graph; in a run it appears under the operator that requested it.
        operands=_list_operands(op, facts) if inside else (),
        site=copy.site,
        phase=copy.phase,
        copied=None if value is None else _make_operand(value),
        role=copy.role,
        kind=copy.kind,
    )


def _list_operator_names(copy: Copy, op: OpFacts) -> frozenset[str]:
    if copy.kind is CopyKind.EXPLICIT:
        return EXPLICIT | {COPY, *get_profiler_names([op.operator])}
    if copy.kind is CopyKind.RESHAPE:
        return RESHAPES | _CLONE
    if copy.operator == "aten.matmul":
        return _PRODUCTS | _CLONE
    return get_profiler_names([copy.operator])


def _list_operands(op: OpFacts, facts: GraphFacts) -> tuple[Operand, ...]:
    return tuple(_make_operand(value) for value in facts.get_input_values(op) if value.shape)


def _make_operand(value: ValueFacts) -> Operand:
    return Operand(value.shape, DType.from_name(value.dtype), value.strides)
