"""What a rewrite is, and what it may know about the graph that it rewrites."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor, fx

from frx_graph.evidence.operator_measurement import LayoutTimes
from frx_graph.facts.graph_facts import GraphFacts
from frx_graph.passes.rewrites.order_members import Member, members_of
from frx_graph.passes.rewrites.stride_sensitivity import is_told_strides
from frx_graph.records import Candidate, Refusal


@dataclass(frozen=True)
class RewriteSubject:
    """One graph of an inner compiler's, before any rewrite.

    With `everything`, what can be rewritten is, whether it saves anything or not: rewrites are tested so. `times` are
    measured seconds of convolutions and poolings, by node name, in either layout. `visible` names the outputs whose
    strides somebody outside relies on; `given` holds the inputs as they were traced whose strides the rewritten forward
    has changed since.
    """

    facts: GraphFacts
    inner: str
    everything: bool = False
    times: Mapping[str, LayoutTimes] = field(default_factory=dict)
    bandwidth_bytes_per_s: float | None = None
    visible: frozenset[str] = frozenset()
    given: Mapping[str, Tensor] = field(default_factory=dict)

    @cached_property
    def members(self) -> tuple[Member, ...]:
        """The operators that hand an order on."""
        return members_of(self.facts, self.inner, lambda op: not is_told_strides(op))

    @property
    def generates_loops(self) -> bool:
        """True under Inductor, which writes pointwise operators and reductions as loops over any strides, and would
        itself choose one layout for all convolutions of the graph."""
        return self.inner == "inductor"


@dataclass(frozen=True)
class Rewrite:
    """One kind of rewrite: where it can be made, and how. `apply` returns the names of the nodes that it inserted, and
    raises `RewriteError`, the graph left as it was, where it cannot be made after all."""

    name: str
    propose: Callable[[RewriteSubject], Iterator[Candidate | Refusal]]
    apply: Callable[[RewriteSubject, fx.GraphModule, Candidate], tuple[str, ...]]
