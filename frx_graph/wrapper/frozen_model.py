"""A model that is compiled with its weights as constants, packed anew when they have changed."""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch._dynamo.eval_frame import remove_from_cache
from torch._dynamo.exc import BackendCompilerFailed, FailOnRecompileLimitHit, TorchDynamoException
from torch._inductor import config as inductor_config
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from frx_graph.backend import frozen_backend
from frx_graph.capture.dynamo_events import short_reason
from frx_graph.capture.model_call import NotCompiledError, recompiling_fails, whole_call
from frx_graph.errors import first_line
from frx_graph.freezing.weight_guard import WeightWatch
from frx_graph.options import BackendOptions
from frx_graph.support.user_warning import warn_and_go_on
from frx_graph.wrapper.call_signature import call_signature

_MOST_VERSIONS = 3
"""For how many versions of the weights a frozen program is compiled; at the next one they count as no constants."""
_MOST_KINDS = 256
"""Kinds of calls that are remembered; what is met after that costs some microseconds more a call."""


class FrozenModel:
    """A model compiled with its weights as constants, for as long as they are."""

    def __init__(self, model: nn.Module, options: BackendOptions, how: Mapping[str, Any]) -> None:
        self._model = model
        self._options = options
        self._how = how
        self._lock = threading.RLock()
        self._version: _Version | None = None
        self._versions = 0
        self._given_up = False
        self._was_broken = False

    def run(self, otherwise: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What the model returns; where its weights are no constants that of `otherwise`."""
        program = self._program()
        if program is None and self._version is not None and recompiling_fails():
            # The program is none that would be compiled again: it is frozen anew when that is allowed.
            with torch.compiler.set_stance("eager_on_recompile"):
                return otherwise(*args, **kwargs)
        if program is None:
            return otherwise(*args, **kwargs)
        # Where one of these is raised nothing of the call has run: it is captured in one graph, or not at all.
        try:
            return program(*args, **kwargs)
        except NotCompiledError:
            return otherwise(*args, **kwargs)
        except BackendCompilerFailed as error:
            reason, whole = first_line(error), True
        except (TorchDynamoException, FailOnRecompileLimitHit) as error:
            reason, whole = f"the program is not captured in one graph: {short_reason(str(error))}", False
        result = otherwise(*args, **kwargs)
        # What the program itself raises, here as there, says nothing of other calls; nor does what it does once, as
        # under a lock.
        if whole or self._was_broken:
            self._give_up(reason)
        self._was_broken = not whole
        return result

    def let_go(self) -> None:
        """Hold the weights' memory no longer: they are frozen anew when they are needed."""
        with self._lock:
            self._version = None

    def _program(self) -> Callable[..., Any] | None:
        """The program for the weights as they are; None where they are no constants."""
        if self._given_up:
            return None
        with self._lock:
            try:
                if self._version is None or not self._version.unchanged(self._model):
                    if recompiling_fails():
                        return None
                    self._versions += 1
                    if self._versions > _MOST_VERSIONS:
                        raise ValueError("they change from call to call")
                    self._version = _Version([WeightWatch(self._model)], _called(self._model))
                    self._version.program = self._compiled(self._version)
            except Exception as error:  # noqa: BLE001 - a stranger's tensors may not let themselves be looked at
                self._give_up(str(error) if isinstance(error, ValueError) else first_line(error))
            return None if self._version is None else self._version.program

    def _give_up(self, reason: str) -> None:
        with self._lock:
            self._given_up = True
            self.let_go()
        warn_and_go_on(f"frx: the weights are not frozen: {reason}")

    def _compiled(self, version: _Version) -> Callable[..., Any]:
        # Dynamo's caches keep a backend where garbage is not looked for: it keeps nothing of this alive.
        own, current = weakref.ref(self), weakref.ref(version)
        options = self._options

        def watches_tensor(tensor: torch.Tensor) -> bool:
            version = current()
            return version is not None and version.watches_tensor(tensor)

        inner = frozen_backend(options, watches_tensor)

        def backend(dynamo: fx.GraphModule, example_inputs: list[Any], **how: Any) -> Any:
            model, version = own(), current()
            assert model is not None and version is not None, "they are running"
            if not inductor_config.freezing and version.watches[0].replaced():
                # Dynamo has noticed. This call's program takes the new tensor as an input, the next one is frozen anew.
                model.let_go()
            model._watch_attributes(version, dynamo)
            return _run_unfrozen(inner(dynamo, example_inputs, **how))

        # A function of its own for each version: Dynamo tells by it that what it has compiled is for other weights. In
        # the middle of a call, between two graphs or in a hook that Dynamo leaves to Python, weights may change as
        # well, and other programs be compiled: only what is captured whole is frozen.
        whole = whole_call(self._model, "frozen")
        compiled: Any = torch.compile(whole, backend=backend, **{**self._how, "fullgraph": True})
        # What is compiled holds the weights, and Dynamo the code, for as long as the process lives.
        weakref.finalize(version, remove_from_cache, whole.__code__).atexit = False

        def run(*args: Any, **kwargs: Any) -> Any:
            known = _kind_of_call(args, kwargs)
            if known in version.met:
                return compiled(*args, **kwargs)
            # Dynamo and Inductor read the setting while they compile, which new kinds of calls make them do.
            with inductor_config.patch(freezing=True):
                result = compiled(*args, **kwargs)
            if known is not None and len(version.met) < _MOST_KINDS:
                version.met.add(known)
            return result

        return run

    def _watch_attributes(self, version: _Version, dynamo: fx.GraphModule) -> None:
        """Watch the tensors, too, that a graph holds though they are no parameters or buffers of the model: Inductor
        takes them for constants as well."""
        others = nn.Module()
        for name, tensor in enumerate((*dynamo.parameters(), *dynamo.buffers())):
            if not version.watches_tensor(tensor):
                others.register_buffer(str(name), tensor)
        try:
            if others._buffers:
                version.watches.append(WeightWatch(others))
        except ValueError as error:
            # Right for this call.
            self._given_up = True
            warn_and_go_on(f"frx: the weights are frozen for one call only: {error}")


@dataclass
class _Version:
    """A program and what it was compiled for: weights, which `watches` look at, and what is called with the model.
    `met` are the kinds of calls that it was compiled for."""

    watches: list[WeightWatch]
    called: tuple[object, ...]
    program: Callable[..., Any] | None = None
    met: set[tuple[Any, ...]] = field(default_factory=set)

    def unchanged(self, model: nn.Module) -> bool:
        """Whether it still holds."""
        return self.called == _called(model) and all(watch.unchanged() for watch in self.watches)

    def watches_tensor(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` is looked at."""
        return any(watch.watches(tensor) for watch in self.watches)


def _run_unfrozen(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """While the graph runs, operators written in Python may compile programs that are none of ours."""

    @functools.wraps(compiled)
    def run(*args: Any) -> Any:
        if not inductor_config.freezing:
            return compiled(*args)
        with inductor_config.patch(freezing=False):
            return compiled(*args)

    return run


def _called(model: nn.Module) -> tuple[object, ...]:
    """What is called with the model, hooks by their numbers: Dynamo does not guard on that where it has captured it."""
    hooks = (model._forward_pre_hooks, model._forward_hooks, _global_forward_pre_hooks, _global_forward_hooks)
    return (type(model).forward, *itertools.chain.from_iterable(hooks))


def _kind_of_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Equal for calls that run what is compiled already; None where nothing is known of an argument."""
    call = call_signature(args, kwargs)
    autocast = tuple((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda"))
    return None if call is None else (call.key, call.strides, autocast, torch.is_inference_mode_enabled())
