"""Plans: an ordered set of rewrites, with a hash that is the same in every process.

A plan has a policy that chooses among the candidates of each graph, or names the candidates themselves.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace

from frx_graph.records import Candidate

RECORDED = "recorded"
"""The policy of plans that name their candidates, each with a graph signature as `graph_id`."""
PROPOSED = "proposed"
"""The policy of trials that look for candidates: like "solved", but a graph that is predicted to be slower is kept."""


@dataclass(frozen=True, slots=True)
class Plan:
    """An ordered set of rewrites.

    The `policy` chooses candidates by measured times ("solved", `PROPOSED`), takes all ("all"), or names them
    (`RECORDED`).
    `rewrites` may be applied, in that order. `code` changes with the code of any of them, `machine` with everything
    that measurements depend on. With a `graph`, a signature, the plan is for that graph, with its `candidates` in
    order.
    """

    policy: str
    rewrites: tuple[str, ...]
    code: str
    machine: tuple[str, ...]
    graph: str = ""
    candidates: tuple[Candidate, ...] = ()

    @property
    def hash(self) -> str:
        """Sixteen hexadecimal digits, equal for equal plans, whatever the graph ids and predictions."""
        named = self.policy == RECORDED
        made = [[c.rewrite, list(c.nodes), list(c.choices), *([c.graph_id] * named)] for c in self.candidates]
        text = json.dumps([self.policy, self.rewrites, self.code, self.machine, self.graph, made])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def measures(self) -> bool:
        """True if measured times choose the candidates."""
        return self.policy in ("solved", PROPOSED)

    def bind_to_graph(self, graph: str, candidates: tuple[Candidate, ...]) -> Plan:
        """Return the plan for one graph."""
        return replace(self, graph=graph, candidates=candidates)

    def can_make(self, rewrite: str) -> bool:
        """Return True for a rewrite that this plan allows."""
        return rewrite in self.rewrites

    def select_candidates(self, graph: str, rewrite: str) -> tuple[Candidate, ...]:
        """Return the candidates of one rewrite for the graph with this signature, in order."""
        return tuple(c for c in self.candidates if c.graph_id == graph and c.rewrite == rewrite)
