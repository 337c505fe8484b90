"""`frx_graph.compile`: the backend, plus what has to happen before a graph is traced."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from frx_graph.errors import FrxError, first_line
from frx_graph.options import backend_options
from frx_graph.weight_preparation import prepare


def compile(
    model: nn.Module,
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    **how: Any,
) -> Any:
    """`torch.compile(model, backend="frx", options=options, **how)`, whose weights are prepared at the first call.

    With a plan in `options` the first call stores the weights as its inputs and the use of the moment (training, or
    inference without gradients) make best, see `prepare`; later calls cost nothing more. What is returned is what
    `torch.compile` returns. Raises `OptionError` for options that the backend does not know.
    """
    checked = backend_options(options, mode)
    given = {"mode": mode} if options is None else {"options": {**options, **({"inner_mode": mode} if mode else {})}}
    compiled: Any = torch.compile(model, backend="frx", **given, **how)
    if checked.plan is None:
        return compiled
    forward: Callable[..., Any] = compiled.forward
    prepared = False

    @functools.wraps(forward)
    def prepared_forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal prepared
        if not prepared:
            prepared = True
            _prepare(model, args, kwargs, checked.inner)
        return forward(*args, **kwargs)

    compiled.forward = prepared_forward
    return compiled


def _prepare(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], inner: str) -> None:
    """Never raises: the program goes on with its weights as they are."""
    try:
        with torch.inference_mode(mode=False):
            prepare(model, args, kwargs, train=model.training and torch.is_grad_enabled(), inner=inner)
    except FrxError as error:
        _warn(str(error))
    except Exception as error:  # noqa: BLE001 - any failure of ours leaves the program as it was
        _warn(first_line(error))


def _warn(reason: str) -> None:
    warnings.warn(
        f"frx could not prepare the weights ({reason}); the model is compiled with them as they are",
        RuntimeWarning,
        stacklevel=3,
    )
