"""A rewritten graph as it is run: where it fails and the graph as it was traced does not, that takes its place.

Values are predicted for the sizes and strides that a graph is compiled with, by fakes; what kernels say to them shows
only when they run. So each run with sizes that are new is watched: it keeps its arguments until it has succeeded.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from frx_graph.dynamo_rewriting import Compiled, Failed
from frx_graph.matrix_product import LIBRARY

_NAMESPACES = frozenset({"aten", "prims", "mkldnn", LIBRARY.ns})


def with_way_back(
    rewritten: Compiled, as_traced: Callable[[], Compiled], failed: Failed, sizes_at: Sequence[int] = ()
) -> Compiled:
    """`rewritten` until it fails where the program that `as_traced` compiles does not: that from then on, and `failed`
    gets the error. All three take their arguments in one list, which they may empty; `sizes_at` are the places of those
    that are no tensors. Raises what the program as traced raises."""
    chosen = rewritten
    succeeded: set[tuple[Any, ...]] = set()

    def run(arguments: list[Any]) -> Any:
        nonlocal chosen
        sizes = tuple(arguments[place] for place in sizes_at)
        if chosen is not rewritten or sizes in succeeded:
            return chosen(arguments)
        kept, drawn = list(arguments), torch.get_rng_state()
        try:
            result = rewritten(arguments)
        except Exception as error:  # noqa: BLE001 - any failure of ours falls back to the graph as it was
            traced = as_traced()
            torch.set_rng_state(drawn)
            result = traced(kept)
            failed(error)
            chosen = traced
            return result
        succeeded.add(sizes)
        return result

    return run


def may_run_again(graph: fx.Graph) -> bool:
    """True for a graph that leaves nothing behind where it ends halfway: it draws random numbers on the CPU alone,
    whose generator can be put back, calls no operators but torch's own, and writes into its inputs last, by copies,
    which do not fail."""
    calls = [node for node in graph.nodes if node.op == "call_function"]
    computed = itertools.dropwhile(_writes_input, reversed(calls))
    return all(_leaves_nothing(node) and not _writes_input(node) for node in computed)


def _leaves_nothing(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, OpOverload):
        # Arithmetic on sizes, and items of tuples; operators of a higher order may do anything.
        return not isinstance(target, torch._ops.OperatorBase)
    values = (value for value in pytree.tree_leaves(node.meta.get("val")) if isinstance(value, Tensor))
    # To read the state of another device's generator waits for that device.
    draws = torch.Tag.nondeterministic_seeded in target.tags and any(value.device.type != "cpu" for value in values)
    return target.namespace in _NAMESPACES and not draws


def _writes_input(node: fx.Node) -> bool:
    written = node.args[0] if node.args else None
    return node.target is torch.ops.aten.copy_.default and isinstance(written, fx.Node) and written.op == "placeholder"
