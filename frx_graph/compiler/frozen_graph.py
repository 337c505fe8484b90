"""A graph of Dynamo's compiled with its weights as constants, for as long as they are what they were."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, fx, nn
from torch._inductor import config as inductor_config

from frx_graph.capture.compiler_graphs import graph_as_it_is
from frx_graph.compiler.baseline import LazyBaseline
from frx_graph.compiler.pre_autograd import Compiled
from frx_graph.errors import RewriteError
from frx_graph.freezing.weight_guard import WeightWatch
from frx_graph.serialization.tensors import input_kind

IsConstant = Callable[[Tensor], bool]


class FrozenGraph:
    """Runs what `frozen` compiles of the graph with its weights as constants, or what `plain` does of it as it is.

    `frozen` is told which tensors are watched. Calls with other weights, as of another instance of the same module, and
    all calls once a weight has changed, are computed by the plain program, which is compiled when it is first needed.
    What is noticed is what `WeightWatch` says, at what it says it takes. Raises `RewriteError` for a graph without
    weights, and what `WeightWatch` and the compilers raise.
    """

    def __init__(
        self,
        dynamo: fx.GraphModule,
        inputs: Sequence[Any],
        frozen: Callable[[IsConstant], Compiled],
        plain: Compiled,
    ) -> None:
        module, self._weights = _with_constants(dynamo, inputs)
        if not self._weights:
            raise RewriteError("the graph reads no weights")
        self._baseline = LazyBaseline(dynamo, inputs, plain)
        self._watch: WeightWatch | None = WeightWatch(module)
        self._rest = [index for index in range(len(inputs)) if index not in self._weights]
        self._lock = threading.Lock()
        # Inductor, and our own compiler, take attributes of the graph for constants only where this is set.
        with inductor_config.patch(freezing=True):
            self._frozen: Compiled | None = frozen(self._watch.watches)(module, [inputs[index] for index in self._rest])

    def __call__(self, *args: Any) -> Any:
        """What the graph returns for `args`, its weights among them."""
        frozen = self._frozen
        others = any(args[index] is not weight for index, weight in self._weights.items())
        if frozen is None or others or not self._unchanged():
            return self._baseline.get_program(args)(*args)
        return frozen(*(args[index] for index in self._rest))

    def _unchanged(self) -> bool:
        with self._lock:
            if self._watch is not None and not self._watch.unchanged():
                self._watch = self._frozen = None
            return self._watch is not None


def _with_constants(dynamo: fx.GraphModule, inputs: Sequence[Any]) -> tuple[fx.GraphModule, dict[int, Tensor]]:
    """The graph with its parameters and buffers as attributes, as Dynamo traces it where weights are to be frozen, and
    these by their positions among the inputs."""
    module = graph_as_it_is(dynamo)
    sources = dict(getattr(module, "_param_name_to_source", None) or {})
    weights: dict[int, Tensor] = {}
    for index, (node, value) in enumerate(zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True)):
        kind = input_kind(value) if isinstance(value, Tensor) else "argument"
        if kind == "argument":
            continue
        weights[index] = value
        name = f"frx_weight_{index}"
        if isinstance(value, nn.Parameter):
            module.register_parameter(name, value)
        else:
            module.register_buffer(name, value)
        sources[name] = getattr(node, "_dynamo_source", None)
        with module.graph.inserting_before(node):
            constant = module.graph.get_attr(name)
        constant.meta.update(node.meta)
        node.replace_all_uses_with(constant)
        module.graph.erase_node(node)
    module._param_name_to_source = sources  # type: ignore[assignment]  # an attribute that torch reads
    module.recompile()
    return module, weights
