"""Running operators on a compilation's fake tensors without a trace in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode


@contextlib.contextmanager
def without_guards(mode: FakeTensorMode) -> Iterator[None]:
    """In `mode`, without adding guards on symbolic sizes or tracking fresh ones.

    Symbolic sizes stay symbolic: as where AOTAutograd traces, Python's kernels go before those that take numbers only.
    What the latter make holds for one size, and without the guard that says so the mode's cache would give it to
    whoever runs the same operator next (torch 2.15, `constant_pad_nd`).
    """
    with contextlib.ExitStack() as stack:
        if mode.shape_env is not None:
            stack.enter_context(mode.shape_env.suppress_guards())
            stack.enter_context(mode.shape_env.ignore_fresh_unbacked_symbols())
            stack.enter_context(enable_python_dispatcher())
        stack.enter_context(mode)
        yield
