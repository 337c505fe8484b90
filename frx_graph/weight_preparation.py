"""Stores a model's weights as its convolutions want them, once, before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from frx_graph.anchor_times import with_measured_times
from frx_graph.capture.captured_graph import CapturedGraph, Phase
from frx_graph.capture.model import capture_model
from frx_graph.capture.model_state import preserved_state
from frx_graph.errors import first_line
from frx_graph.facts.build import build_graph_facts
from frx_graph.options import check_inner
from frx_graph.passes.rewrites import preconvert_weights
from frx_graph.passes.rewrites.rewrite import RewriteSubject
from frx_graph.records import Refusal
from frx_graph.rules.dimension_map import Order

_ROOT = "model."


@dataclass(frozen=True, slots=True)
class Prepared:
    """The parameters that were stored anew, by name, each with its dimensions from the outermost to the innermost in
    memory, and what was left as it was, with the reason."""

    converted: Mapping[str, Order]
    refused: tuple[Refusal, ...]


def prepare(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    train: bool = False,
    inner: str = "inductor",
) -> Prepared:
    """Store the weights of `model` in the order in which measured times say its convolutions are fastest.

    Parameters stay the same objects with the same values: optimizers, tied weights and `load_state_dict` work as
    before. The model is run once, eagerly, on `args`, and once more where weights were stored anew: one that fails with
    them, since it calls `view` on what a convolution returns, gets them back as they were. `train` and `inner` say what
    it will be used for. What the model returns may lie in channels-last from now on, as after
    `model.to(memory_format=...)`; see `frx_graph.compile` for a program that returns the strides from before. Raises
    what `capture_model` raises, and `OptionError` for an unknown `inner`.
    """
    check_inner(inner)
    if not isinstance(model, nn.Module):
        return Prepared({}, ())
    wanted: dict[str, Order] = {}
    refused: list[Refusal] = []
    for graph in capture_model(model, args, kwargs, train=train, as_eager=inner == "eager").graphs:
        for outcome in preconvert_weights.propose(_subject(graph, inner)):
            if isinstance(outcome, Refusal):
                refused.append(outcome)
            elif wanted.setdefault(outcome.path, outcome.order) != outcome.order:
                refused.append(Refusal(outcome.path, "graphs of the program want it in different orders"))
                del wanted[outcome.path]
    parameters = dict(model.named_parameters())
    orders = {path.removeprefix(_ROOT): order for path, order in wanted.items() if path.startswith(_ROOT)}
    converted = {name: order for name, order in orders.items() if name in parameters}
    before = {name: (parameters[name].data, parameters[name].grad) for name in converted}
    for name, order in converted.items():
        store(parameters[name], order)
    failure = _failure(model, args, kwargs) if converted else None
    if failure is not None:
        for name, (data, gradient) in before.items():
            parameters[name].data, parameters[name].grad = data, gradient
        refused.extend(Refusal(name, f"the model fails with it stored so: {failure}") for name in converted)
        converted = {}
    return Prepared(converted, tuple(refused))


def _failure(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> str | None:
    """Why a run of the model fails; None where it does not."""
    kwargs = dict(kwargs or {})
    with preserved_state(model, args, kwargs):
        try:
            model(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the model's own code
            return first_line(error)
    return None


def store(parameter: nn.Parameter, order: Order) -> None:
    """Give the parameter's values other strides, in place; its gradient, if it has one, gets the same."""
    with torch.no_grad():
        parameter.data = _in_order(parameter.data, order)
        if parameter.grad is not None:
            parameter.grad = _in_order(parameter.grad, order)


def _in_order(tensor: torch.Tensor, order: Order) -> torch.Tensor:
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(inverse)


def _subject(graph: CapturedGraph, inner: str) -> RewriteSubject:
    subject = RewriteSubject(
        facts=build_graph_facts(graph),
        # Forward and backward are in one graph here, each convolution with its own times.
        phase=Phase.BACKWARD if graph.train else Phase.FORWARD,
        inner="inductor" if inner == "inductor" else "eager",
        visible=frozenset(graph.outputs_visible),
    )
    return with_measured_times(subject, prepared=True)
