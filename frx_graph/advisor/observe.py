"""Run one real step and record the copies that it makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from frx_graph.capture.aten_trace import run_step
from frx_graph.errors import OptionError
from frx_graph.measure.inductor.inductor_observer import observe_inductor
from frx_graph.measure.operators.eager_observer import observe_eager
from frx_graph.records import Basis, Copy, CopyKind, OperandRole
from frx_graph.support.torch_internals import pytree

OBSERVABLE = ("eager", "inductor")


def check_observable(inner: str) -> None:
    """Raise `OptionError` for an inner compiler whose copies cannot be observed."""
    if inner not in OBSERVABLE:
        raise OptionError(f"the copies of inner {inner!r} cannot be observed", f"use {' or '.join(OBSERVABLE)}")


def observe_step(
    model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, train: bool, inner: str
) -> tuple[Copy, ...]:
    """Return the layout copies of one real step of `model` under `inner`. Raises `OptionError` for an inner compiler
    whose copies cannot be observed, and any error of the model."""
    check_observable(inner)
    # Detached from the caller's graph, so that the backward of the step ends where the step began.
    args, kwargs = pytree.tree_map_only(
        Tensor,
        lambda tensor: tensor if tensor.is_leaf else tensor.detach().requires_grad_(),
        (tuple(args), dict(kwargs)),
    )
    if inner == "eager":
        module = model if isinstance(model, nn.Module) else None
        seen = observe_eager(lambda: run_step(model, args, kwargs, train=train), module)
    else:
        seen = observe_inductor(model, lambda program: run_step(program, args, kwargs, train=train))
    return tuple(
        Copy(
            node="",  # No graph was captured.
            site=copy.site,
            operator=copy.operator,
            kind=CopyKind(copy.kind),
            role=OperandRole(copy.role),
            value="x".join(map(str, copy.shape)),
            bytes=copy.bytes,
            count=1,
            phase=copy.phase,
            basis=Basis.OBSERVED,
            cause=f"{copy.operator.removeprefix('aten.')} converts {copy.source} to {copy.target}",
        )
        for copy in seen
    )
