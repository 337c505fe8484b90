"""The user's hooks on what autograd saves for a backward: activation checkpoints count it, offloading moves it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from frx_graph.support.torch_internals import get_saved_tensor_hooks, set_saved_tensor_hooks_tracing


def has_saved_tensor_hooks() -> bool:
    """Whether hooks of the user's see what is saved now."""
    hooks = get_saved_tensor_hooks(True)
    return hooks is not None


@contextlib.contextmanager
def unseen_by_saved_tensor_hooks() -> Iterator[None]:
    """What is saved inside, by computations of ours, is seen by no hook: a checkpoint that counts it would find another
    number when it runs the program again, which then is compiled already. Dynamo's own tracing does the same."""
    before = set_saved_tensor_hooks_tracing(True)
    try:
        yield
    finally:
        set_saved_tensor_hooks_tracing(before)
