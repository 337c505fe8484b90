"""Stores a model's weights as its convolutions want them, once, before anything is compiled."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree as pytree

from frx_graph.anchor_times import with_measured_times
from frx_graph.capture.call_check import check_call
from frx_graph.capture.captured_graph import CapturedGraph, Phase
from frx_graph.capture.model import capture_model
from frx_graph.capture.model_state import not_put_back
from frx_graph.capture.observed_call import ObservedCall, observed_call
from frx_graph.errors import first_line
from frx_graph.facts.build import build_graph_facts
from frx_graph.facts.ordered_tensor import in_order
from frx_graph.fused_steps import keep_fused_steps_right
from frx_graph.observed_difference import computes_otherwise
from frx_graph.options import check_inner
from frx_graph.passes.rewrites import preconvert_weights
from frx_graph.passes.rewrites.rewrite import RewriteSubject
from frx_graph.records import Refusal
from frx_graph.rules.dimension_map import Order

_ROOT = "model."


@dataclass(frozen=True, slots=True)
class Prepared:
    """The parameters that were stored anew, by name, each with its dimensions from the outermost to the innermost in
    memory, and what was left as it was, with the reason; of a weight that lies best as it is nothing is said."""

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
    before. One that shares its memory with anything stays where it is, and so does one that an optimizer has updated
    already, and one whose images reach an operator that sees strides; with a process group of `torch.distributed`,
    where tensors of a subclass are given, and where what runs of the model change could not be put back, all do. The
    model is captured in one run on `args`, and run twice more, before and after weights were stored anew, with `train`
    backwards as well: one that fails with them, since it calls `view` on what a convolution returns, or computes
    something else, since it asks for strides, gets them back as they were. Code that this call does not reach is not
    asked. `train` and `inner` say what the model will be used for. What it returns may lie in channels-last from now
    on, as after `model.to(memory_format=...)`, and `view(-1)` of such a weight raises, also in
    `torch.nn.utils.parameters_to_vector`; see `frx_graph.compile` for a program that returns the strides from before.
    Raises what `capture_model` raises, `TargetError` also for what is no call, and `OptionError` for an unknown
    `inner`.
    """
    check_inner(inner)
    check_call(model, args, kwargs, "prepare")
    if not isinstance(model, nn.Module):
        return Prepared({}, (Refusal(preconvert_weights.NAME, "a function has no parameters: give the module itself"),))
    if dist.is_available() and dist.is_initialized():
        # `DistributedDataParallel` reduces gradients as their memory lay when it was built: the next step's were wrong,
        # and all of them where processes had stored weights differently (torch 2.15, gloo).
        return Prepared({}, (Refusal(preconvert_weights.NAME, "gradients may be reduced between processes"),))
    if any(map(_is_of_another_kind, pytree.tree_leaves((args, dict(kwargs or {}))))):
        return Prepared({}, (Refusal(preconvert_weights.NAME, _ANOTHER_KIND),))
    if (lost := not_put_back(model, args, kwargs)) is not None:
        return Prepared({}, (Refusal(preconvert_weights.NAME, lost),))
    wanted: dict[str, Order] = {}
    refused: list[Refusal] = []
    disputed: set[str] = set()
    for graph in capture_model(model, args, kwargs, train=train, as_eager=inner == "eager").graphs:
        for outcome in preconvert_weights.propose(_subject(graph, inner)):
            if isinstance(outcome, Refusal):
                refused.append(outcome)
            elif wanted.setdefault(outcome.path, outcome.order) != outcome.order and outcome.path not in disputed:
                refused.append(Refusal(outcome.path, "graphs of the program want it in different orders"))
                disputed.add(outcome.path)
    # A model may make them in its first call, which it has had now.
    if any(map(_is_of_another_kind, (*model.parameters(), *model.buffers()))):
        return Prepared({}, (*refused, Refusal(preconvert_weights.NAME, _ANOTHER_KIND)))
    parameters = dict(model.named_parameters())
    agreed = {path.removeprefix(_ROOT): order for path, order in wanted.items() if path not in disputed}
    orders = {name: order for name, order in agreed.items() if name in parameters and f"{_ROOT}{name}" in wanted}
    with_state = _with_optimizer_state([parameters[name] for name in orders])
    reasons = {name: _reason_to_leave(parameters[name], with_state) for name in orders}
    refused.extend(Refusal(name, reason) for name, reason in reasons.items() if reason is not None)
    converted = {name: order for name, order in orders.items() if reasons[name] is None}
    reason = _stored(model, converted, partial(observed_call, model, args, dict(kwargs or {}), train=train))
    if reason is not None:
        refused.extend(Refusal(name, reason) for name in converted)
        converted = {}
    return Prepared(converted, tuple(refused))


_ANOTHER_KIND = "the program is given tensors of another kind, whose strides cannot be followed through it"


def _is_of_another_kind(value: object) -> bool:
    """True for tensors of a subclass, which may be computed with in other ways, and of a layout without strides."""
    if not isinstance(value, torch.Tensor):
        return False
    return type(value) not in (torch.Tensor, nn.Parameter, nn.Buffer) or value.layout is not torch.strided


def _stored(model: nn.Module, orders: Mapping[str, Order], observe: Callable[..., ObservedCall]) -> str | None:
    """Store the parameters anew; where the model then fails, or computes something else, they are put back, and why is
    returned."""
    if not orders:
        return None
    try:
        before = observe()
    except Exception as error:  # noqa: BLE001 - the model's own code, in torch's modes
        return f"what the model computes cannot be observed: {first_line(error)}"
    parameters = {name: model.get_parameter(name) for name in orders}
    held = {name: (parameter.data, parameter.grad) for name, parameter in parameters.items()}
    for name, order in orders.items():
        store(parameters[name], order)
    anew = {name: (parameter.data, parameter.grad) for name, parameter in parameters.items()}

    def noisy(disturbance: AbstractContextManager[Any] | None) -> ObservedCall:
        _put(parameters, held)
        return observe(disturbance=disturbance)

    try:
        difference = computes_otherwise(before, observe(), noisy)
        reason = None if difference is None else f"the model computes something else with it stored so: {difference}"
    except Exception as error:  # noqa: BLE001 - the model's own code
        reason = f"the model fails with it stored so: {first_line(error)}"
    _put(parameters, anew if reason is None else held)
    return reason


def _put(
    parameters: Mapping[str, nn.Parameter], memory: Mapping[str, tuple[torch.Tensor, torch.Tensor | None]]
) -> None:
    for name, (data, gradient) in memory.items():
        parameters[name].data, parameters[name].grad = data, gradient


def _reason_to_leave(parameter: nn.Parameter, with_state: Collection[int]) -> str | None:
    """Why something would not follow if the parameter's values moved to other memory."""
    part = parameter.untyped_storage().nbytes() != parameter.numel() * parameter.element_size()
    in_other_processes = parameter.device.type == "cpu" and parameter.is_shared()
    if part or in_other_processes or _users(parameter) != _users(torch.empty(1)):
        return "something else lies in its memory"
    return "an optimizer keeps state that lies as it does" if id(parameter) in with_state else None


def _with_optimizer_state(parameters: Sequence[nn.Parameter]) -> frozenset[int]:
    """Those that an optimizer has updated already, by `id`: fused ones go through a parameter's memory and that of
    their averages side by side (seen with Adam on a CPU, torch 2.15)."""
    tables = [holder for holder in gc.get_referrers(*parameters) if isinstance(holder, dict)] if parameters else []
    return frozenset(id(key) for table in tables for key, state in table.items() if isinstance(state, dict) and state)


def _users(tensor: torch.Tensor) -> int:
    # Private: nothing public tells how many tensors have one memory.
    users: int = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return users


def store(parameter: nn.Parameter, order: Order) -> None:
    """Give the parameter's values other strides, in place; its gradient, if it has one, gets the same."""
    keep_fused_steps_right()
    with torch.no_grad():
        parameter.data = in_order(parameter.data, order)
        if parameter.grad is not None:
            parameter.grad = in_order(parameter.grad, order)


def _subject(graph: CapturedGraph, inner: str) -> RewriteSubject:
    subject = RewriteSubject(
        facts=build_graph_facts(graph),
        # Forward and backward are in one graph here, each convolution with its own times.
        phase=Phase.BACKWARD if graph.train else Phase.FORWARD,
        inner="inductor" if inner == "inductor" else "eager",
        visible=frozenset(graph.outputs_visible),
    )
    return with_measured_times(subject, prepared=True)
