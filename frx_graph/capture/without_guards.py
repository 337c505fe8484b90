"""Running operators on a compilation's fake tensors without a trace in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch._subclasses.fake_tensor import FakeTensorMode, disable_fake_tensor_cache


@contextlib.contextmanager
def without_guards(mode: FakeTensorMode) -> Iterator[None]:
    """In `mode`, without adding guards on symbolic sizes, tracking fresh ones, or filling its cache.

    What a kernel that knows no symbolic sizes makes holds for one size only, and without the guard that says so the
    cache would give it to whoever runs the same operator next (torch 2.15, `constant_pad_nd`).
    """
    with contextlib.ExitStack() as stack:
        if mode.shape_env is not None:
            stack.enter_context(mode.shape_env.suppress_guards())
            stack.enter_context(mode.shape_env.ignore_fresh_unbacked_symbols())
            stack.enter_context(disable_fake_tensor_cache(mode))
        stack.enter_context(mode)
        yield
