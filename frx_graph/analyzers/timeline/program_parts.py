"""What part of a training step each operator belongs to: loading, forward, backward, optimizer."""

from __future__ import annotations

import enum
import re

from frx_graph.evidence.trace.tree import NONE, TraceTree

_LOADER = re.compile(r"enumerate\(Data(?:Loader|Pipe)\)#.*|.*DataLoader.*__next__", re.DOTALL)
"""`enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__`, as torch names the wait for a batch."""
_ENGINE = "autograd::engine::"


class Part(enum.StrEnum):
    """A part of a step. `FORWARD` is every operator outside the other parts: the forward, the loss, and what else the
    program calls; `OTHER` are ranges that the program named, outside of their operators."""

    LOADING = "dataloader"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    ZERO_GRAD = "zero_grad"
    OTHER = "other"


_CLOSED = frozenset({Part.LOADING, Part.BACKWARD, Part.OPTIMIZER, Part.ZERO_GRAD})
"""What is called within these belongs to them."""


def parts_of(tree: TraceTree) -> tuple[Part, ...]:
    """By operator of the tree, in one pass from callers to callees."""
    found: list[Part] = []
    for index, (operator, parent) in enumerate(zip(tree.operators, tree.parents, strict=True)):
        above = found[parent] if parent != NONE else Part.OTHER
        if above in _CLOSED:
            found.append(above)
        else:
            found.append(_part(operator.name, operator.annotation, tree.backward_of[index] is not None))
    return tuple(found)


def is_loading(name: str) -> bool:
    """True for the range in which a program waits for a batch."""
    return _LOADER.fullmatch(name) is not None


def _part(name: str, annotation: bool, backward: bool) -> Part:
    if is_loading(name):
        return Part.LOADING
    if name.startswith("Optimizer.step"):
        return Part.OPTIMIZER
    if name.startswith("Optimizer.zero_grad"):
        return Part.ZERO_GRAD
    if backward or name.startswith(_ENGINE):
        return Part.BACKWARD
    return Part.OTHER if annotation or name.startswith("ProfilerStep#") else Part.FORWARD
