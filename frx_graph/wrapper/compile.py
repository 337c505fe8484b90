"""Implement `frx_graph.compile`: the backend, plus the options that act before a graph is traced."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from frx_graph.compiler.rewrite_log import LOG
from frx_graph.errors import OptionError
from frx_graph.options import BackendOptions, check_together, parse_backend_options
from frx_graph.support.user_warning import WarnOnce
from frx_graph.trials.policy import TrialPolicy
from frx_graph.wrapper.frozen_model import FrozenModel
from frx_graph.wrapper.pin_input_strides import PinnedStrides

_OURS = frozenset({"freeze", "pin_strides"})
"""Options that the backend does not get: they act before a graph is traced."""


def compile(
    model: nn.Module | Callable[..., Any],
    *,
    policy: TrialPolicy | Mapping[str, Any] | str | Path | None = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    **how: Any,
) -> Any:
    """Return `torch.compile(model, backend="frx", options=options, **how)`, with options that act before tracing.

    A `policy`, as keys, the path of a YAML file, or a `TrialPolicy`, means the autopilot (option `mode`) with that
    policy. With the option `freeze`, calls without gradients of a model in `eval()` mode run with weights packed as
    constants, if Dynamo captures them in one graph. Inductor packs them, or frx with inner eager and a plan. They are
    packed again the first two times that weights change. From the third change on they are not, which a warning says;
    see `WeightGuard` for what is noticed. With the option `pin_strides`, tensor arguments are copied to the strides of
    the first call, and the program sees those strides; see `PinnedStrides`. Weights stay as they are; see
    `frx_graph.prepare`. Raises `OptionError` for options that the backend, or Inductor, does not know.
    """
    checked = _check_options(model, policy, mode, options)
    given = {name: getattr(checked, name) for name in checked.model_fields_set - _OURS} or None
    compiled: Any = torch.compile(model, backend="frx", options=given, **how)
    if compiled is model or not (checked.freeze or checked.pin_strides):
        # Torch returns the model itself if compiling is switched off.
        return compiled
    program: Callable[..., Any] = compiled.forward if isinstance(model, nn.Module) else compiled
    if checked.freeze:
        program = _freeze_inference(program, model, checked, how)
    if checked.pin_strides:
        seen = model.forward if isinstance(model, nn.Module) else model
        program = PinnedStrides(seen, checked.pin_strides, LOG.add_outcome).wrap(program)
    if not isinstance(model, nn.Module):
        return program
    compiled.forward = program
    return compiled


def _check_options(
    model: object, policy: object, mode: str | None, options: Mapping[str, Any] | None
) -> BackendOptions:
    checked = parse_backend_options(options, mode)
    if policy is not None:
        if options and options.get("policy") is not None:
            raise OptionError("a policy is given twice", "leave it out of the options")
        checked = parse_backend_options({"mode": "autopilot", **(options or {}), "policy": policy}, mode)
    check_together(checked)
    if checked.freeze and checked.inner != "inductor" and (checked.inner != "eager" or checked.plan is None):
        raise OptionError(
            f"inner backend {checked.inner!r} cannot freeze weights", "freeze takes inductor, or eager with a plan"
        )
    if checked.freeze and not isinstance(model, nn.Module):
        raise OptionError("a function has no weights to freeze", "give the module itself")
    return checked


def _freeze_inference(
    program: Callable[..., Any], model: Any, options: BackendOptions, how: Mapping[str, Any]
) -> Callable[..., Any]:
    """Return `program`, which runs with frozen weights while the model is in `eval()` mode and gradients are off."""
    frozen = FrozenModel(model, options, how)
    warnings = WarnOnce()

    @functools.wraps(program)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not (model.training or torch.is_grad_enabled()):
            return frozen.run(program, args, kwargs)
        # A program that is compiled around this one cannot warn.
        if model.training != torch.is_grad_enabled() and not torch.compiler.is_compiling():
            warnings.warn("unfrozen", f"frx: the weights are not frozen in this call: {_explain_unfrozen(model)}")
        return program(*args, **kwargs)

    return run


def _explain_unfrozen(model: nn.Module) -> str:
    """Return why a call that does not train runs without frozen weights."""
    if model.training:
        return "the model is in train() mode; call eval() on the module that you compile"
    return "gradients are enabled; call it under torch.no_grad()"
