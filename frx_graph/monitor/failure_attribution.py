"""Whose fault it is where a watched plan fails and the call cannot be made again by the baseline.

What is recorded of a plan ends it for all processes, so that what may have another reason counts in this one only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import distributed as dist

from frx_graph.capture.saved_tensor_hooks import unseen_by_saved_tensor_hooks
from frx_graph.compiler.baseline import KeptBaseline
from frx_graph.errors import first_line
from frx_graph.monitor.shadow_run import copied_bytes, fails_as_well
from frx_graph.monitor.step_metrics import StepReading
from frx_graph.support.out_of_memory import out_of_memory


@dataclass(frozen=True, slots=True)
class Blame:
    """Why the baseline runs from now on, in a line. `recorded`: in other processes, too."""

    reason: str
    recorded: bool


class FailureBlame:
    """Blames a plan, or does not, for what its program raises. None: it stays."""

    def __init__(self, baseline: KeptBaseline, reading: StepReading, *, repeatable: bool) -> None:
        """`repeatable`: a call may be computed twice, on copies at least."""
        self._baseline = baseline
        self._reading = reading
        self._repeatable = repeatable
        self._calls = 0

    def of_call(self, failure: Exception, args: Sequence[Any], written: frozenset[int]) -> Blame | None:
        """Of a call with `args`, which may have written into those at `written`: the baseline computes it on copies of
        them, if there is memory for that."""
        if not out_of_memory(failure) and not self._reading.usable():
            return None
        self._calls += 1
        if self._calls & (self._calls - 1):
            # All before were the user's own, and each time what may be all weights is copied: the first, the second,
            # the fourth, and so on is looked into.
            return None
        if not self._repeatable:
            return _unseen(failure)
        try:
            if not self._reading.fits(copied_bytes(args, written)):
                return _without_memory(failure)
            with unseen_by_saved_tensor_hooks():
                fails = fails_as_well(self._baseline.program(args), args, written, self._reading.device)
        except Exception as error:  # noqa: BLE001 - the user is to see the program's failure, not one of ours
            return _without_memory(failure) if out_of_memory(error) else _unseen(failure)
        if fails is None:
            return _unseen(failure)
        return None if fails else Blame(f"it failed where the baseline does not: {first_line(failure)}", recorded=True)

    def of_backward(self, failure: Exception) -> Blame | None:
        """Of other failures the user's own code may be the reason: a second backward, a write into what was saved."""
        if out_of_memory(failure):
            return _lacking_memory(failure)
        if not _says_a_compiler(failure) or not self._reading.usable():
            return None
        reason = f"its backward failed, which cannot be made again by the baseline: {first_line(failure)}"
        return Blame(reason, recorded=True)


def _unseen(failure: Exception) -> Blame:
    """Nobody can tell what the baseline does."""
    if out_of_memory(failure):
        return _lacking_memory(failure)
    if _of_several_ranks():
        return Blame(f"{first_line(failure)}; of several ranks another one may be the reason", recorded=False)
    reason = f"it failed, in a call that cannot be made again by the baseline: {first_line(failure)}"
    return Blame(reason, recorded=True)


def _lacking_memory(failure: Exception) -> Blame:
    """As who looks for the largest batch provokes it."""
    return Blame(f"{first_line(failure)}; the baseline may lack memory, too", recorded=False)


def _without_memory(failure: Exception) -> Blame:
    reason = f"{first_line(failure)}; there is no memory to see whether the baseline fails as well"
    return Blame(reason, recorded=False)


def _of_several_ranks() -> bool:
    """Where one that dies fails the collectives of all."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _says_a_compiler(error: Exception) -> bool:
    """AOTAutograd keeps to itself that a backward cannot be compiled, until it runs first."""
    return type(error).__module__.startswith(("torch._inductor", "torch._dynamo"))
