"""The baseline program of a graph: compiled without rewrites, for a fallback, when it is first needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch import SymBool, SymFloat, SymInt, Tensor, fx
from torch.utils import _pytree as pytree

from frx_graph.capture.compiler_graphs import graph_as_it_is
from frx_graph.compiler.pre_autograd import Compiled
from frx_graph.errors import first_line
from frx_graph.serialization.configuration import configuration_here, configured
from frx_graph.support.process_state import random_numbers_kept
from frx_graph.support.user_warning import warn_and_go_on


class LazyBaseline:
    """Compile a snapshot of `dynamo` by `inner` when the program is first requested.

    A graph with symbolic sizes is compiled at once: guards on them can only be added while Dynamo compiles the frame.
    Others compile later, under the torch configuration of now, and draw none of the user's random numbers. If that
    fails, eager runs the graph, and a warning says so. No tensor is kept alive.
    """

    def __init__(self, dynamo: fx.GraphModule, inputs: Sequence[Any], inner: Compiled) -> None:
        self._dynamo = graph_as_it_is(dynamo)
        self._inner = inner
        self._configuration = configuration_here()
        self._lock = threading.Lock()
        self._compiled: Callable[..., Any] | None = None
        computed = (node.meta.get("example_value") for node in dynamo.graph.nodes)
        if any(map(_is_symbolic, pytree.tree_leaves([*inputs, *computed]))):
            self._compiled = inner(graph_as_it_is(dynamo), list(inputs))

    def get_program(self, args: Sequence[Any]) -> Callable[..., Any]:
        """Return the compiled graph; the first time, compile it for `args`."""
        with self._lock:
            if self._compiled is None:
                try:
                    with random_numbers_kept(), configured(self._configuration):
                        self._compiled = self._inner(graph_as_it_is(self._dynamo), list(args))
                except Exception as error:  # noqa: BLE001 - the graph itself is right, if slow
                    self._compiled = self._dynamo.forward
                    warn_and_go_on(f"frx could not compile a baseline later on ({first_line(error)}): eager runs it")
            return self._compiled


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, Tensor):
        return any(isinstance(size, SymInt) for size in value.shape)
    return isinstance(value, (SymInt, SymFloat, SymBool))
