"""Make calls under saved-tensor hooks, such as those of activation checkpoints, which replay calls in the backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from frx_graph.monitor.shadow_run import list_tensors, requires_gradient
from frx_graph.support.torch_internals import is_backward_running

_FORWARDS_BEFORE_A_BACKWARD = 1024
"""Most remembered calls: more than layers that share a program, times micro-batches, in most models."""


class CheckpointReplay:
    """Make such calls, and replay each by the program that made it first, even if the plan was given up in between: a
    checkpoint checks that the same tensors are saved."""

    def __init__(self, planned: Callable[..., Any]) -> None:
        """Replay calls of `planned`, the program until the plan is given up."""
        self._planned = planned
        self._program = planned
        self._awaits_backward = False
        self._since_given_up = 0

    def call(self, current: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Compute the call by `current`, unless a backward will still replay earlier calls of another program."""
        given_up = current != self._planned
        amid_backward = is_backward_running()
        if not amid_backward:
            self._since_given_up += given_up
            # Without a backward nothing is replayed.
            if not self._awaits_backward or self._since_given_up > _FORWARDS_BEFORE_A_BACKWARD:
                self._program = current
        try:
            result = self._program(*args)
        except Exception:
            # A checkpoint ends its replay by its own exception.
            self._awaits_backward = False
            raise
        awaiting = [] if amid_backward else [value for value in list_tensors(result) if requires_gradient(value)]
        if awaiting:
            self._awaits_backward = True
            if given_up:
                for value in awaiting:
                    value.register_hook(self._note_backward)
        return result

    def _note_backward(self, _gradient: Tensor) -> None:
        # By the first call after this backward, all earlier ones have been replayed.
        self._awaits_backward = False
