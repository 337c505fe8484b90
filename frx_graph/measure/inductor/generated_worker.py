"""Compile operator calls with Inductor, each as a separate graph, and time them.

The program reads a pickled request, torch's number of threads and groups of calls to compare, from standard input, and
writes the answer as JSON to standard output. It is a separate process,
since compiling within a compilation would disturb Inductor's counters and locks. Gathers read the same places as
upsampling by the ratio of the sizes, since those places decide the contents of the caches.
"""

from __future__ import annotations

import pickle
import statistics
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from frx_graph.errors import summarize_error
from frx_graph.facts.operator_families import GATHERS
from frx_graph.facts.operator_signature import GeneratedCall
from frx_graph.measure.inductor.generated_timing import Answer
from frx_graph.measure.machine.disturbance import watch_disturbance
from frx_graph.measure.operators.operator_call import make_argument_sets
from frx_graph.measure.operators.operator_inputs import OperandPool, find_own_overload
from frx_graph.measure.operators.operator_timing import BUDGET_S, Clock, choose_clock, select_undisturbed, take_turns
from frx_graph.support.supervisor.supervised import claim_stdout
from frx_graph.support.torch_internals import compile_fx_inner, inductor_config, pytree, select_decomp_table

_ROUNDS = 2
"""Rounds as for other operators, so that a machine that changes its speed treats all groups alike."""

_ATTEMPTS = 3
"""Timing is short, compared with compiling, so a disturbance may be over at the next attempt."""


def answer_request(threads: int, groups: Sequence[Sequence[GeneratedCall]]) -> Answer:
    """Median seconds of each call, groups taking turns within; all are compiled before the first is timed."""
    torch.set_num_threads(threads)
    pool = OperandPool()
    failures: list[str] = []
    compiled: list[list[Callable[[], object]] | None] = []
    for group in groups:
        try:
            compiled.append([_compile_call(call, pool) for call in group])
        except Exception as error:  # noqa: BLE001 - an operator that Inductor cannot compile alone is not measured
            compiled.append(None)
            failures.append(f"{group[0].signature.target}: {summarize_error(error)}")
    clocks = [choose_clock(group[0].signature) for group in groups]
    for _ in range(_ATTEMPTS):
        with watch_disturbance() as disturbed:
            seconds = _time_groups(compiled, clocks)
            busy = disturbed()
        if not busy:
            break
    return Answer(seconds=seconds, failures=tuple(failures), disturbed=busy)


def _time_groups(
    groups: Sequence[Sequence[Callable[[], object]] | None], clocks: Sequence[Clock]
) -> tuple[tuple[float, ...] | None, ...]:
    samples: list[list[list[float]]] = [[[] for _ in calls or ()] for calls in groups]
    for _ in range(_ROUNDS):
        for calls, clock, taken in zip(groups, clocks, samples, strict=True):
            if calls is not None:
                for runs, seen in zip(take_turns(calls, clock, budget_s=BUDGET_S / _ROUNDS), taken, strict=True):
                    seen.extend(runs)
    return tuple(
        None if calls is None else tuple(statistics.median(select_undisturbed(runs)) for runs in taken)
        for calls, taken in zip(groups, samples, strict=True)
    )


def _compile_call(call: GeneratedCall, pool: OperandPool) -> Callable[[], object]:
    """Return the call, compiled by Inductor. Every run after the first has other operands."""
    sets = make_argument_sets(call.signature, pool)
    args, kwargs = next(sets)
    leaves, spec = pytree.tree_flatten((args, kwargs))
    gathers = call.signature.target.rpartition(".")[0] in GATHERS
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    if gathers:
        # The other tensors say where to read, and are computed in the loop.
        places = places[:1]
    overload = find_own_overload(call.signature.target)

    def program(*tensors: Tensor) -> list[Tensor]:
        given = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        positional, named = pytree.tree_unflatten(given, spec)
        if gathers:
            return _force_strides(call, [_sum_gathers(overload, positional[0], positional[1], call.times)])
        results = overload(*positional, **named)
        return _force_strides(call, results if isinstance(results, (tuple, list)) else [results])

    example = [leaves[place] for place in places]
    module = make_fx(program, decomposition_table=select_decomp_table(), tracing_mode="fake")(*example)
    inputs = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    run: Any = compile_fx_inner(module, inputs)

    def run_once() -> object:
        leaves = pytree.tree_leaves(next(sets))
        return run([leaves[place] for place in places])

    run_once()
    return run_once


def _force_strides(call: GeneratedCall, results: Sequence[Tensor]) -> list[Tensor]:
    force = torch.ops.prims.inductor_force_stride_order.default
    return [force(results[read.position], list(read.strides)) for read in call.results]


def _sum_gathers(overload: Any, image: Tensor, indices: Sequence[Tensor | None], times: int) -> Tensor:
    """The sum of `times` gathers at neighbouring places of the resized image."""
    kept = sum(index is None for index in indices)
    sizes = [(image.shape[dim], index.numel()) for dim, index in enumerate(indices) if index is not None]
    total: Tensor | None = None
    for neighbour in range(times):
        # One step further in some of the dimensions, then two, as interpolations of higher degree do.
        steps = [neighbour >> axis & 1 for axis in range(len(sizes))]
        far = neighbour >> len(sizes)
        found = [
            _make_gather_indices(had, wanted, step + far, len(sizes) - 1 - axis, image.device)
            for axis, ((had, wanted), step) in enumerate(zip(sizes, steps, strict=True))
        ]
        gathered = overload(image, [*[None] * kept, *found])
        total = gathered if total is None else total + gathered
    assert total is not None
    return total


def _make_gather_indices(had: int, wanted: int, step: int, inner: int, device: torch.device) -> Tensor:
    """Return the indices that `wanted` outputs read of `had` inputs, `step` further, with `inner` more dimensions."""
    places = (torch.arange(wanted, device=device) * (had / wanted)).to(torch.int64)
    return (places + step).clamp(max=had - 1).reshape(-1, *(1,) * inner)


def main() -> None:
    """Answer one request. Only the answer goes to the original standard output, since compilers write there, too."""
    answers = claim_stdout()
    warnings.simplefilter("ignore")
    threads, groups = pickle.load(sys.stdin.buffer)
    # Processes that compile in parallel take longer to start than these few kernels take to compile.
    with torch.no_grad(), inductor_config.patch(compile_threads=1):
        text = answer_request(threads, groups).model_dump_json()
    with answers:
        answers.write(text.encode())


if __name__ == "__main__":
    main()
