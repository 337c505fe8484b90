"""Remove permutes with copies that undo each other, or that no operator in between needs.

Why: `x.permute(...).contiguous()` in front of a few operators and the way back behind them moves everything twice,
though most operators compute the same in either order.
How: operators between two copies run in the order of their data; a copy stays if an operator requires an order. In
graphs with convolutions or attention, `propagate_layout` and `backward_layout` decide this.
Assumes: the graph is functional, and an operator that the operator table knows computes the same values in any order.
Safe: only strides of values inside the graph change; see `propagate_layout`.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.passes.rewrites.layout.assignment import apply_orders, propose_orders
from frx_graph.passes.rewrites.rewrite import Rewrite, RewriteSubject
from frx_graph.records import Candidate, Refusal

NAME = "cancel_permutes"


def propose(subject: RewriteSubject) -> Iterator[Candidate | Refusal]:
    """Propose the orders of a graph that has copies but no anchors."""
    # Inductor reads any order while it computes: removing its copies is not worth a new one.
    if not subject.generates_loops and not subject.anchors and any(member.told for member in subject.members):
        yield from propose_orders(subject, NAME)


REWRITE = Rewrite(NAME, propose, apply_orders)
