"""Choose the layout of the backward graph by itself.

Why: before torch 2.15 Inductor counted no convolution in a backward graph and left it plain; since then it repeats the
forward's rule. Either way gradients and saved activations meet in different orders, and every convolution's backward
copies what does not suit it.
How: as for a forward, by measured times of each convolution's backward. Saved activations arrive in the order that the
forward left, incoming gradients in theirs; the parameters' gradients keep their order.
Assumes: the graph is functional, and its inputs have the strides that it was compiled for.
Safe: only strides of values inside the graph change; every gradient that leaves it has the strides that it had.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.capture.captured_graph import Phase
from frx_graph.passes.rewrites.layout.assignment import apply_orders, propose_orders
from frx_graph.passes.rewrites.rewrite import Rewrite, RewriteSubject
from frx_graph.records import Candidate, Refusal

NAME = "backward_layout"


def propose(subject: RewriteSubject) -> Iterator[Candidate | Refusal]:
    """Propose the orders of the backward of a training step."""
    if subject.phase is Phase.BACKWARD and subject.anchors:
        yield from propose_orders(subject, NAME)


REWRITE = Rewrite(NAME, propose, apply_orders)
