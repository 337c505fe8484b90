"""Give every region of convolutions the layout that is fastest for it.

Why: a compiler that decides once per graph is wrong for part of it if stages differ. Wide and shallow stages are fast
in channels-last, narrow and deep ones in plain; batch size, training and grouping can reverse this.
How: each operator gets the order that measured convolution times and conversion costs favour, through permutes and
views too. Values are converted where orders meet, once each. Copies with an explicit layout follow their neighbours.
Assumes: the graph is functional, and an operator that the operator table knows computes the same values in any order.
Safe: only strides of values inside the graph change. Operators keep their strides if they take explicit ones, are
unknown, or draw random numbers. Values that callers see keep theirs, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.capture.captured_graph import Phase
from frx_graph.passes.rewrites.layout.assignment import apply_orders, propose_orders
from frx_graph.passes.rewrites.rewrite import Rewrite, RewriteSubject
from frx_graph.records import Candidate, Refusal

NAME = "propagate_layout"


def propose(subject: RewriteSubject) -> Iterator[Candidate | Refusal]:
    """Propose the orders of an inference graph, or of a forward with its backward's times included."""
    if subject.phase is Phase.FORWARD and subject.anchors:
        yield from propose_orders(subject, NAME)


REWRITE = Rewrite(NAME, propose, apply_orders)
