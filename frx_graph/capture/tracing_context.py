"""Keep traces from changing the program's state: modes, saved-tensor hooks, guards and logs."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

import torch

from frx_graph.support.torch_internals import (
    FakeTensorMode,
    disable_fake_tensor_cache,
    fake_tensor,
    get_functorch_depth,
    get_saved_tensor_hooks,
    pop_functorch_layers,
    set_saved_tensor_hooks_tracing,
)

_DEVICES = ("cpu", "cuda")
"""Device types with a separate autocast mode."""


@contextlib.contextmanager
def restore_modes() -> Iterator[None]:
    """Restore gradient mode, autocast and `torch.func` transforms on leaving.

    Dynamo's graphs switch these by calls between operators; one that raises in between would leave the wrong mode.
    """
    gradients = torch.is_grad_enabled()
    autocast = [(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _DEVICES]
    cached, nesting = torch.is_autocast_cache_enabled(), _count_autocast_nesting()
    # Dynamo itself cleans up so behind each compiled call (`_TorchDynamoContext`, torch 2.15 and 2.13).
    transforms = get_functorch_depth()
    try:
        yield
    finally:
        pop_functorch_layers(transforms)
        while _count_autocast_nesting() > nesting:
            torch.autocast_decrement_nesting()
        torch.set_autocast_cache_enabled(cached)
        for device, enabled, dtype in autocast:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_grad_enabled(gradients)


def _count_autocast_nesting() -> int:
    """Return the number of entered autocast regions; while there are any, converted weights are kept."""
    nesting: int = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return nesting


def has_saved_tensor_hooks() -> bool:
    """Return True if the user's hooks see what autograd saves now."""
    return get_saved_tensor_hooks(True) is not None


@contextlib.contextmanager
def hide_from_saved_tensor_hooks() -> Iterator[None]:
    """Hide what is saved for a backward inside from the user's hooks, as Dynamo's own tracing does.

    A checkpoint that counts saved tensors would find another number when it runs the program again, already compiled.
    """
    before = set_saved_tensor_hooks_tracing(True)
    try:
        yield
    finally:
        set_saved_tensor_hooks_tracing(before)


@contextlib.contextmanager
def disable_guards(mode: FakeTensorMode) -> Iterator[None]:
    """Enter `mode` without adding guards, tracking fresh symbols, filling its cache, or logging failures.

    The result of a kernel without symbolic sizes holds for one size only. Without the guard that says so, the cache
    would return it for other sizes (torch 2.15, `constant_pad_nd`).
    """
    with contextlib.ExitStack() as stack:
        if mode.shape_env is not None:
            stack.enter_context(mode.shape_env.suppress_guards())
            stack.enter_context(mode.shape_env.ignore_fresh_unbacked_symbols())
            stack.enter_context(disable_fake_tensor_cache(mode))
        stack.enter_context(mode)
        stack.enter_context(_suppress_failure_logs())
        yield


@contextlib.contextmanager
def _suppress_failure_logs() -> Iterator[None]:
    """Suppress the stack that torch logs if a fake operator fails in this thread."""
    logger, trying = logging.getLogger(fake_tensor.__name__), threading.get_ident()

    def is_unrelated(record: logging.LogRecord) -> bool:
        return record.thread != trying or record.exc_info is None

    logger.addFilter(is_unrelated)
    try:
        yield
    finally:
        logger.removeFilter(is_unrelated)
