"""`frx_graph.compile`: the backend, plus what has to happen before a graph is traced."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy

from frx_graph.capture.isolated_recompiles import ISOLATED
from frx_graph.compiler.aot_context import graph_id
from frx_graph.compiler.rewrite_log import LOG
from frx_graph.errors import FrxError, OptionError, first_line
from frx_graph.options import backend_options, check_together
from frx_graph.passes.rewrites import preconvert_weights
from frx_graph.prepack.original_graph import graph_before
from frx_graph.prepack.prepare import prepare
from frx_graph.prepack.preserve import keep_as_before, not_looked_at
from frx_graph.prepack.registry import note_stored, stored_anew, strides_before
from frx_graph.support.user_warning import warn_and_go_on
from frx_graph.trials.policy import TrialPolicy
from frx_graph.wrapper.frozen_model import FrozenModel
from frx_graph.wrapper.graph_snapshot import noted
from frx_graph.wrapper.stride_pinning import PinnedInputs


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
    model in `eval()` mode, that are captured in one graph run with weights packed as constants, by Inductor, or by frx
    with inner eager and a plan: they are packed anew the first two times that weights change, and not any more from the
    third on, which a warning says; see `WeightWatch` for what is noticed. What is returned is what `torch.compile`
    returns. Raises `OptionError` for options that the backend, or Inductor, does not know.
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
    # Each model has a backend of its own; of more than a few of one class the last would run in eager.
    region = {} if backend is None else ISOLATED
    compiled: Any = torch.compile(
        model, backend="frx" if backend is None else backend, options=given, **{**region, **how}
    )
    if (backend is None and not checked.freeze) or compiled is model:
        # Where compiling is switched off, torch returns the model itself.
        return compiled
    forward: Callable[..., Any] = compiled.forward
    frozen = FrozenModel(model, checked, how) if checked.freeze else None
    preparation = None if backend is None else _Preparation(model, checked.inner, frozen)

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
    """The backend, which looks at each of a model's graphs before it compiles it. Dynamo's caches keep backends for as
    long as the model's code is there: the model is not kept alive by that."""

    def __init__(self, model: nn.Module, stored: Sequence[tuple[Tensor, tuple[int, ...]]] = ()) -> None:
        note_stored(stored)
        self.pins = PinnedInputs(model, LOG.note)
        self._model = weakref.ref(model)
        self._compile = torch._dynamo.lookup_backend("frx")

    def __reduce__(self) -> tuple[type[_PlannedBackend], tuple[object, ...]]:
        model = self._model()
        assert model is not None, "it is saved with its model"
        return _PlannedBackend, (model, [(weight, strides_before(weight)) for weight in _stored_of(model)])

    def __deepcopy__(self, memo: dict[int, Any]) -> _PlannedBackend:
        # A copy of a compiled model has copies of its weights. Without one nothing is copied: Lightning puts a
        # `torch.compile` in torch's place that keeps a deep copy of what it is given, which would take the memory of
        # the model once more.
        own = self._model()
        model = memo.get(id(own))
        if own is None or model is None:
            return self
        copies = ((memo.get(id(weight)), strides_before(weight)) for weight in _stored_of(own))
        return _PlannedBackend(model, [(copy, before) for copy, before in copies if copy is not None])

    def __call__(self, dynamo: fx.GraphModule, example_inputs: list[Any], **how: Any) -> Any:
        self.pins.before_compiling()
        try:
            before = graph_before(dynamo, example_inputs, stored_anew())
            graph = noted(graph_id(), dynamo, before.inputs, before.outcome) if before.outcome is not None else None
            refused = keep_as_before(dynamo, before)
        except Exception as error:  # noqa: BLE001 - any failure of ours leaves the program as it was
            graph, refused = None, (not_looked_at(first_line(error)),)
        self.pins.note(graph)
        for refusal in refused:
            LOG.note(refusal)
        return self._compile(dynamo, example_inputs, **how)


class _Preparation:
    """Prepares a model's weights before the first call; calls of other threads wait for it. Not later: what was
    compiled for the weights as they lay would have to be compiled again."""

    def __init__(self, model: nn.Module, inner: str, frozen: FrozenModel | None) -> None:
        self._model = model
        self._inner = inner
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
                _prepare(self._model, args, kwargs, self._inner)
                self._done = True


def _stored_of(model: nn.Module) -> list[nn.Parameter]:
    stored = stored_anew()
    return [parameter for parameter in model.parameters() if id(parameter) in stored]


def _prepare(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], inner: str) -> None:
    """Never raises: the program goes on with its weights as they are."""
    before = [(parameter, strides_before(parameter)) for parameter in model.parameters() if not is_lazy(parameter)]
    gradients = torch.is_grad_enabled()
    try:
        # Leaving inference mode switches gradients on.
        with torch.inference_mode(mode=False), torch.set_grad_enabled(gradients):
            refused = prepare(model, args, kwargs, train=model.training and gradients, inner=inner).refused
        for refusal in refused:
            if refusal.subject == preconvert_weights.NAME:
                LOG.note(refusal)
    except FrxError as error:
        warn_and_go_on(f"frx: the weights could not be prepared ({error}): the model is compiled with them as they are")
    except Exception as error:  # noqa: BLE001 - any failure of ours leaves the program as it was
        warn_and_go_on(
            f"frx: the weights could not be prepared ({first_line(error)}): the model is compiled with them as they are"
        )
    finally:
        # Whoever interrupts the call, or makes errors of warnings: what lies otherwise is known to.
        note_stored(before)
