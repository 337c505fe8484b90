"""Compute one of the user's calls by two programs, and decide whether the second one's results are worse.

Neither result is known to be better, so only clear errors count: values that are not finite although the baseline's
are, and differences that rounding cannot explain. A trial compares with float64, which is more precise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from frx_graph.errors import is_out_of_memory, summarize_error
from frx_graph.support.process_state import RandomGenerators
from frx_graph.support.torch_internals import get_storage_id, queue_backward_callback

_PLAINLY_WRONG = {torch.float64: 1e-6, torch.float32: 1e-2}
"""Root mean square of the difference, relative to that of the values."""
_PLAINLY_WRONG_IN_HALF = 0.1
_SMALLEST_SCALE = 1e-3
"""Smaller values may be the remainder of larger ones that cancel."""
_PLAIN = (Tensor, nn.Parameter, nn.Buffer)

NOT_FINITE = "its results are not finite where the baseline's are"

Program = Callable[..., Any]


def list_tensors(result: Any) -> list[Tensor]:
    """Return the tensors among the results of a compiled graph, in order."""
    return [value for value in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(value, Tensor)]


def has_nonfinite(values: Sequence[Tensor | None]) -> bool:
    """Return whether any value is NaN or infinite."""
    # Detached, so that the user's saved-tensor hooks do not see these operations.
    floating = (value.detach() for value in values if value is not None and value.is_floating_point())
    return any(not bool(torch.isfinite(value).all()) for value in floating)


def has_new_nonfinite(baseline: Tensor, planned: Tensor) -> bool:
    """Return whether a value of `planned` is not finite where that of `baseline` is."""
    if not baseline.is_floating_point() or baseline.shape != planned.shape:
        return False
    return bool((torch.isfinite(baseline.detach()) & ~torch.isfinite(planned.detach())).any())


class ShadowRun:
    """Run the planned program beside the baseline, on copies of the inputs at the positions `written`; made before the
    call. Raises `ValueError` if one shares memory with another or cannot be copied, and torch's own error without
    memory."""

    def __init__(self, args: Sequence[Any], written: frozenset[int], device: torch.device) -> None:
        self._args = args
        self._written = written
        self._device = device
        owners = [None if storage is None else get_storage_id(storage) for storage in _list_storages(args)]
        if any(owners[i] is not None and owners.count(owners[i]) > 1 for i in written):
            raise ValueError("an input that is written into shares its memory with another one")
        self._copies = [_duplicate(arg, copied=i in written) for i, arg in enumerate(args)]
        self._sizes = _measure_storages(self._copies)
        self._random = False
        self._results: list[Tensor] = []
        self._error: str | None = None

    def run(self, program: Program, drawn_from: RandomGenerators) -> bool:
        """Compute the call by `program`, with the random numbers from `drawn_from` on, and keep its results and no
        change of the generators. Returns False if memory does not suffice."""
        generators = RandomGenerators(self._device)
        drawn_from.restore()
        try:
            self._results = list_tensors(program(*self._copies))
        except Exception as error:  # noqa: BLE001 - a failure is a finding
            if is_out_of_memory(error):
                return False
            self._error = f"it failed where the baseline does not: {summarize_error(error)}"
        finally:
            self._random = drawn_from.have_moved()
            generators.restore()
        return True

    @property
    def has_failed(self) -> bool:
        """True if the program has raised."""
        return self._error is not None

    def restore_inputs(self) -> None:
        """Undo the writes of a baseline that has failed. Only valid before `run`, which uses the copies."""
        with torch.no_grad():
            for i in self._written:
                self._args[i].copy_(self._copies[i])

    def find_regression(self, baseline: Sequence[Tensor]) -> str | None:
        """Describe, in one line, how the results are worse than those of `baseline`; None if they are not."""
        if self._error is not None:
            return self._error
        for expected, found in zip(baseline, self._results, strict=True):
            if self._random:
                # The two programs may draw other elements from the same generator.
                if has_nonfinite([found]) and not has_nonfinite([expected]):
                    return NOT_FINITE
            elif has_new_nonfinite(expected, found):
                return NOT_FINITE
            elif (difference := _find_difference(expected, found)) is not None:
                return difference
        return None

    def watch_gradients(self, baseline: Sequence[Tensor], report: Callable[[str], None]) -> Callable[[], None]:
        """After the backward of `baseline`, compute this program's gradients as well; `report` if they are worse. The
        returned function frees what is kept. FSDP2 frees weights before a backward ends, by resizing their storage:
        then nothing is compared."""
        results = zip(baseline, self._results, strict=True)
        pairs = [(a, b) for a, b in results if a.requires_grad and b.requires_grad]
        gradients: dict[int, Tensor] = {}
        removals: list[Callable[[], None]] = [
            a.register_hook(partial(gradients.__setitem__, i)).remove for i, (a, _) in enumerate(pairs)
        ]
        inputs = [(a, b) for a, b in zip(self._args, self._copies, strict=True) if requires_gradient(a)]

        def free() -> None:
            for remove in removals:
                remove()
            removals.clear()
            pairs.clear()
            inputs.clear()

        def compare(finite: bool) -> None:
            if _measure_storages(self._copies) != self._sizes:
                free()
                return
            roots = [pairs[i][1] for i in gradients]
            found = torch.autograd.grad(
                roots, [copy for _, copy in inputs], list(gradients.values()), allow_unused=True
            )
            free()
            if finite and has_nonfinite(found):
                report("its gradients are not finite, the baseline's are")

        if pairs:
            removals.append(call_after_backward([a for a, _ in inputs], compare))
        return free


def count_copied_bytes(args: Sequence[Any], written: frozenset[int]) -> int:
    """Return the bytes that copies of the storages of the arguments at the positions `written` take."""
    return sum(size for i, size in enumerate(_measure_storages(args)) if size is not None and i in written)


def try_reproduce_failure(
    program: Program, args: Sequence[Any], written: frozenset[int], device: torch.device
) -> bool | None:
    """Return whether `program` fails too in a call in which another one has failed, on copies of the inputs at the
    positions `written`; None if that cannot be found out."""
    try:
        shadow = ShadowRun(args, written, device)
    except ValueError:
        return None
    return not shadow.run(program, RandomGenerators(device)) or shadow.has_failed


def call_after_backward(args: Sequence[Any], callback: Callable[[bool], None]) -> Callable[[], None]:
    """Call `callback` once, after the next backward to any of `args`, with whether all their gradients are finite; drop
    its exceptions. The returned function stops waiting. No gradient is kept: a leaf's would be copied instead of
    becoming its `.grad`. `register_multi_grad_hook` would raise in the user's `torch.autograd.grad` (torch 2.15)."""
    finite: list[bool] = []
    lock = threading.Lock()

    def stop() -> None:
        for handle in handles:
            handle.remove()

    def finish() -> None:
        stop()
        try:
            with torch.no_grad():
                callback(all(finite))
        except Exception:  # noqa: BLE001 - monitoring must not break the program
            pass

    def check(gradient: Tensor) -> None:
        is_finite = not has_nonfinite([gradient])
        with lock:
            finite.append(is_finite)
            first = len(finite) == 1
        if first:
            queue_backward_callback(finish)

    handles = [arg.register_hook(check) for arg in args if requires_gradient(arg)]
    return stop


def requires_gradient(arg: Any) -> bool:
    """Return whether `arg` is a tensor that a backward computes a gradient of."""
    return isinstance(arg, Tensor) and arg.requires_grad


def _list_storages(args: Sequence[Any]) -> list[torch.UntypedStorage | None]:
    plain = [isinstance(arg, Tensor) and arg.layout is torch.strided for arg in args]
    return [arg.untyped_storage() if stored else None for arg, stored in zip(args, plain, strict=True)]


def _measure_storages(args: Sequence[Any]) -> list[int | None]:
    """Return the bytes of each tensor's storage; None for an argument without storage."""
    return [None if storage is None else storage.nbytes() for storage in _list_storages(args)]


def _duplicate(arg: Any, *, copied: bool) -> Any:
    """Return `arg` for another program, with its own gradient and, if `copied`, its own storage."""
    if not isinstance(arg, Tensor) or not (copied or (arg.requires_grad and torch.is_grad_enabled())):
        return arg
    if type(arg) not in _PLAIN or arg.layout is not torch.strided:
        raise ValueError("tensors of another kind")
    if copied and arg.requires_grad and torch.is_grad_enabled():
        raise ValueError("a tensor that is written into, and part of what is differentiated: its copy is a leaf")
    duplicate = arg.detach()
    if copied:
        # Programs are compiled for the offset and strides in the storage, too.
        storage = duplicate.untyped_storage().clone()
        duplicate = torch.empty(0, dtype=arg.dtype, device=arg.device).set_(
            storage, duplicate.storage_offset(), duplicate.shape, duplicate.stride()
        )
    return duplicate.requires_grad_(arg.requires_grad)


def _find_difference(baseline: Tensor, planned: Tensor) -> str | None:
    if baseline.shape != planned.shape or baseline.dtype != planned.dtype:
        return f"{tuple(planned.shape)} {planned.dtype} instead of {tuple(baseline.shape)} {baseline.dtype}"
    if baseline.stride() != planned.stride():
        return f"strides {planned.stride()} instead of {baseline.stride()}"
    if not baseline.is_floating_point() or baseline.numel() == 0:
        return None
    allowed = _PLAINLY_WRONG.get(baseline.dtype, _PLAINLY_WRONG_IN_HALF)
    baseline, planned = baseline.detach().double(), planned.detach().double()
    finite = torch.isfinite(baseline)
    scale = max(_SMALLEST_SCALE, float(baseline[finite].square().mean().sqrt())) if finite.any() else 1.0
    error = float((baseline - planned)[finite].square().mean().sqrt()) if finite.any() else 0.0
    return f"its results differ from the baseline's by {error / scale:.1e}" if error > allowed * scale else None
