"""A plan: which rewrites are to be made, in which order, by which code; and its name, which is the same everywhere."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace

from frx_graph.records import Candidate


@dataclass(frozen=True, slots=True)
class Plan:
    """An ordered set of rewrites.

    `policy` says what chooses among candidates, `rewrites` names what may be made, in that order; `code` changes with
    the code of any of them, `machine` with whatever measurements depend on. With a `graph`, the signature of one, the
    plan is what is made of it: its `candidates`, in order.
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
        made = [[c.rewrite, list(c.nodes), list(c.choices)] for c in self.candidates]
        text = json.dumps([self.policy, self.rewrites, self.code, self.machine, self.graph, made])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def of_graph(self, graph: str, candidates: tuple[Candidate, ...]) -> Plan:
        """The plan for one graph."""
        return replace(self, graph=graph, candidates=candidates)
