"""A rewritten graph as it is run: where it fails and the graph as it was traced does not, that takes its place.

Values are predicted for the sizes and strides that a graph is compiled with, by fakes; what kernels say to them shows
only when they run. So runs with sizes that are new are watched: they keep their arguments until they have succeeded.
"""

from __future__ import annotations

import itertools
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import SymBool, SymFloat, SymInt, Tensor, fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from frx_graph.compiler.pre_autograd import Compiled, Failed
from frx_graph.facts.operator_overload import draws_random_numbers
from frx_graph.ops.onednn_linear import LIBRARY
from frx_graph.support.out_of_memory import out_of_memory

_NAMESPACES = frozenset({"aten", "prims", "mkldnn", LIBRARY.ns})
_MOST_SIZES = 64
"""Where sizes never come twice, each run would keep its arguments, a backward all that was saved."""


@dataclass
class WayBack:
    """From what was rewritten to what was traced. A forward and its backward, each rewritten for the other, share it
    and go back together; an inference graph has one `alone`."""

    failed: Failed
    alone: bool = False
    taken: bool = False

    def take(self, error: Exception) -> None:
        """Go back, and tell why."""
        if not self.taken:
            self.taken = True
            self.failed(error)


class RewrittenRun:
    """`rewritten`, made of `graph`, until it fails where the program that `as_traced` compiles does not: from then on
    that. Both take their arguments in one list, which they may empty. Raises what the program as traced raises.

    Nothing is kept alive for longer than it is needed: the rewritten program until the other has taken its place, and
    what that is compiled of until nobody can ask for it any more.
    """

    # What wraps this takes over all that is in `__dict__`: by `_boxed_call` AOTAutograd tells, the rest would be kept.
    __slots__ = (
        "__dict__",
        "_as_traced",
        "_draws",
        "_program",
        "_saves",
        "_sizes_at",
        "_succeeded",
        "_watched",
        "_way_back",
    )

    def __init__(
        self,
        rewritten: Compiled,
        graph: fx.Graph,
        as_traced: Callable[[], Compiled],
        way_back: WayBack,
        *,
        saves: bool = False,
    ) -> None:
        """`saves`: a backward may be rewritten for what it saves."""
        self._boxed_call = True
        self._program = rewritten
        self._way_back = way_back
        self._saves = saves
        self._as_traced: _AsTraced | None = _AsTraced(as_traced)
        values = (node.meta.get("val") for node in graph.find_nodes(op="placeholder"))
        self._sizes_at = [at for at, value in enumerate(values) if isinstance(value, (SymInt, SymFloat, int, float))]
        self._draws = any(map(_draws, graph.nodes))
        self._succeeded: set[tuple[Any, ...]] = set()
        self._watch(may_run_again(graph))

    def __call__(self, arguments: list[Any]) -> Any:
        """What the graph returns for `arguments`."""
        as_traced = self._as_traced
        if as_traced is None:
            return self._program(arguments)
        if self._way_back.taken:
            return self._gone_back(as_traced)(arguments)
        if not self._watched:
            return self._program(arguments)
        sizes = tuple(arguments[at] for at in self._sizes_at)
        # Symbolic sizes cannot be looked up, and a run on fakes proves nothing: no kernel sees it.
        if any(map(_is_symbolic, sizes)) or sizes in self._succeeded or any(map(_is_fake, arguments)):
            return self._program(arguments)
        return self._run(arguments, sizes, as_traced)

    def _run(self, arguments: list[Any], sizes: tuple[Any, ...], as_traced: _AsTraced) -> Any:
        kept, drawn = list(arguments), torch.get_rng_state() if self._draws else None
        try:
            result = self._program(arguments)
        except Exception as error:  # noqa: BLE001 - any failure of ours falls back to the graph as it was
            # What it has computed may be the memory that it has failed for.
            traceback.clear_frames(error.__traceback__)
            failure = error.with_traceback(None)
        else:
            self._succeeded.add(sizes)
            self._watch(bool(sizes) and len(self._succeeded) < _MOST_SIZES)
            return result
        # Behind the handler: what the program itself raises here has nothing to do with our failure.
        if drawn is not None:
            torch.set_rng_state(drawn)
        result = as_traced()(kept)
        # What is saved as it was traced, a backward that was rewritten must not read. Too little memory says nothing
        # against the graph: it may be the arguments that a run has kept that left too little.
        if self._saves or not out_of_memory(failure):
            self._way_back.take(failure)
            self._gone_back(as_traced)
        return result

    def _watch(self, watched: bool) -> None:
        self._watched = watched
        if not watched and self._way_back.alone:
            self._as_traced = None

    def _gone_back(self, as_traced: _AsTraced) -> Compiled:
        self._program = program = as_traced()
        self._as_traced = None
        return program


class _AsTraced:
    """The program as it was traced, compiled when it is first asked for."""

    def __init__(self, compile_it: Callable[[], Compiled]) -> None:
        self._compile: Callable[[], Compiled] | None = compile_it
        self._lock = threading.Lock()

    def __call__(self) -> Compiled:
        with self._lock:
            if self._compile is not None:
                self._compiled = self._compile()
                self._compile = None
            return self._compiled


def may_run_again(graph: fx.Graph) -> bool:
    """True for a graph that leaves nothing behind where it ends halfway: it draws random numbers on the CPU alone,
    whose generator can be put back, calls no operators but torch's own, and writes into its inputs last, by copies,
    which do not fail."""
    calls = [node for node in graph.nodes if node.op == "call_function"]
    computed = list(itertools.dropwhile(_copies_into_input, reversed(calls)))
    lasting = _lasting(graph)
    return all(_leaves_nothing(node) and lasting.isdisjoint(_written(node)) for node in computed)


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, (SymInt, SymFloat, SymBool))


def _is_fake(value: Any) -> bool:
    return isinstance(value, FakeTensor) or _is_symbolic(value)


def _leaves_nothing(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, OpOverload):
        # Arithmetic on sizes, and items of tuples; operators of a higher order may do anything.
        return not isinstance(target, torch._ops.OperatorBase)
    return target.namespace in _NAMESPACES and not (_draws(node) and not _is_on_cpu(node))


def _draws(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and draws_random_numbers(node.target, node.args, node.kwargs)


def _is_on_cpu(node: fx.Node) -> bool:
    values = [value for value in pytree.tree_leaves(node.meta.get("val")) if isinstance(value, Tensor)]
    return bool(values) and all(value.device.type == "cpu" for value in values)


def _copies_into_input(node: fx.Node) -> bool:
    written = node.args[0] if node.args else None
    return node.target is torch.ops.aten.copy_.default and isinstance(written, fx.Node) and written.op == "placeholder"


def _lasting(graph: fx.Graph) -> set[fx.Node]:
    """What is there when the graph has ended: its inputs and constants, and views of them."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        viewed = node.all_input_nodes if not isinstance(node.target, OpOverload) else _aliased(node, written=False)
        if node.op in ("placeholder", "get_attr") or not found.isdisjoint(viewed):
            found.add(node)
    return found


def _written(node: fx.Node) -> Iterator[fx.Node]:
    return _aliased(node, written=True)


def _aliased(node: fx.Node, *, written: bool) -> Iterator[fx.Node]:
    """The operands whose memory a result may share, by the operator's schema, or with `written` those that it writes
    into."""
    if not isinstance(node.target, OpOverload):
        return
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is not None and (argument.alias_info.is_write or not written):
            given = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            yield from (leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, fx.Node))
