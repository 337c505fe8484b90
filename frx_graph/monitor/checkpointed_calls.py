"""Calls of a program amid the user's hooks on what autograd saves, such as those of activation checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from frx_graph.monitor.shadow_run import differentiated, tensors

_FORWARDS_BEFORE_A_BACKWARD = 1024
"""As many as layers that share a program, times micro-batches, seldom are."""


class HookedCalls:
    """Makes such calls. A checkpoint makes each once more in the backward, and counts what it saves: the program must
    be the same, also where the plan is given up between."""

    def __init__(self, planned: Callable[..., Any]) -> None:
        """`planned`: the program that makes calls until the plan is given up."""
        self._planned = planned
        self._program = planned
        self._awaits_backward = False
        self._since_given_up = 0

    def call(self, current: Callable[..., Any], args: Sequence[Any]) -> Any:
        """What the call returns, made by `current` unless a call before it is still to be made once more by another
        program. Raises what the program raises."""
        given_up = current != self._planned
        amid_backward = torch._C._current_graph_task_id() != -1
        if not amid_backward:
            self._choose(current, given_up)
        try:
            result = self._program(*args)
        except Exception:
            # Checkpoints end their second run by an exception of their own.
            self._awaits_backward = False
            raise
        awaiting = [] if amid_backward else [value for value in tensors(result) if differentiated(value)]
        if awaiting:
            self._awaits_backward = True
            if given_up:
                for value in awaiting:
                    value.register_hook(self._differentiated)
        return result

    def _choose(self, current: Callable[..., Any], given_up: bool) -> None:
        self._since_given_up += given_up
        # Where no backward comes, nothing is made once more.
        waited = self._since_given_up > _FORWARDS_BEFORE_A_BACKWARD
        if waited or not self._awaits_backward:
            self._program = current

    def _differentiated(self, _gradient: Tensor) -> None:
        """When the next call comes, but in this backward, all before it has been made once more."""
        self._awaits_backward = False
