"""Inputs whose strides change from call to call, brought to one layout before the guards see them.

Why: a compiled graph is guarded on the strides of its inputs. A program that is fed plain and channels-last images in
turn is compiled for either, or for strides that are not known, which loses what is fast about knowing them.
How: a call with other dense strides than those that its graph was compiled for is given a copy with those.
Assumes: the program is captured whole, in one graph, so that the graph is all that happens to its inputs.
Safe: refused, with a reason, are inputs that the program writes into, returns, keeps, or shares memory of with what it
returns; inputs with gaps or overlaps, parameters, and what lies in lists and dictionaries; and programs whose outputs'
strides follow the input's, since eager would return others than the compiled graph. Graphs are run on fakes to tell,
whenever one is compiled; what the program keeps is told by who refers to its inputs before and after. Strides that
Python reads leave no trace in a graph, and some operators go by them; so before strides are pinned the program is
captured for what it is given and for copies, and both graphs have to compute the same
(`frx_graph/prepack/equivalence.py`). Refused, too, are programs that draw random numbers for tensors, which are drawn
in the order of memory.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.utils import counters
from torch.utils import _pytree as pytree

from frx_graph.capture.graph_outcome import InputTensor
from frx_graph.capture.observed_call import ObservedCall, observed_call
from frx_graph.capture.referrers import is_kept, referrers
from frx_graph.capture.whole_program import WholeProgram, whole_program
from frx_graph.errors import first_line
from frx_graph.facts.layout import dimension_order, is_dense
from frx_graph.prepack.equivalence import computes_otherwise
from frx_graph.records import Candidate, Refusal
from frx_graph.wrapper.call_signature import CallSignature, Strides, call_signature, places, with_replaced
from frx_graph.wrapper.graph_snapshot import NotedGraph, PlacedGraph, seen_outside

NAME = "pin_strides"
_MOST_SIGNATURES = 256
"""Calls are told apart no further: a program that never repeats a shape would fill memory with what is known of it."""
_MOST_SEARCHES = 16
"""How often who refers to an input is searched for: it takes some ten milliseconds, only when something is compiled."""

_DYNAMOS = ("_dynamo_", "_has_dynamo")
"""How attributes begin by which `mark_dynamic` and its like tell Dynamo of a tensor's sizes; copies may lack them."""
_BOOKKEEPING = threading.RLock()
"""What is known of calls is changed by one thread at a time."""

Pinned = Callable[[Candidate | Refusal], None]


@dataclass
class _Known:
    """What is known of calls with one signature. `strides` are those that a graph was compiled for; `how` says for
    strides which tensors, by position, are copied before the call."""

    strides: Strides | None = None
    graphs: list[PlacedGraph] = field(default_factory=list)
    how: dict[Strides, tuple[int, ...]] = field(default_factory=dict)


class PinnedInputs:
    """Runs a compiled program, with the strides of its inputs pinned where that is safe and saves a compilation."""

    def __init__(self, model: nn.Module, told: Pinned) -> None:
        # Dynamo's caches keep a backend, and with it this, for as long as the model's code is there.
        self._reference = weakref.ref(model)
        self._told = told
        self._compiled: list[NotedGraph | None] = []
        self._known: dict[tuple[Any, ...], _Known] = {}
        self._refused: dict[str, str] = {}
        self._reported: set[str] = set()
        self._given_up = False
        self._on_copies: dict[int, int] = {}
        """By threads that run a call on copies the number of frames that Dynamo had looked at before."""
        self._writes_elsewhere = False
        self._searches = 0

    @property
    def _model(self) -> nn.Module:
        model = self._reference()
        assert model is not None, "it is being called"
        return model

    def before_compiling(self) -> None:
        """Called by the backend before it compiles a graph. Raises `_CompiledAgainError`, which `run` understands, in a
        call on copies of which nothing has run yet."""
        frames = self._on_copies.get(threading.get_ident())
        if frames is not None and _frames()[0] == frames + 1:
            raise _CompiledAgainError

    def note(self, graph: NotedGraph | None) -> None:
        """Called by the backend for each graph that it compiles; None for one that could not be looked at."""
        self._compiled.append(graph)

    def run(self, program: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """`program(*args, **kwargs)`."""
        if self._given_up or torch.compiler.is_compiling():
            return program(*args, **kwargs)
        call = call_signature(args, kwargs)
        if call is None:
            self._give_up("an argument is neither a tensor nor a constant, nor made of them")
            return program(*args, **kwargs)
        # What is asked of a call's graphs is asked in its own modes.
        autocast = tuple(map(torch.is_autocast_enabled, ("cpu", "cuda")))
        key = (self._model.training, autocast, *call.key)
        known = self._known.get(key)
        how = None if known is None else known.how.get(call.strides)
        if known is None or how is None:
            with _BOOKKEEPING:
                if len(self._known) < _MOST_SIGNATURES or key in self._known:
                    known = self._known.setdefault(key, _Known())
                    how = self._decided(known, call, args, kwargs)
        if known is None:
            return program(*args, **kwargs)
        if how and self._may_copy(call, how):
            return self._run_on_copies(program, args, kwargs, call, known, how)
        return self._run_as_it_is(program, args, kwargs, call, known)

    def _run_as_it_is(
        self,
        program: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        call: CallSignature,
        known: _Known,
    ) -> Any:
        self._compiled.clear()
        frames = _frames()
        searched = known.strides is None and self._searches < _MOST_SEARCHES
        self._searches += searched
        before = [referrers(tensor) for tensor in call.tensors] if searched else None
        result = program(*args, **kwargs)
        if self._compiled or _frames() != frames:
            with _BOOKKEEPING:
                self._learn(known, call, args, kwargs, frames, before, result)
        return result

    def _run_on_copies(
        self,
        program: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        call: CallSignature,
        known: _Known,
        how: tuple[int, ...],
    ) -> Any:
        assert known.strides is not None, "nothing is pinned before something is compiled"
        copies = {id(call.tensors[i]): _with_strides(call.tensors[i], known.strides[i]) for i in how}
        versions = {key: copy._version for key, copy in copies.items()}
        self._compiled.clear()
        frames = _frames()
        self._on_copies[threading.get_ident()] = frames[0]
        result, has_run = None, True
        try:
            result = _called_with(program, args, kwargs, copies)
        except BackendCompilerFailed as error:
            if not isinstance(error.inner_exception, _CompiledAgainError):
                raise
            has_run = False
        finally:
            self._on_copies.pop(threading.get_ident(), None)
        if has_run and not self._compiled and _frames() == frames:
            return result
        # The program is in a state that it was not in when its graph was looked at: from now on without copies.
        self._give_up("the program is compiled again for reasons of its own")
        if not has_run:
            return program(*args, **kwargs)
        _write_back(call.tensors, {key: copy for key, copy in copies.items() if copy._version != versions[key]})
        return result

    def _may_copy(self, call: CallSignature, how: tuple[int, ...]) -> bool:
        """What can change between two calls that look alike."""
        if self._model._forward_hooks or self._model._forward_pre_hooks:
            return False
        if torch._dynamo.config.suppress_errors:
            # Dynamo would take it for an error that the call is compiled again, and run the copies in eager.
            return False
        inference = torch.is_inference_mode_enabled()
        tensors = [call.tensors[i] for i in how]
        if any(tensor.is_neg() or tensor.is_inference() != inference or _has_attributes(tensor) for tensor in tensors):
            return False
        if not self._writes_elsewhere:
            return True
        # What the graph writes into must not be what is copied, under another name.
        others = [*self._model.buffers(), *self._model.parameters()]
        others.extend(tensor for i, tensor in enumerate(call.tensors) if i not in how)
        return _memories(tensors).isdisjoint(_memories(others))

    def _decided(
        self, known: _Known, call: CallSignature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[int, ...]:
        if known.strides is None or known.strides == call.strides:
            return ()
        found, pinned = places(args, kwargs), known.strides
        differing = [i for i, (own, seen) in enumerate(zip(call.strides, pinned, strict=True)) if own != seen]
        reasons = {}
        for i in differing:
            reason = self._reason(call.tensors[i], pinned[i], fixed=found[i][1], place=found[i][0])
            if reason is not None:
                reasons[found[i][0]] = reason
        if not reasons and (reason := seen_outside(known.graphs, pinned, call.strides, differing)) is not None:
            reasons = {found[i][0]: reason for i in differing}
        if not reasons:
            strides = {id(call.tensors[i]): pinned[i] for i in differing}
            if (reason := self._seen_by_program(args, kwargs, strides)) is not None:
                reasons = {found[i][0]: reason for i in differing}
        for place, reason in reasons.items():
            self._report(place, Refusal(NAME, reason, (place,)))
        how = () if reasons else tuple(differing)
        for i in how:
            order = dimension_order(call.tensors[i].shape, pinned[i])
            choice = ",".join(map(str, order))
            self._report(found[i][0], Candidate(NAME, known.graphs[0].graph.graph_id, (found[i][0],), (choice,)))
        known.how[call.strides] = how
        return how

    def _seen_by_program(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], pinned: Mapping[int, tuple[int, ...]]
    ) -> str | None:
        """What the program computes otherwise on copies of tensors, by their identities, with strides of `pinned`."""
        gradients = torch.is_grad_enabled()

        def captured(copies: Mapping[int, Tensor]) -> WholeProgram:
            given, named = _replaced(args, kwargs, copies)
            return whole_program(self._model, given, named, gradients=gradients, as_eager=False)

        def run(program: WholeProgram, disturbance: AbstractContextManager[Any] | None = None) -> ObservedCall:
            return observed_call(program, train=gradients, disturbance=disturbance)

        leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if id(leaf) in pinned]
        try:
            program = captured({})
            copies = {id(leaf): _with_strides(leaf, pinned[id(leaf)]) for leaf in leaves}
            for leaf in leaves:
                marks = {name: mark for name, mark in leaf.__dict__.items() if name.startswith(_DYNAMOS)}
                copies[id(leaf)].__dict__.update(marks)
            reason = computes_otherwise(run(program), run(captured(copies)), partial(run, program))
        except Exception as error:  # noqa: BLE001 - the user's model may raise anything
            return f"what the program computes cannot be observed: {first_line(error)}"
        return None if reason is None else f"the program computes something else on other strides: {reason}"

    def _reason(self, tensor: Tensor, pinned: tuple[int, ...], *, fixed: bool, place: str) -> str | None:
        if not fixed:
            return "it lies in a list or a dictionary, which the program could change"
        if type(tensor) is not Tensor:
            return "it is a parameter or a buffer"
        if tensor.is_complex() or tensor.is_quantized:
            return "it is complex or quantized"
        if not all(is_dense(tensor.shape, strides) for strides in (tensor.stride(), pinned)):
            return "it has gaps or overlaps in memory, which a copy would not have"
        if self._model._forward_hooks or self._model._forward_pre_hooks:
            return "hooks of the program see its inputs"
        return self._refused.get(place)

    def _learn(
        self,
        known: _Known,
        call: CallSignature,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        frames: tuple[int, int],
        before: list[list[tuple[Any, int]]] | None,
        result: Any,
    ) -> None:
        total, ok = _frames()
        graph = self._compiled[0] if len(self._compiled) == 1 else None
        if graph is None or (total - frames[0], ok - frames[1]) != (1, 1):
            self._give_up("the program is not captured in one graph, and what happens between graphs is not known")
            return
        outcome = graph.outcome
        by_identity = {value.identity: i for i, value in enumerate(graph.inputs) if isinstance(value, InputTensor)}
        own = {id(tensor) for tensor in (*self._model.parameters(), *self._model.buffers(), *call.tensors)}
        identities = [value.identity if isinstance(value, InputTensor) else None for value in graph.inputs]
        if outcome.writes_held or any(identities[i] not in own for i in outcome.written):
            self._give_up("the program writes into tensors from elsewhere")
            return
        self._writes_elsewhere = self._writes_elsewhere or bool(outcome.written)
        returned = {id(leaf) for leaf in pytree.tree_leaves(result)}
        gc.collect()
        found = places(args, kwargs)
        if len(found) != len(call.tensors):
            self._give_up("the program changes the lists or dictionaries that it is given")
            return
        # By number: `zip` would itself refer to the tensor.
        for i in range(len(found)):
            position = by_identity.get(id(call.tensors[i]))
            if position is None:
                reason: str | None = "the graph does not read it as it is given"
            elif position in outcome.written:
                reason = "the program writes into it"
            elif position in outcome.returned or id(call.tensors[i]) in returned:
                reason = "the program returns it, or what shares its memory"
            elif before is None:
                reason = "the program is compiled again for reasons of its own"
            else:
                reason = "the program keeps it" if is_kept(call.tensors[i], before[i]) else None
            if reason is not None and found[i][0] not in self._refused:
                self._refused[found[i][0]] = reason
                for other in self._known.values():
                    other.how.clear()
        positions = {i: by_identity[id(tensor)] for i, tensor in enumerate(call.tensors) if id(tensor) in by_identity}
        known.graphs.append(PlacedGraph(graph, positions))
        if known.strides is None:
            known.strides = call.strides
        known.how[call.strides] = ()

    def _give_up(self, reason: str) -> None:
        with _BOOKKEEPING:
            self._given_up = True
            self._known.clear()
            self._report("", Refusal(NAME, reason))

    def _report(self, place: str, outcome: Candidate | Refusal) -> None:
        key = f"{place} {type(outcome).__name__}"
        if key not in self._reported:
            self._reported.add(key)
            self._told(outcome)


class _CompiledAgainError(Exception):
    """A call on copies would be compiled."""


def _called_with(
    program: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], copies: Mapping[int, Tensor]
) -> Any:
    """`program(*args, **kwargs)`, on copies of some tensors, by their identities."""
    given, named = _replaced(args, kwargs, copies)
    return program(*given, **named)


def _replaced(
    args: Sequence[Any], kwargs: Mapping[str, Any], copies: Mapping[int, Tensor]
) -> tuple[list[Any], dict[str, Any]]:
    named = {name: with_replaced(value, copies) for name, value in kwargs.items()}
    return [with_replaced(value, copies) for value in args], named


def _write_back(tensors: Sequence[Tensor], copies: Mapping[int, Tensor]) -> None:
    with torch.no_grad():
        for tensor in tensors:
            copy = copies.get(id(tensor))
            if copy is not None:
                tensor.copy_(copy)


def _frames() -> tuple[int, int]:
    """How many frames Dynamo has looked at, and how many of them it has compiled."""
    frames = counters["frames"]
    return frames["total"], frames["ok"]


def _has_attributes(tensor: Tensor) -> bool:
    """True if somebody has hung something on the tensor, which a copy would lack."""
    return any(not name.startswith(_DYNAMOS) for name in tensor.__dict__)


def _memories(tensors: Sequence[Tensor]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def _with_strides(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    copy = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    copy.copy_(tensor)
    return copy if copy.requires_grad == tensor.requires_grad else copy.requires_grad_()
