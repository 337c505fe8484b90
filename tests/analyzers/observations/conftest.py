"""Two convolutions of one program, and findings that speak of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from small_analysis import analyse, copy_at
from torch import Tensor, nn

from frx_graph.analyzers.observations.claims import Claim, derive_claims
from frx_graph.analyzers.observations.observation import ObservedCall
from frx_graph.evidence.dtype import DType
from frx_graph.evidence.trace.events import Operand
from frx_graph.facts.graph_facts import GraphFacts, OpFacts
from frx_graph.passes.confidence import INFERRED
from frx_graph.records import Copy, CopyKind, Effort, Finding, OperandRole, Risk, Saving, Severity

__all__ = ["analyse", "copy_at"]


class Two(nn.Module):
    """The first two convolutions have other shapes than the third, which has those of the second."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 16, 3, padding=1, bias=False)
        self.second = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.third = nn.Conv2d(16, 16, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y = self.second(y)
        return self.third(y)


@dataclass(frozen=True)
class Program:
    """A captured program with a way to make findings on it."""

    facts: GraphFacts
    copy_at: Callable[..., Copy]

    @property
    def convolutions(self) -> tuple[OpFacts, ...]:
        return tuple(op for op in self.facts.ops if op.operator == "aten.convolution")

    @property
    def graphs(self) -> dict[str, GraphFacts]:
        return {self.facts.graph_id: self.facts}

    def finding(self, rule: str, op: OpFacts, *roles: OperandRole, **fields: Any) -> Finding:
        """On one operator, with a reorder of each of `roles`; confidence INFERRED."""
        names = {
            OperandRole.INPUT: op.inputs[0],
            OperandRole.WEIGHT: op.inputs[1],
            OperandRole.OUTPUT: op.outputs[0],
        }
        copies = tuple(
            self.copy_at(self.facts, op.node, names[role], kind=CopyKind.REORDER, role=role) for role in roles
        )
        kept: dict[str, Any] = {
            "rule": rule,
            "title": "a finding",
            "severity": Severity.LOW,
            "site": op.site,
            "nodes": (op.node,),
            "count_per_step": 1,
            "bytes_per_step": None,
            "saving": Saving(),
            "effort": Effort.ONE_LINE,
            "risk": Risk.LOW,
            "fix": "a fix",
            "confidence": INFERRED,
            "copies": copies,
            "graph_id": self.facts.graph_id,
        }
        return Finding(**{**kept, **fields})

    def claims(self, *findings: Finding) -> tuple[Claim, ...]:
        return derive_claims(findings, self.graphs)

    def call(self, op: OpFacts, *, strides: bool = True) -> ObservedCall:
        """The operator as a trace shows it."""
        operands = (
            Operand(value.shape, DType.from_name(value.dtype), value.strides if strides else None)
            for value in self.facts.get_input_values(op)
        )
        return ObservedCall(op.operator.replace(".", "::"), tuple(operands))


@pytest.fixture
def program(analyse: Any, copy_at: Any) -> Program:
    return Program(analyse(Two(), torch.randn(2, 8, 12, 12)).facts, copy_at)
