"""`frx_graph.compile`: the backend, plus what has to happen before a graph is traced."""

from __future__ import annotations

import copy
import functools
import itertools
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch._dynamo.exc import BackendCompilerFailed, FailOnRecompileLimitHit, TorchDynamoException
from torch._inductor import config as inductor_config
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from frx_graph.aot_context import graph_id
from frx_graph.backend import frozen_backend
from frx_graph.call_signature import call_signature
from frx_graph.capture.captured_graph import Phase
from frx_graph.capture.graph_outcome import graph_inputs, graph_outcome
from frx_graph.capture.saved_tensor_hooks import unseen_by_saved_tensor_hooks
from frx_graph.errors import FrxError, OptionError, first_line
from frx_graph.input_pinning import PinnedInputs
from frx_graph.kept_output_strides import (
    StoredAnew,
    as_they_were,
    constants_as_they_were,
    keep_output_strides,
    keep_seen_strides,
)
from frx_graph.noted_graph import noted
from frx_graph.options import BackendOptions, backend_options, check_together
from frx_graph.passes.rewrites import preconvert_weights
from frx_graph.records import Candidate, Refusal
from frx_graph.rewrite_log import LOG
from frx_graph.rewriting import RewrittenGraph
from frx_graph.trials.policy import TrialPolicy
from frx_graph.user_warning import warn_and_go_on
from frx_graph.weight_preparation import prepare
from frx_graph.weight_watch import WeightWatch

_MOST_VERSIONS = 3
"""For how many versions of the weights a frozen program is compiled; at the next one they count as no constants."""
_MOST_KINDS = 256
"""Kinds of calls that are remembered; what is met after that costs some microseconds more a call."""


def compile(
    model: nn.Module | Callable[..., Any],
    *,
    policy: TrialPolicy | Mapping[str, Any] | str | Path | None = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    **how: Any,
) -> Any:
    """`torch.compile(model, backend="frx", options=options, **how)`, whose weights are prepared at the first call.

    A `policy`, as keys, the path of a YAML file, or a `TrialPolicy`, means the autopilot (option `mode`), by that. With
    a plan in `options` the first call stores the weights as its inputs and the use of the moment (training, or
    inference without gradients) make best, see `prepare`; what the compiled program returns keeps the strides that it
    had before, but not where Dynamo falls back to eager (past `recompile_limit`, under a stance of `force_eager`), and
    code that asks for strides is found in the first call only. Inputs whose strides change from call to call are
    brought to those that the program was compiled for instead of compiling it again, where that is safe, see
    `PinnedInputs`; looking at strides takes a few microseconds a call. With `freeze` calls without gradients, of a
    model in `eval()` mode, run with weights packed as constants, by Inductor, or by frx with inner eager and a plan:
    they are packed anew the first two times that weights change, and not any more from the third on, which a warning
    says; see `WeightWatch` for what is noticed. What is returned is what `torch.compile` returns. Raises `OptionError`
    for options that the backend, or Inductor, does not know.
    """
    checked = backend_options(options, mode)
    if policy is not None:
        checked = backend_options(_by_policy(policy, options or {}), mode)
    check_together(checked)
    if checked.freeze and checked.inner != "inductor" and (checked.inner != "eager" or checked.plan is None):
        raise OptionError(
            f"inner backend {checked.inner!r} freezes nothing", "freeze takes inductor, or eager with a plan"
        )
    if checked.freeze and not isinstance(model, nn.Module):
        raise OptionError("a function has no weights to freeze", "give the module itself")
    given = {name: getattr(checked, name) for name in checked.model_fields_set - {"freeze"}} or None
    if not isinstance(model, nn.Module):
        return torch.compile(model, backend="frx", options=given, **how)
    backend = None if checked.plan is None else _PlannedBackend(model)
    compiled: Any = torch.compile(model, backend="frx" if backend is None else backend, options=given, **how)
    if (backend is None and not checked.freeze) or compiled is model:
        # Where compiling is switched off, torch returns the model itself.
        return compiled
    forward: Callable[..., Any] = compiled.forward
    frozen = _Frozen(model, checked, how, backend) if checked.freeze else None
    preparation = None if backend is None else _Preparation(model, checked.inner, backend, frozen)

    def as_inputs(*args: Any, **kwargs: Any) -> Any:
        if backend is None or preparation is None:
            return forward(*args, **kwargs)
        preparation.once(args, kwargs)
        return backend.pins.run(forward, args, kwargs)

    @functools.wraps(forward)
    def prepared_forward(*args: Any, **kwargs: Any) -> Any:
        if frozen is None or model.training or torch.is_grad_enabled():
            return as_inputs(*args, **kwargs)
        return frozen.run(as_inputs, args, kwargs)

    compiled.forward = prepared_forward
    return compiled


def _by_policy(policy: object, options: Mapping[str, Any]) -> Mapping[str, Any]:
    if options.get("policy") is not None:
        raise OptionError("a policy is given twice", "leave it out of the options")
    return {"mode": "autopilot", **options, "policy": policy}


class _PlannedBackend:
    """The backend, which looks at each of a model's graphs before it compiles it. `stored` are the weights that were
    stored anew."""

    def __init__(self, model: nn.Module) -> None:
        self.stored: tuple[StoredAnew, ...] = ()
        self.pins = PinnedInputs(model, _told)
        self._compile = torch._dynamo.lookup_backend("frx")

    def __deepcopy__(self, _memo: object) -> _PlannedBackend:
        # Lightning puts a `torch.compile` in torch's place that keeps a deep copy of what it is given: this one's would
        # take the memory of the model once more, and has what cannot be copied where the model has.
        return self

    def __call__(self, dynamo: fx.GraphModule, example_inputs: list[Any], **how: Any) -> Any:
        self.pins.before_compiling()
        try:
            inputs = graph_inputs(example_inputs)
            before = as_they_were(inputs, self.stored)
            outcome = graph_outcome(dynamo, before)
            graph = noted(graph_id(), dynamo, before, outcome)
            if before != inputs:
                for refusal in keep_seen_strides(dynamo, inputs, before):
                    _told(refusal)
                for refusal in keep_output_strides(dynamo, inputs, before, outcome):
                    _told(refusal)
        except Exception as error:  # noqa: BLE001 - any failure of ours leaves the program as it was
            self.pins.note(None)
            _told(Refusal("frx_graph.compile", f"a graph could not be looked at: {first_line(error)}"))
        else:
            self.pins.note(graph)
        return self._compile(dynamo, example_inputs, **how)


class _Preparation:
    """Prepares a model's weights before the first call; calls of other threads wait for it."""

    def __init__(self, model: nn.Module, inner: str, backend: _PlannedBackend, frozen: _Frozen | None) -> None:
        self._model = model
        self._inner = inner
        self._backend = backend
        self._frozen = frozen
        # A model may call its own compiled program.
        self._lock = threading.RLock()
        self._begun = self._done = False

    def once(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Does nothing from the second call on."""
        if self._done:
            return
        with self._lock:
            if not self._begun:
                self._begun = True
                if self._frozen is not None:
                    self._frozen.let_go()
                self._backend.stored = _prepare(self._model, args, kwargs, self._inner)
                self._done = True


class _Frozen:
    """A model compiled with its weights as constants, for as long as they are."""

    def __init__(
        self, model: nn.Module, options: BackendOptions, how: Mapping[str, Any], planned: _PlannedBackend | None
    ) -> None:
        self._model = model
        self._planned = planned
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
        except _NotCompiledError:
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
            if self._planned is not None and self._planned.stored:
                _keep_strides(args[0], args[1], self._planned.stored)
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
            compiled = torch.compile(_whole(self._model), backend=backend, **{**self._how, "fullgraph": True})
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


class _NotCompiledError(Exception):
    """Dynamo does not compile a call, as under a stance of `force_eager`, or where something watches operators."""


def _called(model: nn.Module) -> tuple[object, ...]:
    """What is called with the model, hooks by their numbers: Dynamo does not guard on that where it has captured it."""
    hooks = (model._forward_pre_hooks, model._forward_hooks, _global_forward_pre_hooks, _global_forward_hooks)
    return (type(model).forward, *itertools.chain.from_iterable(hooks))


def _whole(model: nn.Module) -> Callable[..., Any]:
    """The model with its hooks as one function, which raises `_NotCompiledError` where it is not compiled."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            raise _NotCompiledError
        return model(*args, **kwargs)

    # With code of its own: Dynamo counts by code how often it compiles.
    call.__code__ = call.__code__.replace(co_name=f"frozen_{type(model).__name__}")
    return call


def _keep_strides(dynamo: fx.GraphModule, example_inputs: list[Any], stored: tuple[StoredAnew, ...]) -> None:
    """Let a graph, which may hold its weights itself, return what it would have before they were stored anew."""
    try:
        inputs = graph_inputs(example_inputs)
        before = as_they_were(inputs, stored)
        with constants_as_they_were(dynamo, stored) as any_held:
            wanted = graph_outcome(dynamo, before)
        if any_held or before != inputs:
            for refusal in keep_seen_strides(dynamo, inputs, before, stored):
                _told(refusal)
            for refusal in keep_output_strides(dynamo, inputs, before, wanted, stored):
                _told(refusal)
    except Exception as error:  # noqa: BLE001 - any failure of ours leaves the program as it was
        _told(Refusal("frx_graph.compile", f"a graph could not be looked at: {first_line(error)}"))


def _told(outcome: Candidate | Refusal) -> None:
    applied, refused = ((outcome,), ()) if isinstance(outcome, Candidate) else ((), (outcome,))
    LOG.add(RewrittenGraph(outcome.graph_id if isinstance(outcome, Candidate) else "", Phase.FORWARD, applied, refused))


def _kind_of_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Equal for calls that run what is compiled already; None where nothing is known of an argument."""
    call = call_signature(args, kwargs)
    autocast = tuple((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda"))
    return None if call is None else (call.key, call.strides, autocast, torch.is_inference_mode_enabled())


def _own(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, with copies in the place of tensors that could not be put back after the program has written into
    them: those made in inference mode cannot be written outside of it, and views not be taken out of autograd's graph
    again."""
    copies: dict[int, torch.Tensor] = {}

    def own(value: torch.Tensor) -> torch.Tensor:
        if type(value) is not torch.Tensor or value.layout is not torch.strided:
            return value
        if not (value.is_inference() or value._is_view()) or 0 in value.stride():
            return value
        if id(value) not in copies:
            copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
            copies[id(value)] = copy.copy_(value.detach()).requires_grad_(value.requires_grad)
        return copies[id(value)]

    owned: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map_only(torch.Tensor, own, (args, dict(kwargs)))
    return owned


def _prepare(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], inner: str) -> tuple[StoredAnew, ...]:
    """The weights that were stored anew. Never raises: the program goes on with its weights as they are."""
    before = [(parameter, parameter.stride()) for parameter in model.parameters() if not is_lazy(parameter)]
    gradients = torch.is_grad_enabled()
    try:
        # Leaving inference mode switches gradients on.
        with torch.inference_mode(mode=False), torch.set_grad_enabled(gradients), unseen_by_saved_tensor_hooks():
            own_args, own_kwargs = _own(args, kwargs)
            train = model.training and gradients
            refused = prepare(model, own_args, own_kwargs, train=train, inner=inner).refused
        for refusal in refused:
            if refusal.subject == preconvert_weights.NAME:
                _told(refusal)
    except FrxError as error:
        warn_and_go_on(f"frx: the weights could not be prepared ({error}): the model is compiled with them as they are")
    except Exception as error:  # noqa: BLE001 - any failure of ours leaves the program as it was
        warn_and_go_on(
            f"frx: the weights could not be prepared ({first_line(error)}): the model is compiled with them as they are"
        )
    stored = (StoredAnew(parameter, strides, parameter.stride()) for parameter, strides in before)
    return tuple(weight for weight in stored if weight.before != weight.after)
