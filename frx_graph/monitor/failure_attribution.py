"""Attribute failures of a monitored plan that the baseline cannot repair by repeating the call.

A recorded failure ends the plan for all processes. So a failure that may have another reason counts in this process
only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch import distributed as dist

from frx_graph.capture.tracing_context import hide_from_saved_tensor_hooks
from frx_graph.compiler.fallback import LazyBaseline
from frx_graph.errors import is_out_of_memory, summarize_error
from frx_graph.monitor.shadow_run import count_copied_bytes, try_reproduce_failure
from frx_graph.monitor.step_metrics import StepMetrics
from frx_graph.support.torch_internals import get_autograd_function


@dataclass(frozen=True, slots=True)
class Attribution:
    """The reason, in one line, to run the baseline from now on; if `recorded`, in other processes as well."""

    reason: str
    recorded: bool


class FailureAttribution:
    """Decide whether the plan caused an exception; None means that the plan stays."""

    def __init__(self, baseline: LazyBaseline, metrics: StepMetrics, *, repeatable: bool) -> None:
        """Compare with `baseline`. `repeatable`: a call may be computed twice, at least on copies."""
        self._baseline = baseline
        self._metrics = metrics
        self._repeatable = repeatable
        self._failed_calls = 0

    def attribute_call(self, failure: Exception, args: Sequence[Any], written: frozenset[int]) -> Attribution | None:
        """Attribute the failure of a call, which may have written into the `args` at the positions `written`, by the
        baseline on copies of them, if there is memory for that."""
        if not is_out_of_memory(failure) and not self._metrics.is_device_usable():
            return None
        self._failed_calls += 1
        if self._failed_calls & (self._failed_calls - 1):
            # All earlier failures were the user's, and the copies may include all weights. So only failures 1, 2, 4, 8,
            # ... are examined.
            return None
        if not self._repeatable:
            return _attribute_unexamined(failure)
        try:
            if not self._metrics.can_fit(count_copied_bytes(args, written)):
                return _attribute_without_memory(failure)
            with hide_from_saved_tensor_hooks():
                program = self._baseline.get_program(args)
                baseline_fails = try_reproduce_failure(program, args, written, self._metrics.device)
        except Exception as error:  # noqa: BLE001 - the user must get the program's failure, not this one
            return _attribute_without_memory(failure) if is_out_of_memory(error) else _attribute_unexamined(failure)
        if baseline_fails is None:
            return _attribute_unexamined(failure)
        if baseline_fails:
            return None
        return Attribution(f"it failed where the baseline does not: {summarize_error(failure)}", recorded=True)

    def attribute_backward(self, failure: Exception) -> Attribution | None:
        """Attribute the failure of a backward if it is a compiler's or lacks memory, not the user's own."""
        if is_out_of_memory(failure):
            return _attribute_out_of_memory(failure)
        # AOTAutograd reports a backward that cannot be compiled only when it first runs.
        compilers = type(failure).__module__.startswith(("torch._inductor", "torch._dynamo"))
        if not compilers or not self._metrics.is_device_usable():
            return None
        reason = f"its backward failed, which cannot be made again by the baseline: {summarize_error(failure)}"
        return Attribution(reason, recorded=True)


def report_backward_errors(results: Sequence[Tensor], report: Callable[[Exception], None]) -> bool:
    """Call `report` with each exception of the backward of `results`, which the user gets, too. Returns False if
    AOTAutograd has compiled none; autograd looks its function's `backward` up in each run."""
    for result in results:
        function = get_autograd_function(result)
        if function is not None and hasattr(function, "compiled_bw"):
            break
    else:
        return False
    # All results are the one function's.
    backward = function.backward

    def run_backward(*args: Any) -> Any:
        try:
            return backward(*args)
        except Exception as error:
            report(error)
            raise

    function.backward = staticmethod(run_backward)
    return True


def _attribute_unexamined(failure: Exception) -> Attribution:
    if is_out_of_memory(failure):
        return _attribute_out_of_memory(failure)
    # If one rank dies, the collectives of all fail.
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return Attribution(
            f"{summarize_error(failure)}; of several ranks another one may be the reason", recorded=False
        )
    reason = f"it failed, in a call that cannot be made again by the baseline: {summarize_error(failure)}"
    return Attribution(reason, recorded=True)


def _attribute_out_of_memory(failure: Exception) -> Attribution:
    # A search for the largest batch size, for example, provokes such failures.
    return Attribution(f"{summarize_error(failure)}; the baseline may lack memory, too", recorded=False)


def _attribute_without_memory(failure: Exception) -> Attribution:
    reason = f"{summarize_error(failure)}; there is no memory to see whether the baseline fails as well"
    return Attribution(reason, recorded=False)
