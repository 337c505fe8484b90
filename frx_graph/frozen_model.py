"""A model that is compiled with its weights as constants, packed anew when they have changed."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch._dynamo.exc import BackendCompilerFailed, FailOnRecompileLimitHit, TorchDynamoException
from torch._inductor import config as inductor_config
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from frx_graph.backend import frozen_backend
from frx_graph.call_signature import call_signature
from frx_graph.capture.graph_outcome import graph_inputs, graph_outcome
from frx_graph.capture.whole_call import NotCompiledError, whole_call
from frx_graph.errors import first_line
from frx_graph.kept_output_strides import (
    StoredAnew,
    as_they_were,
    constants_as_they_were,
    keep_output_strides,
    keep_seen_strides,
)
from frx_graph.options import BackendOptions
from frx_graph.records import Refusal
from frx_graph.rewrite_log import LOG
from frx_graph.user_warning import warn_and_go_on
from frx_graph.weight_watch import WeightWatch

_MOST_VERSIONS = 3
"""For how many versions of the weights a frozen program is compiled; at the next one they count as no constants."""
_MOST_KINDS = 256
"""Kinds of calls that are remembered; what is met after that costs some microseconds more a call."""


class FrozenModel:
    """A model compiled with its weights as constants, for as long as they are. `stored` gives those that
    `frx_graph.prepare` stored anew: programs return what they would have with the strides of before."""

    def __init__(
        self,
        model: nn.Module,
        options: BackendOptions,
        how: Mapping[str, Any],
        stored: Callable[[], tuple[StoredAnew, ...]],
    ) -> None:
        self._model = model
        self._stored = stored
        self._options = options
        self._how = how
        self._lock = threading.RLock()
        self._watch: WeightWatch | None = None
        self._attributes: list[WeightWatch] = []
        self._program: tuple[Callable[..., Any], bool] | None = None
        """And whether it is in parts."""
        self._called: tuple[object, ...] = ()
        self._in_parts = False
        """Whether the program is more than one graph, with Python between them."""
        self._versions = 0

    def run(self, otherwise: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What the model returns; where its weights are no constants that of `otherwise`."""
        current = self._current_program()
        if current is None:
            return otherwise(*args, **kwargs)
        program, in_parts = current
        if in_parts:
            return program(*args, **kwargs)
        failure = ""
        try:
            return program(*args, **kwargs)
        except NotCompiledError:
            # Nothing of the call has run yet, nor has it where Dynamo or a backend raises.
            return otherwise(*args, **kwargs)
        except BackendCompilerFailed as error:
            failure = first_line(error)
        except (TorchDynamoException, FailOnRecompileLimitHit):
            pass
        if failure:
            self._give_up(failure)
            return otherwise(*args, **kwargs)
        with self._lock:
            parts = self._compiled(in_parts=True)
        result = parts(*args, **kwargs)
        # What the program itself raises, here as there, says nothing of other calls.
        with self._lock:
            self._in_parts = True
            if self._program is current:
                self._program = parts, True
        return result

    def _current_program(self) -> tuple[Callable[..., Any], bool] | None:
        """The program for the weights as they are, and whether it is in parts; None where they are no constants."""
        if self._versions > _MOST_VERSIONS:
            return None
        with self._lock:
            try:
                if not self._unchanged():
                    self._versions += 1
                    if self._versions > _MOST_VERSIONS:
                        raise ValueError("they change from call to call")
                    self._attributes, self._called = [], _called(self._model)
                    self._watch = WeightWatch(self._model)
                    self._program = self._compiled(in_parts=self._in_parts), self._in_parts
            except Exception as error:  # noqa: BLE001 - a stranger's tensors may not let themselves be looked at
                self._give_up(str(error) if isinstance(error, ValueError) else first_line(error))
            return self._program

    def _unchanged(self) -> bool:
        if self._watch is None or self._called != _called(self._model):
            return False
        return all(watch.unchanged() for watch in (self._watch, *self._attributes))

    def _as_long_as_unchanged(self, compiled: Callable[..., Any], captured: fx.GraphModule) -> Callable[..., Any]:
        """A graph whose weights are looked at whenever it runs, since Python in front of it, or another graph, may have
        written into them; where one has, this call runs it as it was captured."""
        watches = () if self._watch is None else (self._watch, *self._attributes)

        def run(*args: Any) -> Any:
            return (compiled if all(watch.unchanged() for watch in watches) else captured)(*args)

        return run

    def _give_up(self, reason: str) -> None:
        with self._lock:
            self._versions = _MOST_VERSIONS + 1
            self.let_go()
        warn_and_go_on(f"frx: the weights are not frozen: {reason}")

    def let_go(self) -> None:
        """Hold the weights' memory no longer: they are frozen anew when they are needed."""
        with self._lock:
            self._watch = self._program = None
            self._attributes = []

    def _watch_attributes(self, dynamo: fx.GraphModule) -> None:
        """Watch the tensors, too, that a graph holds though they are no parameters or buffers of the model: Inductor
        takes them for constants as well."""
        if self._watch is None:
            return
        watches = (self._watch, *self._attributes)
        others = nn.Module()
        for name, tensor in enumerate((*dynamo.parameters(), *dynamo.buffers())):
            if not any(watch.watches(tensor) for watch in watches):
                others.register_buffer(str(name), tensor)
        try:
            if others._buffers:
                self._attributes.append(WeightWatch(others))
        except ValueError as error:
            # Right for this call.
            self._versions = _MOST_VERSIONS + 1
            warn_and_go_on(f"frx: the weights are frozen for one call only: {error}")

    def _compiled(self, *, in_parts: bool) -> Callable[..., Any]:
        # A function of its own for each version: Dynamo tells by it that what it has compiled is for other weights.
        inner = frozen_backend(self._options, lambda weight: self._watch is not None and self._watch.watches(weight))

        def backend(*args: Any, **kwargs: Any) -> Any:
            if not inductor_config.freezing and self._watch is not None and self._watch.replaced():
                # Dynamo has noticed. This call's program takes the new tensor as an input, the next one is frozen anew.
                self._watch = None
            self._watch_attributes(args[0])
            # Compiling changes the graph in place, and Inductor puts folded weights into it.
            captured = fx.GraphModule(args[0], copy.deepcopy(args[0].graph)) if in_parts else None
            stored = self._stored()
            if stored:
                _keep_strides(args[0], args[1], stored)
            compiled = inner(*args, **kwargs)
            return compiled if captured is None else self._as_long_as_unchanged(compiled, captured)

        compiled: Any
        if in_parts:
            compiled = torch.compile(self._model, backend=backend, **self._how)
            if compiled is not self._model:
                # What has called us is such a module already: what its call does once more takes a few microseconds.
                compiled = compiled.forward
        else:
            # The weights are compared before a call. In the middle of one, between two graphs or in a hook of the model
            # itself, which Dynamo leaves to Python, they may change as well.
            whole = whole_call(self._model, "frozen")
            compiled = torch.compile(whole, backend=backend, **{**self._how, "fullgraph": True})
        met: set[tuple[Any, ...]] = set()

        def run(*args: Any, **kwargs: Any) -> Any:
            known = _kind_of_call(args, kwargs)
            if known in met:
                return compiled(*args, **kwargs)
            # Dynamo and Inductor read the setting while they compile, which new kinds of calls make them do.
            with inductor_config.patch(freezing=True):
                result = compiled(*args, **kwargs)
            if known is not None and len(met) < _MOST_KINDS:
                met.add(known)
            return result

        return run


def _called(model: nn.Module) -> tuple[object, ...]:
    """What is called with the model, hooks by their numbers: Dynamo does not guard on that where it has captured it."""
    hooks = (model._forward_pre_hooks, model._forward_hooks, _global_forward_pre_hooks, _global_forward_hooks)
    return (type(model).forward, *itertools.chain.from_iterable(hooks))


def _keep_strides(dynamo: fx.GraphModule, example_inputs: list[Any], stored: tuple[StoredAnew, ...]) -> None:
    """Let a graph, which may hold its weights itself, return what it would have before they were stored anew."""
    try:
        inputs = graph_inputs(example_inputs)
        before = as_they_were(inputs, stored)
        with constants_as_they_were(dynamo, stored) as any_held:
            wanted = graph_outcome(dynamo, before)
        if any_held or before != inputs:
            for refusal in keep_seen_strides(dynamo, inputs, before, stored):
                LOG.note(refusal)
            for refusal in keep_output_strides(dynamo, inputs, before, wanted, stored):
                LOG.note(refusal)
    except Exception as error:  # noqa: BLE001 - any failure of ours leaves the program as it was
        LOG.note(Refusal("frx_graph.compile", f"a graph could not be looked at: {first_line(error)}"))


def _kind_of_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Equal for calls that run what is compiled already; None where nothing is known of an argument."""
    call = call_signature(args, kwargs)
    autocast = tuple((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda"))
    return None if call is None else (call.key, call.strides, autocast, torch.is_inference_mode_enabled())
