"""Compile a Dynamo graph with its weights as constants, and use that while they do not change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, fx, nn

from frx_graph.capture.compiler_graphs import copy_dynamo_graph
from frx_graph.compiler.fallback import LazyBaseline
from frx_graph.compiler.pre_autograd import Compiled
from frx_graph.errors import RewriteError
from frx_graph.freezing.weight_guard import WeightGuard
from frx_graph.ops.onednn_region import forget_programs
from frx_graph.serialization.tensors import classify_input
from frx_graph.support.torch_internals import (
    get_dynamo_source,
    get_parameter_sources,
    inductor_config,
    set_parameter_sources,
)

IsConstant = Callable[[Tensor], bool]


class FrozenGraph:
    """Runs the program that `frozen` compiles with weights as constants, or the one that `plain` compiles.

    `frozen` gets a function that returns True for watched tensors. The plain program computes calls with other weights,
    such as those of another instance of the module, and all calls after a change that `WeightGuard` notices. It is
    compiled when it is first needed. Raises `RewriteError` for a graph without weights, and what `WeightGuard` and the
    compilers raise.
    """

    def __init__(
        self,
        dynamo: fx.GraphModule,
        inputs: Sequence[Any],
        frozen: Callable[[IsConstant], Compiled],
        plain: Compiled,
    ) -> None:
        module, self._weights = _make_weights_constant(dynamo, inputs)
        if not self._weights:
            raise RewriteError("the graph reads no weights")
        self._baseline = LazyBaseline(dynamo, inputs, plain)
        self._watch: WeightGuard | None = WeightGuard(module)
        self._rest = [index for index in range(len(inputs)) if index not in self._weights]
        self._lock = threading.Lock()
        # Inductor, and the eager compiler, take attributes of the graph for constants only if this is set.
        with inductor_config.patch(freezing=True):
            self._frozen: Compiled | None = frozen(self._watch.is_watched)(
                module, [inputs[index] for index in self._rest]
            )

    def __call__(self, *args: Any) -> Any:
        """Return what the graph returns for `args`, which include its weights."""
        frozen = self._frozen
        others = any(args[index] is not weight for index, weight in self._weights.items())
        if frozen is None or others or not self._is_unchanged():
            return self._baseline.get_program(args)(*args)
        return frozen(*(args[index] for index in self._rest))

    def _is_unchanged(self) -> bool:
        with self._lock:
            if self._watch is not None and not self._watch.is_unchanged():
                self._watch = self._frozen = None
                forget_programs()
            return self._watch is not None


def _make_weights_constant(dynamo: fx.GraphModule, inputs: Sequence[Any]) -> tuple[fx.GraphModule, dict[int, Tensor]]:
    """Return the graph with its weights as attributes, as Dynamo traces it to freeze, and the weights by position."""
    module = copy_dynamo_graph(dynamo)
    sources = dict(get_parameter_sources(module) or {})
    weights: dict[int, Tensor] = {}
    for index, (node, value) in enumerate(zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True)):
        kind = classify_input(value) if isinstance(value, Tensor) else "argument"
        if kind == "argument":
            continue
        weights[index] = value
        name = f"frx_weight_{index}"
        if isinstance(value, nn.Parameter):
            module.register_parameter(name, value)
        else:
            module.register_buffer(name, value)
        sources[name] = get_dynamo_source(node)
        with module.graph.inserting_before(node):
            constant = module.graph.get_attr(name)
        constant.meta.update(node.meta)
        node.replace_all_uses_with(constant)
        module.graph.erase_node(node)
    set_parameter_sources(module, sources)
    module.recompile()
    return module, weights
