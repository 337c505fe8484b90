"""Puts back the modes that a graph switches while it runs.

Graphs of Dynamo's switch gradients, autocast and transforms of `torch.func` on and off by calls between operators; one
that raises in between would leave the program in the wrong mode.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode, disable_fake_tensor_cache

_DEVICES = ("cpu", "cuda")
"""Autocast has a mode for each type of device."""


@contextlib.contextmanager
def modes_put_back() -> Iterator[None]:
    """On leaving, also by an exception, gradients, autocast and transforms are as they were."""
    gradients = torch.is_grad_enabled()
    autocast = [(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _DEVICES]
    cached, nesting = torch.is_autocast_cache_enabled(), _autocast_nesting()
    # Private: Dynamo itself cleans up so behind each compiled call (`_TorchDynamoContext`, torch 2.15 and 2.13).
    transforms = torch._C._functorch.get_dynamic_layer_stack_depth()
    try:
        yield
    finally:
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(transforms)
        while _autocast_nesting() > nesting:
            torch.autocast_decrement_nesting()
        torch.set_autocast_cache_enabled(cached)
        for device, enabled, dtype in autocast:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_grad_enabled(gradients)


def _autocast_nesting() -> int:
    """How many regions of autocast are entered: as long as there are any, converted weights are kept."""
    nesting: int = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return nesting


def has_saved_tensor_hooks() -> bool:
    """Whether hooks of the user's see what is saved now."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None


@contextlib.contextmanager
def unseen_by_saved_tensor_hooks() -> Iterator[None]:
    """What is saved inside, by computations of ours, is seen by no hook: a checkpoint that counts it would find another
    number when it runs the program again, which then is compiled already. Dynamo's own tracing does the same."""
    before = torch._C._autograd._saved_tensors_hooks_set_tracing(True)
    try:
        yield
    finally:
        torch._C._autograd._saved_tensors_hooks_set_tracing(before)


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
