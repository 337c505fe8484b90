"""A rewritten graph as it is run: where it fails and the graph as it was traced does not, that takes its place.

Values are predicted for the sizes and strides that a graph is compiled with, by fakes; what kernels say to them shows
only when they run. So runs with sizes that are new are watched: they keep their arguments until they have succeeded.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import SymFloat, SymInt, Tensor, fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from frx_graph.dynamo_rewriting import Compiled, Failed
from frx_graph.matrix_product import LIBRARY

_NAMESPACES = frozenset({"aten", "prims", "mkldnn", LIBRARY.ns})
_MOST_SIZES = 64
"""Where sizes never come twice, each run would keep its arguments, a backward all that was saved."""


@dataclass
class WayBack:
    """A forward and its backward, each rewritten for the other, go back to what was traced together."""

    failed: Failed
    taken: bool = False

    def take(self, error: Exception) -> None:
        """Go back, and tell why."""
        if not self.taken:
            self.taken = True
            self.failed(error)


class RewrittenRun:
    """`rewritten`, made of `graph`, until it fails where the program that `as_traced` compiles does not: from then on
    that. Both take their arguments in one list, which they may empty. Raises what the program as traced raises."""

    def __init__(
        self, rewritten: Compiled, graph: fx.Graph, as_traced: Callable[[], Compiled], way_back: WayBack
    ) -> None:
        # How AOTAutograd tells; what wraps this takes over attributes of instances alone.
        self._boxed_call = True
        self._rewritten = rewritten
        self._compile_as_traced = as_traced
        self._way_back = way_back
        values = (node.meta.get("val") for node in graph.find_nodes(op="placeholder"))
        self._sizes_at = [at for at, value in enumerate(values) if isinstance(value, (SymInt, SymFloat, int, float))]
        self._watched = may_run_again(graph)
        self._draws = any(map(_draws, graph.nodes))
        self._succeeded: set[tuple[Any, ...]] = set()

    def __call__(self, arguments: list[Any]) -> Any:
        """What the graph returns for `arguments`."""
        if self._way_back.taken:
            return self._as_traced(arguments)
        if not self._watched:
            return self._rewritten(arguments)
        sizes = tuple(arguments[at] for at in self._sizes_at)
        if sizes in self._succeeded:
            return self._rewritten(arguments)
        result = self._run(arguments)
        self._succeeded.add(sizes)
        self._watched = bool(sizes) and len(self._succeeded) < _MOST_SIZES
        return result

    def _run(self, arguments: list[Any]) -> Any:
        kept, drawn = list(arguments), torch.get_rng_state() if self._draws else None
        try:
            return self._rewritten(arguments)
        except Exception as error:  # noqa: BLE001 - any failure of ours falls back to the graph as it was
            # What it has computed may be the memory that it has failed for.
            traceback.clear_frames(error.__traceback__)
            if drawn is not None:
                torch.set_rng_state(drawn)
            result = self._as_traced(kept)
            self._way_back.take(error)
            return result

    @cached_property
    def _as_traced(self) -> Compiled:
        return self._compile_as_traced()


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
    return target.namespace in _NAMESPACES and not (_draws(node) and not _is_on_cpu(node))


def _draws(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def _is_on_cpu(node: fx.Node) -> bool:
    values = [value for value in pytree.tree_leaves(node.meta.get("val")) if isinstance(value, Tensor)]
    return bool(values) and all(value.device.type == "cpu" for value in values)


def _writes_input(node: fx.Node) -> bool:
    written = node.args[0] if node.args else None
    return node.target is torch.ops.aten.copy_.default and isinstance(written, fx.Node) and written.op == "placeholder"
