"""`frx_graph.compile`: the backend, plus what has to happen before a graph is traced."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._inductor import config as inductor_config
from torch.utils import _pytree as pytree

from frx_graph.backend import frozen_backend
from frx_graph.errors import FrxError, OptionError, first_line
from frx_graph.options import BackendOptions, backend_options
from frx_graph.weight_preparation import prepare
from frx_graph.weight_watch import WeightWatch

_MOST_VERSIONS = 3
"""How often frozen weights are compiled anew before they count as no constants."""


def compile(
    model: nn.Module,
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    **how: Any,
) -> Any:
    """`torch.compile(model, backend="frx", options=options, **how)`, whose weights are prepared at the first call.

    With a plan in `options` the first call stores the weights as its inputs and the use of the moment (training, or
    inference without gradients) make best, see `prepare`; later calls cost nothing more. With `freeze` calls without
    gradients run with weights that Inductor has packed as constants: they are packed anew when weights change, and not
    packed any more when they change again and again; see `WeightWatch` for what is noticed. What is returned is what
    `torch.compile` returns. Raises `OptionError` for options that the backend does not know.
    """
    checked = backend_options(options, mode)
    if checked.freeze and checked.inner != "inductor":
        raise OptionError(f"inner backend {checked.inner!r} freezes nothing", "freeze is Inductor's")
    given = checked.model_dump(exclude_defaults=True, exclude={"freeze"})
    compiled: Any = torch.compile(model, backend="frx", options=given or None, **how)
    if checked.plan is None and not checked.freeze:
        return compiled
    forward: Callable[..., Any] = compiled.forward
    frozen = _Frozen(model, checked, how) if checked.freeze else None
    prepared = checked.plan is None

    @functools.wraps(forward)
    def prepared_forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal prepared
        if frozen is not None and not model.training and not torch.is_grad_enabled():
            program = frozen.program()
            if program is not None:
                return program(*args, **kwargs)
        if not prepared:
            prepared = True
            _prepare(model, args, kwargs, checked.inner)
        return forward(*args, **kwargs)

    compiled.forward = prepared_forward
    return compiled


class _Frozen:
    """A model compiled with its weights as constants, for as long as they are."""

    def __init__(self, model: nn.Module, options: BackendOptions, how: Mapping[str, Any]) -> None:
        self._model = model
        self._options = options
        self._how = how
        self._watch: WeightWatch | None = None
        self._program: Callable[..., Any] | None = None
        self._versions = 0

    def program(self) -> Callable[..., Any] | None:
        """The program for the weights as they are; None where they are no constants."""
        if self._versions > _MOST_VERSIONS:
            return None
        if self._watch is None or not self._watch.unchanged():
            self._versions += 1
            try:
                if self._versions > _MOST_VERSIONS:
                    raise ValueError("they change from call to call")
                self._watch, self._program = WeightWatch(self._model), self._compiled()
            except ValueError as error:
                self._versions = _MOST_VERSIONS + 1
                self._watch = self._program = None
                _warn(f"the weights are not frozen: {error}")
        return self._program

    def _compiled(self) -> Callable[..., Any]:
        # A function of its own for each version: Dynamo tells by it that what it has compiled is for other weights.
        inner = frozen_backend(self._options)

        def backend(*args: Any, **kwargs: Any) -> Any:
            return inner(*args, **kwargs)

        compiled = torch.compile(self._model, backend=backend, **self._how)
        met: set[tuple[Any, ...]] = set()

        def run(*args: Any, **kwargs: Any) -> Any:
            known = _signature(args, kwargs)
            if known in met:
                return compiled(*args, **kwargs)
            # Dynamo and Inductor read the setting while they compile, which new sizes and strides make them do.
            with inductor_config.patch(freezing=True):
                result = compiled(*args, **kwargs)
            met.add(known)
            return result

        return run


def _signature(args: Any, kwargs: Any) -> tuple[Any, ...]:
    leaves = pytree.tree_leaves((args, kwargs))
    return tuple((leaf.shape, leaf.stride(), leaf.dtype) if isinstance(leaf, Tensor) else type(leaf) for leaf in leaves)


def _prepare(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], inner: str) -> None:
    """Never raises: the program goes on with its weights as they are."""
    try:
        with torch.inference_mode(mode=False):
            prepare(model, args, kwargs, train=model.training and torch.is_grad_enabled(), inner=inner)
    except FrxError as error:
        _warn(f"the weights could not be prepared ({error}): the model is compiled with them as they are")
    except Exception as error:  # noqa: BLE001 - any failure of ours leaves the program as it was
        _warn(f"the weights could not be prepared ({first_line(error)}): the model is compiled with them as they are")


def _warn(message: str) -> None:
    warnings.warn(f"frx: {message}", RuntimeWarning, stacklevel=4)
