"""Compile a model with its weights as constants, and again when they have changed."""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from frx_graph.backend import make_frozen_backend
from frx_graph.capture.dynamo_events import shorten_reason
from frx_graph.capture.model_call import NotCompiledError, is_recompile_forbidden, wrap_whole_call
from frx_graph.errors import summarize_error
from frx_graph.freezing.weight_guard import WeightGuard
from frx_graph.ops.onednn_region import forget_programs
from frx_graph.options import BackendOptions
from frx_graph.support.torch_internals import (
    BackendCompilerFailed,
    FailOnRecompileLimitHit,
    TorchDynamoException,
    get_forward_hooks,
    inductor_config,
    remove_from_cache,
)
from frx_graph.support.user_warning import warn_user

_CONSTANTS = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.Size)
_TENSORS = (Tensor, nn.Parameter, nn.Buffer)
_MOST_VERSIONS = 3
"""Versions of the weights that a frozen program is compiled for. At the next one they are no longer frozen."""
_MOST_KINDS = 256
"""Kinds of calls that are remembered. Each call of another kind takes some microseconds more."""


class FrozenModel:
    """Run a model with its weights as constants while they do not change."""

    def __init__(self, model: nn.Module, options: BackendOptions, how: Mapping[str, Any]) -> None:
        self._model = model
        self._options = options
        self._how = how
        self._lock = threading.RLock()
        self._version: _FrozenVersion | None = None
        self._versions = 0
        self._given_up = False
        self._was_broken = False

    def run(self, otherwise: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return what the model returns, computed by `otherwise` if its weights are not frozen."""
        program = self._get_program()
        if program is None and self._version is not None and is_recompile_forbidden():
            # The stance forbids compiling. The weights are frozen again when it allows that.
            with torch.compiler.set_stance("eager_on_recompile"):
                return otherwise(*args, **kwargs)
        if program is None:
            return otherwise(*args, **kwargs)
        # If one of these is raised, nothing of the call has run: it is captured in one graph, or not at all.
        try:
            return program(*args, **kwargs)
        except NotCompiledError:
            return otherwise(*args, **kwargs)
        except BackendCompilerFailed as error:
            reason, whole = summarize_error(error), True
        except (TorchDynamoException, FailOnRecompileLimitHit) as error:
            reason, whole = f"the program is not captured in one graph: {shorten_reason(str(error))}", False
        result = otherwise(*args, **kwargs)
        # An error of the program, or a single failed capture, does not predict other calls.
        if whole or self._was_broken:
            self._give_up(reason)
        self._was_broken = not whole
        return result

    def release(self) -> None:
        """Release the weights' memory; the next call freezes them again."""
        with self._lock:
            self._version = None
            forget_programs()

    def _get_program(self) -> Callable[..., Any] | None:
        """Return the program for the current weights; None if they cannot be frozen."""
        if self._given_up:
            return None
        with self._lock:
            try:
                if self._version is None or not self._version.is_unchanged(self._model):
                    if is_recompile_forbidden():
                        return None
                    self._versions += 1
                    if self._versions > _MOST_VERSIONS:
                        raise ValueError("they change from call to call")
                    if self._version is not None:
                        forget_programs()
                    self._version = _FrozenVersion([WeightGuard(self._model)], _list_called(self._model))
                    self._version.program = self._compile(self._version)
            except Exception as error:  # noqa: BLE001 - tensor subclasses may raise anything
                self._give_up(str(error) if isinstance(error, ValueError) else summarize_error(error))
            return None if self._version is None else self._version.program

    def _give_up(self, reason: str) -> None:
        with self._lock:
            self._given_up = True
            self.release()
        warn_user(f"frx: the weights are not frozen: {reason}")

    def _compile(self, version: _FrozenVersion) -> Callable[..., Any]:
        # Dynamo's caches keep the backend, and no garbage collector frees it, so it must not keep this object alive.
        own, current = weakref.ref(self), weakref.ref(version)
        options = self._options

        def is_watched(tensor: torch.Tensor) -> bool:
            version = current()
            return version is not None and version.is_watched(tensor)

        inner = make_frozen_backend(options, is_watched)

        def backend(dynamo: fx.GraphModule, example_inputs: list[Any], **how: Any) -> Any:
            model, version = own(), current()
            assert model is not None and version is not None, "they are running"
            if not inductor_config.freezing and version.watches[0].has_replaced():
                # Dynamo has noticed it. This program takes the new tensor as an input; the next one is frozen again.
                model.release()
            model._watch_attributes(version, dynamo)
            return _run_unfrozen(inner(dynamo, example_inputs, **how))

        # Each version has its own function, so that Dynamo compiles it again. Only a call that is captured whole is
        # frozen: between two graphs, or in a hook that Dynamo leaves to Python, weights may change.
        whole = wrap_whole_call(self._model, "frozen")
        compiled: Any = torch.compile(whole, backend=backend, **{**self._how, "fullgraph": True})
        # Dynamo would keep the compiled code, and with it the weights, for as long as the process lives.
        weakref.finalize(version, remove_from_cache, whole.__code__).atexit = False
        weakref.finalize(version, forget_programs).atexit = False

        def run(*args: Any, **kwargs: Any) -> Any:
            known = _describe_call(args, kwargs)
            if known in version.met:
                return compiled(*args, **kwargs)
            # A new kind of call may compile, and Dynamo and Inductor read the setting then.
            with inductor_config.patch(freezing=True):
                result = compiled(*args, **kwargs)
            if known is not None and len(version.met) < _MOST_KINDS:
                version.met.add(known)
            return result

        return run

    def _watch_attributes(self, version: _FrozenVersion, dynamo: fx.GraphModule) -> None:
        """Watch the other tensors of a graph, too: Inductor freezes more than the model's parameters and buffers."""
        others = nn.Module()
        for name, tensor in enumerate((*dynamo.parameters(), *dynamo.buffers())):
            if not version.is_watched(tensor):
                others.register_buffer(str(name), tensor)
        try:
            if next(others.buffers(), None) is not None:
                version.watches.append(WeightGuard(others))
        except ValueError as error:
            # The program is right for this call only.
            self._given_up = True
            warn_user(f"frx: the weights are frozen for one call only: {error}")


@dataclass
class _FrozenVersion:
    """A program, and what it was compiled for: weights, functions called with the model, and kinds of calls (`met`)."""

    watches: list[WeightGuard]
    called: tuple[object, ...]
    program: Callable[..., Any] | None = None
    met: set[tuple[Any, ...]] = field(default_factory=set)

    def is_unchanged(self, model: nn.Module) -> bool:
        """Return True if the program is still right for `model`."""
        return self.called == _list_called(model) and all(watch.is_unchanged() for watch in self.watches)

    def is_watched(self, tensor: torch.Tensor) -> bool:
        """Return True if a change of `tensor` would be noticed."""
        return any(watch.is_watched(tensor) for watch in self.watches)


def _run_unfrozen(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Run the graph without freezing: operators written in Python may compile other programs."""

    @functools.wraps(compiled)
    def run(*args: Any) -> Any:
        if not inductor_config.freezing:
            return compiled(*args)
        with inductor_config.patch(freezing=False):
            return compiled(*args)

    return run


def _list_called(model: nn.Module) -> tuple[object, ...]:
    """Return the forward and the numbers of the hooks: Dynamo does not guard on those that it has captured."""
    return (type(model).forward, *itertools.chain.from_iterable(get_forward_hooks(model)))


def _describe_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Return a key that is equal for calls of one compiled graph; None for arguments that have no such key."""
    key: list[Any] = [torch.is_grad_enabled(), torch.is_inference_mode_enabled()]
    key += [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
    return tuple(key) if _add_to_key(args, key) and _add_to_key(kwargs, key) else None


def _add_to_key(value: Any, key: list[Any]) -> bool:
    kind = type(value)
    if kind in _TENSORS:
        if value.layout is not torch.strided:
            return False
        key.append((kind, value.shape, value.stride(), value.dtype, value.device, value.requires_grad))
        return True
    if kind in _CONSTANTS:
        key.append((kind, value))
        return True
    if kind is tuple or kind is list:
        key.append((kind, len(value)))
        return all(_add_to_key(part, key) for part in value)
    if kind is dict:
        key.append((kind, tuple(value)))
        return all(_add_to_key(part, key) for part in value.values())
    return False
