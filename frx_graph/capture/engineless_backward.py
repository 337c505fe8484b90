"""Differentiate fake tensors on a GPU that is not there, without autograd's engine.

The engine asks the driver for its streams (`GraphTask::stash_current_streams`, torch 2.15), which fails without one.
The functions of the graph can be called one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.fx import traceback as fx_traceback

from frx_graph.support.torch_internals import get_function_number, list_results_of


@dataclass(frozen=True, slots=True)
class End:
    """A tensor that is differentiated for, and the function that has made it: an input of a graph that another graph
    made. To be noted before the graph runs, since a write in place changes both."""

    leaf: Tensor
    function: Any
    index: int


def note_end(leaf: Tensor) -> End:
    """Return where the gradients of a tensor end."""
    return End(leaf, leaf.grad_fn, leaf.output_nr)


@torch.no_grad()
def differentiate(
    roots: Sequence[Tensor], ends_at: Sequence[End], gradients: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """Return the gradients of `ends_at`, as `torch.autograd.grad` with `allow_unused` does, for these of the `roots`.

    Functions run in the engine's order, those of later operators first, and what they compute is traced with the stack
    of their operator. Hooks do not run.
    """
    ends = {end.function for end in ends_at if end.function is not None}
    readers = _count_readers(roots, ends)
    incoming: dict[Any, dict[int, Tensor]] = {}

    def add(function: Any, index: int, gradient: Tensor | None) -> None:
        if function is None or gradient is None:
            return
        # As the engine does (`validate_outputs`): the gradient of what was expanded is a sum.
        wanted = list_results_of(function)[index]
        gradient = (gradient if gradient.shape == wanted.shape else gradient.sum_to_size(wanted.shape)).to(wanted.dtype)
        known = incoming.setdefault(function, {})
        known[index] = gradient if index not in known else known[index] + gradient

    for root, gradient in zip(roots, gradients, strict=True):
        add(root.grad_fn, root.output_nr, gradient)
    ready = [function for function in dict.fromkeys(root.grad_fn for root in roots) if not readers[function]]
    found: dict[int, Tensor] = {}
    made_by = {(end.function, end.index): id(end.leaf) for end in ends_at if end.function is not None}
    while ready:
        function = max(ready, key=get_function_number)
        ready.remove(function)
        given = incoming.pop(function, {})
        if function in ends:
            found |= {made_by[function, index]: one for index, one in given.items() if (function, index) in made_by}
            continue
        if (leaf := getattr(function, "variable", None)) is not None:
            found |= {id(leaf): gradient for gradient in given.values()}
        made = _call(function, given) if given and leaf is None else ()
        for place, (following, index) in enumerate(function.next_functions):  # type: ignore[union-attr]
            if following is None:
                continue
            add(following, index, made[place] if place < len(made) else None)
            readers[following] -= 1
            if not readers[following]:
                ready.append(following)
    return tuple(found.get(id(end.leaf)) for end in ends_at)


def _count_readers(roots: Sequence[Tensor], ends: Set[Any]) -> Counter[Any]:
    """Count for each function how many others hand gradients to it; those behind `ends` do not."""
    readers: Counter[Any] = Counter()
    pending = list(dict.fromkeys(root.grad_fn for root in roots))
    seen = set(pending)
    while pending:
        function = pending.pop()
        for following, _ in () if function in ends else function.next_functions:  # type: ignore[union-attr]
            if following is None:
                continue
            readers[following] += 1
            if following not in seen:
                seen.add(following)
                pending.append(following)
    return readers


def _call(function: Any, given: Mapping[int, Tensor]) -> tuple[Tensor | None, ...]:
    """Call a function of the graph with these gradients, by the index of the result that each belongs to."""
    own = isinstance(function, BackwardCFunction)
    # The engine gives the program's own functions zeros for the results that nothing reads.
    gradients = [
        torch.zeros(result.shape, dtype=result.dtype, device=result.device)
        if own and index not in given
        else given.get(index)
        for index, result in enumerate(list_results_of(function))
    ]
    fx_traceback.set_stack_trace(function.metadata.get("traceback_", []))
    fx_traceback.set_grad_fn_seq_nr(get_function_number(function))
    try:
        made = function.apply(*gradients) if own else function(*gradients)
    finally:
        fx_traceback.reset_grad_fn_seq_nr()
    results = made if isinstance(made, tuple) else (made,)
    return _drop_other_arguments(function, results) if own else results


def _drop_other_arguments(function: Any, results: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Return a result for each tensor that a function of the program takes: it also returns one for each number."""
    needed = iter([one for one, needs in zip(results, function.needs_input_grad, strict=True) if needs])
    return tuple(next(needed) if following is not None else None for following, _ in function.next_functions)
