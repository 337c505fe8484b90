"""Running operators on a compilation's fake tensors without a trace in it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

from frx_graph.support.torch_internals import FakeTensorMode, disable_fake_tensor_cache, fake_tensor


@contextlib.contextmanager
def without_guards(mode: FakeTensorMode) -> Iterator[None]:
    """In `mode`, without adding guards on symbolic sizes, tracking fresh ones, filling its cache, or logging what
    fails: whoever tries an operator here deals with that.

    What a kernel that knows no symbolic sizes makes holds for one size only, and without the guard that says so the
    cache would give it to whoever runs the same operator next (torch 2.15, `constant_pad_nd`).
    """
    with contextlib.ExitStack() as stack:
        if mode.shape_env is not None:
            stack.enter_context(mode.shape_env.suppress_guards())
            stack.enter_context(mode.shape_env.ignore_fresh_unbacked_symbols())
            stack.enter_context(disable_fake_tensor_cache(mode))
        stack.enter_context(mode)
        stack.enter_context(_unlogged())
        yield


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Keeps from the terminal the stack that torch logs of a fake operator's failure in this thread."""
    logger, trying = logging.getLogger(fake_tensor.__name__), threading.get_ident()

    def of_others(record: logging.LogRecord) -> bool:
        return record.thread != trying or record.exc_info is None

    logger.addFilter(of_others)
    try:
        yield
    finally:
        logger.removeFilter(of_others)
