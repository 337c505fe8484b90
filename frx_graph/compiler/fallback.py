"""Run a rewritten graph, and fall back to the graph as traced if only the rewritten one fails.

Fake tensors predict the values of a rewritten graph; only a run shows that its kernels accept them. So a run with new
sizes is guarded: it keeps its arguments until it has succeeded.
"""

from __future__ import annotations

import itertools
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import SymBool, SymFloat, SymInt, Tensor, fx

from frx_graph.capture.compiler_graphs import copy_dynamo_graph
from frx_graph.compiler.pre_autograd import Compiled, OnFailure
from frx_graph.errors import is_out_of_memory, summarize_error
from frx_graph.facts.operator_overload import find_aliased_operands, is_random_call
from frx_graph.ops.onednn_linear import LIBRARY
from frx_graph.serialization.torch_settings import read_configuration, restore_configuration
from frx_graph.support.process_state import preserve_random_state
from frx_graph.support.torch_internals import FakeTensor, OperatorBase, OpOverload, pytree
from frx_graph.support.user_warning import warn_user

_NAMESPACES = frozenset({"aten", "prims", "mkldnn", LIBRARY.ns})
_MAX_GUARDED_SIZES = 64
"""Bounds the runs that keep their arguments; a backward keeps all its saved tensors."""


@dataclass
class FallbackState:
    """The fallback of rewritten graphs: a forward falls back with its backward; an inference graph is `alone`."""

    on_failure: OnFailure
    alone: bool = False
    taken: bool = False

    def take(self, error: Exception) -> None:
        """Fall back, and report `error` the first time."""
        if not self.taken:
            self.taken = True
            self.on_failure(error)


class GuardedGraph:
    """Run `rewritten`, compiled from `graph`, until it fails and the program that `as_traced` compiles does not.

    From then on the traced program runs. Both take their arguments in one list, which they may empty. Raises what the
    traced program raises. The rewritten program is freed once it is replaced, the traced graph once nothing needs it.
    """

    # AOTAutograd copies `__dict__` to its wrapper: it must see `_boxed_call`, and must keep nothing else alive.
    __slots__ = (
        "__dict__",
        "_as_traced",
        "_draws",
        "_fallback_state",
        "_guarded",
        "_program",
        "_saves",
        "_sizes_at",
        "_succeeded",
    )

    def __init__(
        self,
        rewritten: Compiled,
        graph: fx.Graph,
        as_traced: Callable[[], Compiled],
        fallback_state: FallbackState,
        *,
        saves: bool = False,
    ) -> None:
        """Guard `rewritten`. `saves`: a backward may be rewritten for what this graph saves."""
        self._boxed_call = True
        self._program = rewritten
        self._fallback_state = fallback_state
        self._saves = saves
        self._as_traced: _TracedProgram | None = _TracedProgram(as_traced)
        values = (node.meta.get("val") for node in graph.find_nodes(op="placeholder"))
        self._sizes_at = [at for at, value in enumerate(values) if isinstance(value, (SymInt, SymFloat, int, float))]
        self._draws = any(map(_is_random, graph.nodes))
        self._succeeded: set[tuple[Any, ...]] = set()
        self._set_guarded(can_rerun(graph))

    def __call__(self, arguments: list[Any]) -> Any:
        """Return what the graph computes from `arguments`."""
        as_traced = self._as_traced
        if as_traced is None:
            return self._program(arguments)
        if self._fallback_state.taken:
            return self._replace_program(as_traced)(arguments)
        if not self._guarded:
            return self._program(arguments)
        sizes = tuple(arguments[at] for at in self._sizes_at)
        # Symbolic sizes cannot be looked up, and a run on fakes proves nothing: no kernel sees it.
        known = any(map(_is_symbolic, sizes)) or sizes in self._succeeded
        if known or any(isinstance(argument, FakeTensor) or _is_symbolic(argument) for argument in arguments):
            return self._program(arguments)
        return self._run_guarded(arguments, sizes, as_traced)

    def _run_guarded(self, arguments: list[Any], sizes: tuple[Any, ...], as_traced: _TracedProgram) -> Any:
        kept, drawn = list(arguments), torch.get_rng_state() if self._draws else None
        try:
            result = self._program(arguments)
        except Exception as error:  # noqa: BLE001 - any failure of the rewritten graph falls back
            # The frames hold what was computed so far, which may be the memory that was lacking.
            traceback.clear_frames(error.__traceback__)
            failure = error.with_traceback(None)
        else:
            self._succeeded.add(sizes)
            self._set_guarded(bool(sizes) and len(self._succeeded) < _MAX_GUARDED_SIZES)
            return result
        # Outside the handler, so that an error of the traced program does not name the failure as its context.
        if drawn is not None:
            torch.set_rng_state(drawn)
        result = as_traced()(kept)
        # A rewritten backward must not read what the traced forward saved. Lack of memory alone is no reason to fall
        # back: the arguments that this run kept may have caused it.
        if self._saves or not is_out_of_memory(failure):
            self._fallback_state.take(failure)
            self._replace_program(as_traced)
        return result

    def _set_guarded(self, guarded: bool) -> None:
        self._guarded = guarded
        if not guarded and self._fallback_state.alone:
            self._as_traced = None

    def _replace_program(self, as_traced: _TracedProgram) -> Compiled:
        self._program = program = as_traced()
        self._as_traced = None
        return program


class _TracedProgram:
    """Compile the traced program when it is first requested."""

    def __init__(self, compile_it: Callable[[], Compiled]) -> None:
        self._compile: Callable[[], Compiled] | None = compile_it
        self._lock = threading.Lock()

    def __call__(self) -> Compiled:
        with self._lock:
            if self._compile is not None:
                self._compiled = self._compile()
                self._compile = None
            return self._compiled


def can_rerun(graph: fx.Graph) -> bool:
    """Return whether a run that fails halfway leaves no trace, so that another program can repeat the call.

    Such a graph draws random numbers on the CPU only, whose generator can be restored. It calls only torch's own
    operators, and writes into its inputs last, by copies, which do not fail.
    """
    calls = [node for node in graph.nodes if node.op == "call_function"]
    computed = list(itertools.dropwhile(_copies_into_input, reversed(calls)))
    lasting = _find_lasting(graph)
    return all(
        _leaves_no_trace(node) and lasting.isdisjoint(find_aliased_operands(node, written=True)) for node in computed
    )


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, (SymInt, SymFloat, SymBool))


def _leaves_no_trace(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, OpOverload):
        # Arithmetic on sizes and tuple items; higher-order operators may do anything.
        return not isinstance(target, OperatorBase)
    return target.namespace in _NAMESPACES and not (_is_random(node) and not _is_on_cpu(node))


def _is_random(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and is_random_call(node.target, node.args, node.kwargs)


def _is_on_cpu(node: fx.Node) -> bool:
    values = [value for value in pytree.tree_leaves(node.meta.get("val")) if isinstance(value, Tensor)]
    return bool(values) and all(value.device.type == "cpu" for value in values)


def _copies_into_input(node: fx.Node) -> bool:
    written = node.args[0] if node.args else None
    return node.target is torch.ops.aten.copy_.default and isinstance(written, fx.Node) and written.op == "placeholder"


def _find_lasting(graph: fx.Graph) -> set[fx.Node]:
    """Return the values that outlive a run: inputs, constants and views of them."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        viewed = (
            node.all_input_nodes
            if not isinstance(node.target, OpOverload)
            else find_aliased_operands(node, written=False)
        )
        if node.op in ("placeholder", "get_attr") or not found.isdisjoint(viewed):
            found.add(node)
    return found


class LazyBaseline:
    """Compile a snapshot of `dynamo` by `inner` when the program is first requested.

    A graph with symbolic sizes is compiled at once: guards on them can only be added while Dynamo compiles the frame.
    Others compile later, under the torch configuration of now, and draw none of the user's random numbers. If that
    fails, eager runs the graph, and a warning says so. No tensor is kept alive.
    """

    def __init__(self, dynamo: fx.GraphModule, inputs: Sequence[Any], inner: Compiled) -> None:
        self._dynamo = copy_dynamo_graph(dynamo)
        self._inner = inner
        self._configuration = read_configuration()
        self._lock = threading.Lock()
        self._compiled: Callable[..., Any] | None = None
        computed = (node.meta.get("example_value") for node in dynamo.graph.nodes)
        if any(map(_has_symbolic_size, pytree.tree_leaves([*inputs, *computed]))):
            self._compiled = inner(copy_dynamo_graph(dynamo), list(inputs))

    def get_program(self, args: Sequence[Any]) -> Callable[..., Any]:
        """Return the compiled graph; the first time, compile it for `args`."""
        with self._lock:
            if self._compiled is None:
                try:
                    with preserve_random_state(), restore_configuration(self._configuration):
                        self._compiled = self._inner(copy_dynamo_graph(self._dynamo), list(args))
                except Exception as error:  # noqa: BLE001 - eager runs the graph
                    self._compiled = self._dynamo.forward
                    warn_user(f"frx could not compile a baseline later on ({summarize_error(error)}): eager runs it")
            return self._compiled


def _has_symbolic_size(value: Any) -> bool:
    return any(map(_is_symbolic, value.shape if isinstance(value, Tensor) else [value]))
