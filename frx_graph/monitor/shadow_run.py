"""One call of the user's own computed by two programs: whether what the second returns is worse.

Only what is plainly wrong counts here, since nothing tells which of two results is the better one: values that are not
finite where the other's are, and differences that no rounding explains. What a trial compares with float64 is finer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from frx_graph.errors import first_line
from frx_graph.support.out_of_memory import out_of_memory
from frx_graph.support.process_state import Generators

_PLAINLY_WRONG = {torch.float64: 1e-6, torch.float32: 1e-2}
"""Root mean square of a difference, as a part of that of the values."""
_PLAINLY_WRONG_IN_HALF = 0.1
_SMALLEST_SCALE = 1e-3
"""Smaller values may be what is left of larger ones that cancel."""
_PLAIN = (Tensor, nn.Parameter, nn.Buffer)

NOT_FINITE = "its results are not finite where the baseline's are"

Program = Callable[..., Any]


def tensors(result: Any) -> list[Tensor]:
    """The tensors that a compiled graph has returned, in their order."""
    return [value for value in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(value, Tensor)]


def not_finite(values: Sequence[Tensor | None]) -> bool:
    """Whether any of them holds NaN or an infinity."""
    # The user's hooks on what autograd saves must not see these.
    floating = (value.detach() for value in values if value is not None and value.is_floating_point())
    return any(not bool(torch.isfinite(value).all()) for value in floating)


def worse_than_finite(ours: Tensor, theirs: Tensor) -> bool:
    """Whether something is not finite in `theirs` that is in `ours`."""
    if not ours.is_floating_point() or ours.shape != theirs.shape:
        return False
    return bool((torch.isfinite(ours.detach()) & ~torch.isfinite(theirs.detach())).any())


class LiveComparison:
    """`args` of a call that is about to be made, once more for another program: those at the positions `written`, which
    programs write into, are copied. Raises `ValueError` where they cannot be told apart from the others, and what
    torch does where there is no memory for the copies."""

    def __init__(self, args: Sequence[Any], written: frozenset[int], device: torch.device) -> None:
        self._args = args
        self._written = written
        self._device = device
        owners = [_memory(arg) for arg in args]
        if any(owners[i] is not None and owners.count(owners[i]) > 1 for i in written):
            raise ValueError("an input that is written into shares its memory with another one")
        self._copies = [_again(arg, copied=i in written) for i, arg in enumerate(args)]
        self._sizes = _sizes(self._copies)
        self._random = False
        self._theirs: list[Tensor] = []
        self._error: str | None = None

    def run(self, program: Program, drawn_from: Generators) -> bool:
        """Compute the call by `program`, from random numbers at `drawn_from`, and remember what it returns; False where
        memory does not suffice. Afterwards random numbers are drawn as if it had not."""
        generators = Generators(self._device)
        drawn_from.put_back()
        try:
            self._theirs = tensors(program(*self._copies))
        except Exception as error:  # noqa: BLE001 - that it raises is what is found
            if out_of_memory(error):
                return False
            self._error = f"it failed where the baseline does not: {first_line(error)}"
        finally:
            self._random = drawn_from.moved()
            generators.put_back()
        return True

    @property
    def failed(self) -> bool:
        """Whether the other program has raised."""
        return self._error is not None

    def put_back(self) -> None:
        """What a program that has failed may have written into is as it was, if the copies were not used yet."""
        with torch.no_grad():
            for i in self._written:
                self._args[i].copy_(self._copies[i])

    def worse(self, ours: Sequence[Tensor]) -> str | None:
        """In what way that is worse than `ours`, in a line; None where it is not."""
        if self._error is not None:
            return self._error
        for ours_one, theirs in zip(ours, self._theirs, strict=True):
            if self._random:
                # Which elements were drawn is another matter in each.
                if not_finite([theirs]) and not not_finite([ours_one]):
                    return NOT_FINITE
            elif worse_than_finite(ours_one, theirs):
                return NOT_FINITE
            elif (difference := _plain_difference(ours_one, theirs)) is not None:
                return difference
        return None

    def watch_gradients(self, ours: Sequence[Tensor], told: Callable[[str], None]) -> Callable[[], None]:
        """When the call's gradients are there, compute those of the other program as well; `told` if they are worse.
        What is returned lets go of it all, where no backward has come.

        FSDP2 frees the weights of a layer before a backward ends, by resizing their memory, which counts as no write:
        then there is nothing left to compute with."""
        pairs = [(a, b) for a, b in zip(ours, self._theirs, strict=True) if a.requires_grad and b.requires_grad]
        gradients: dict[int, Tensor] = {}
        handles = [a.register_hook(_keeping(gradients, i)) for i, (a, _) in enumerate(pairs)]
        inputs = [(a, b) for a, b in zip(self._args, self._copies, strict=True) if differentiated(a)]

        forget: list[Callable[[], None]] = [handle.remove for handle in handles]

        def let_go() -> None:
            for each in forget:
                each()
            forget.clear()
            pairs.clear()
            inputs.clear()

        def seen(finite: bool) -> None:
            if _sizes(self._copies) != self._sizes:
                let_go()
                return
            roots = [pairs[i][1] for i in gradients]
            theirs = torch.autograd.grad(
                roots, [copy for _, copy in inputs], list(gradients.values()), allow_unused=True
            )
            let_go()
            if finite and not_finite(theirs):
                told("its gradients are not finite, the baseline's are")

        if pairs:
            forget.append(when_differentiated([a for a, _ in inputs], seen))
        return let_go


def copied_bytes(args: Sequence[Any], written: frozenset[int]) -> int:
    """What copies take of the memory that the arguments at the positions `written` lie in."""
    return sum(size for i, size in enumerate(_sizes(args)) if size is not None and i in written)


def fails_as_well(program: Program, args: Sequence[Any], written: frozenset[int], device: torch.device) -> bool | None:
    """Whether a call fails that another program has failed in, on copies of what that may have written into; None where
    it cannot be told."""
    try:
        beside = LiveComparison(args, written, device)
    except ValueError:
        return None
    return not beside.run(program, Generators(device)) or beside.failed


def when_differentiated(args: Sequence[Any], seen: Callable[[bool], None]) -> Callable[[], None]:
    """Calls `seen` once, at the end of the next backward that computes gradients of any of `args`: whether all of them
    are finite. What `seen` raises is lost. What is returned stops waiting.

    No gradient is kept: a leaf's would be copied instead of becoming its `.grad`. Not `register_multi_grad_hook`, which
    raises in the user's `torch.autograd.grad` (torch 2.15: of a leaf nobody can say whether it will get one).
    """
    finite: list[bool] = []
    lock = threading.Lock()

    def stop() -> None:
        for handle in handles:
            handle.remove()

    def at_the_end() -> None:
        stop()
        try:
            with torch.no_grad():
                seen(all(finite))
        except Exception:  # noqa: BLE001 - what watches must not break what is watched
            pass

    def look(gradient: Tensor) -> None:
        is_finite = not not_finite([gradient])
        with lock:
            finite.append(is_finite)
            first = len(finite) == 1
        if first:
            Variable._execution_engine.queue_callback(at_the_end)

    handles = [arg.register_hook(look) for arg in args if differentiated(arg)]
    return stop


def differentiated(arg: Any) -> bool:
    """Whether it is a tensor that a backward computes a gradient of."""
    return isinstance(arg, Tensor) and arg.requires_grad


def _keeping(gradients: dict[int, Tensor], i: int) -> Callable[[Tensor], None]:
    def keep(gradient: Tensor) -> None:
        gradients[i] = gradient

    return keep


def _sizes(args: Sequence[Any]) -> list[int | None]:
    """Of the memory that each tensor lies in, in bytes."""
    plain = (arg if isinstance(arg, Tensor) and arg.layout is torch.strided else None for arg in args)
    return [None if arg is None else arg.untyped_storage().nbytes() for arg in plain]


def _again(arg: Any, *, copied: bool) -> Any:
    """`arg` for another program, whose gradient is its own."""
    if not isinstance(arg, Tensor) or not (copied or (arg.requires_grad and torch.is_grad_enabled())):
        return arg
    if type(arg) not in _PLAIN or arg.layout is not torch.strided:
        raise ValueError("tensors of another kind")
    if copied and arg.requires_grad and torch.is_grad_enabled():
        raise ValueError("a tensor that is written into, and part of what is differentiated: its copy is a leaf")
    again = arg.detach()
    if copied:
        # Where it lies in its memory, too, is what programs are compiled for.
        memory = again.untyped_storage().clone()
        again = torch.empty(0, dtype=arg.dtype, device=arg.device).set_(
            memory, again.storage_offset(), again.shape, again.stride()
        )
    return again.requires_grad_(arg.requires_grad)


def _memory(arg: Any) -> int | None:
    plain = isinstance(arg, Tensor) and arg.layout is torch.strided
    return arg.untyped_storage()._cdata if plain else None


def _plain_difference(ours: Tensor, theirs: Tensor) -> str | None:
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"{tuple(theirs.shape)} {theirs.dtype} instead of {tuple(ours.shape)} {ours.dtype}"
    if ours.stride() != theirs.stride():
        return f"strides {theirs.stride()} instead of {ours.stride()}"
    if not ours.is_floating_point() or ours.numel() == 0:
        return None
    allowed = _PLAINLY_WRONG.get(ours.dtype, _PLAINLY_WRONG_IN_HALF)
    ours, theirs = ours.detach().double(), theirs.detach().double()
    finite = torch.isfinite(ours)
    scale = max(_SMALLEST_SCALE, float(ours[finite].square().mean().sqrt())) if finite.any() else 1.0
    error = float((ours - theirs)[finite].square().mean().sqrt()) if finite.any() else 0.0
    return f"its results differ from the baseline's by {error / scale:.1e}" if error > allowed * scale else None
