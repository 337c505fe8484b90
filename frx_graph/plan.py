"""A plan: which rewrites are to be made, in which order, by which code; and its name, which is the same everywhere.

It says so either by a policy, which chooses among the candidates of each graph, or by naming the candidates themselves.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace

from frx_graph.records import Candidate

RECORDED = "recorded"
"""The policy of plans that name their candidates, each with the signature of its graph for its `graph_id`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """An ordered set of rewrites.

    `policy` says what chooses among candidates: measured times ("solved"), nothing ("all"), or that they were chosen
    before (`RECORDED`). `rewrites` names what may be made, in that order; `code` changes with the code of any of them,
    `machine` with whatever measurements depend on. With a `graph`, the signature of one, the plan is what is made of
    it: its `candidates`, in order.
    """

    policy: str
    rewrites: tuple[str, ...]
    code: str
    machine: tuple[str, ...]
    graph: str = ""
    candidates: tuple[Candidate, ...] = ()

    @property
    def hash(self) -> str:
        """Sixteen hexadecimal digits, equal in every process for equal plans. How a graph is numbered in a process, and
        how many seconds somebody has predicted, are no part of a plan."""
        named = self.policy == RECORDED
        made = [[c.rewrite, list(c.nodes), list(c.choices), *([c.graph_id] * named)] for c in self.candidates]
        text = json.dumps([self.policy, self.rewrites, self.code, self.machine, self.graph, made])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def of_graph(self, graph: str, candidates: tuple[Candidate, ...]) -> Plan:
        """The plan for one graph."""
        return replace(self, graph=graph, candidates=candidates)

    def may_make(self, rewrite: str) -> bool:
        """True for a rewrite that this plan allows."""
        return rewrite in self.rewrites

    def recorded_for(self, graph: str, rewrite: str) -> tuple[Candidate, ...]:
        """Return the candidates of one rewrite for the graph with this signature, in order."""
        return tuple(c for c in self.candidates if c.graph_id == graph and c.rewrite == rewrite)
