"""The backward of a compiled program, where it fails: it runs when the user calls `backward`, where nobody looks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor


def note_failing_backward(results: Sequence[Tensor], failed: Callable[[Exception], None]) -> bool:
    """`failed` is told of what the backward raises of the program that has computed `results`, in each of its runs; it
    goes on to the user. False where AOTAutograd has compiled none: that is left alone.

    AOTAutograd makes a function of its own for each program, and autograd looks its `backward` up in each run.
    """
    for result in results:
        function = getattr(type(result.grad_fn), "_forward_cls", None)
        if function is not None and hasattr(function, "compiled_bw"):
            function.backward = staticmethod(_noted(function.backward, failed))
            # All of them are results of the one function.
            return True
    return False


def _noted(backward: Callable[..., Any], failed: Callable[[Exception], None]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        try:
            return backward(*args)
        except Exception as error:
            failed(error)
            raise

    return run
