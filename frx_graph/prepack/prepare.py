"""Stores a model's weights as its convolutions want them, once, before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.nn.parameter import is_lazy

from frx_graph.capture.call_check import check_call
from frx_graph.capture.captured_graph import CapturedGraph, Phase
from frx_graph.capture.model import parameter_paths
from frx_graph.capture.observed_call import ObservedCall, observed_call
from frx_graph.capture.recorder import GraphRecorder
from frx_graph.capture.whole_program import WholeProgram, whole_program
from frx_graph.compiler.operator_times import with_measured_times
from frx_graph.errors import CaptureError, first_line
from frx_graph.facts.build import build_graph_facts
from frx_graph.facts.ordered_tensor import in_order
from frx_graph.options import check_inner
from frx_graph.passes.layouts.dimension_map import Order
from frx_graph.passes.rewrites import preconvert_weights
from frx_graph.passes.rewrites.rewrite import RewriteSubject
from frx_graph.prepack.equivalence import computes_otherwise
from frx_graph.prepack.optimizer_hooks import keep_steps_right
from frx_graph.records import Refusal
from frx_graph.support.gc_search import instances, referring_dicts

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
    before. One that shares its memory with anything stays where it is, and so does one that has a gradient, or that an
    optimizer has updated already, and one whose images reach an operator that sees strides; with a process group of
    `torch.distributed`, where tensors of a subclass are given, and where Dynamo does not capture the program in one
    graph, all do. The model does not run: it is captured before and after weights were stored anew, and both graphs
    run, on tensors of their own, with `train` backwards as well. A program that fails with its weights stored anew,
    since it calls `view` on what a convolution returns, or that computes or does something else, since it asks for
    strides, gets them back as they were. Code that this call does not reach is not asked. `train` and `inner` say what
    the model will be used for. What it returns may lie in channels-last from now on, as after
    `model.to(memory_format=...)`, and `view(-1)` of such a weight raises, also in
    `torch.nn.utils.parameters_to_vector`; see `frx_graph.compile` for a program that returns the strides from before.
    Raises `TargetError` for what is no call, and `OptionError` for an unknown `inner`.
    """
    check_inner(inner)
    check_call(model, args, kwargs, "prepare")
    if not isinstance(model, nn.Module):
        return Prepared({}, (Refusal(preconvert_weights.NAME, "a function has no parameters: give the module itself"),))
    if dist.is_available() and dist.is_initialized():
        # `DistributedDataParallel` reduces gradients as their memory lay when it was built: the next step's were wrong,
        # and all of them where processes had stored weights differently (torch 2.15, gloo).
        return Prepared({}, (Refusal(preconvert_weights.NAME, "gradients may be reduced between processes"),))
    if any(map(is_lazy, model.parameters())):
        return Prepared({}, (Refusal(preconvert_weights.NAME, "its parameters are made in its first call"),))
    recorder = GraphRecorder("model", parameter_paths(model))

    def captured(*, gradients: bool) -> WholeProgram:
        return whole_program(
            model, args, kwargs or {}, gradients=gradients, as_eager=inner == "eager", recorder=recorder
        )

    try:
        program = captured(gradients=train)
    except CaptureError as error:
        return Prepared({}, (Refusal(preconvert_weights.NAME, error.message),))
    if any(map(_is_of_another_kind, program.inputs)):
        return Prepared({}, (Refusal(preconvert_weights.NAME, _ANOTHER_KIND),))
    recorder.trace(program.noted)
    traced = recorder.capture()
    refused = [Refusal(preconvert_weights.NAME, failure.reason) for failure in traced.failures]
    outcomes = [outcome for graph in traced.graphs for outcome in preconvert_weights.propose(_subject(graph, inner))]
    refused.extend(outcome for outcome in outcomes if isinstance(outcome, Refusal))
    parameters = dict(model.named_parameters())
    wanted = {outcome.path: outcome.order for outcome in outcomes if not isinstance(outcome, Refusal)}
    orders = {name: wanted[path] for name in parameters if (path := f"{_ROOT}{name}") in wanted}
    with_state = _with_optimizer_state([parameters[name] for name in orders])
    awaited = _in_compiled_backwards()
    reasons = {name: _reason_to_leave(parameters[name], with_state, awaited) for name in orders}
    refused.extend(Refusal(name, reason) for name, reason in reasons.items() if reason is not None)
    converted = {name: order for name, order in orders.items() if reasons[name] is None}
    moment = torch.is_grad_enabled()
    recapture = partial(captured, gradients=moment)
    reason = _stored(model, converted, recapture, program if moment == train else None, train=train)
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


def _stored(
    model: nn.Module,
    orders: Mapping[str, Order],
    captured: Callable[[], WholeProgram],
    program: WholeProgram | None,
    *,
    train: bool,
) -> str | None:
    """Store the parameters anew; where the model then fails, or computes something else, they are put back, and why is
    returned. `captured` gives the program as it is at the time, `program`, where that is known, as it is now."""
    if not orders:
        return None
    try:
        as_it_is = captured() if program is None else program
        before = observed_call(as_it_is, train=train)
    except Exception as error:  # noqa: BLE001 - the model's own code, in torch's modes
        return f"what the model computes cannot be observed: {first_line(error)}"
    parameters = {name: model.get_parameter(name) for name in orders}
    held = {name: parameter.data for name, parameter in parameters.items()}
    reason: str | None = "it was interrupted"
    try:
        for name, order in orders.items():
            store(parameters[name], order)
        anew = {name: parameter.data for name, parameter in parameters.items()}

        def noisy(disturbance: AbstractContextManager[Any] | None) -> ObservedCall:
            _put(parameters, held)
            return observed_call(as_it_is, train=train, disturbance=disturbance)

        after = observed_call(captured(), train=train)
        difference = computes_otherwise(before, after, noisy)
        _put(parameters, anew)
        reason = None if difference is None else f"the model computes something else with it stored so: {difference}"
    except Exception as error:  # noqa: BLE001 - the model's own code
        reason = f"the model fails with it stored so: {first_line(error)}"
    finally:
        if reason is not None:
            _put(parameters, held)
    return reason


def _put(parameters: Mapping[str, nn.Parameter], memory: Mapping[str, torch.Tensor]) -> None:
    for name, data in memory.items():
        parameters[name].data = data


def _reason_to_leave(parameter: nn.Parameter, with_state: Collection[int], awaited: Collection[int]) -> str | None:
    """Why something would not follow if the parameter's values moved to other memory."""
    part = parameter.untyped_storage().nbytes() != parameter.numel() * parameter.element_size()
    in_other_processes = parameter.device.type == "cpu" and parameter.is_shared()
    if part or in_other_processes or _users(parameter) != _users(torch.empty(1)):
        return "something else lies in its memory"
    if parameter.grad is not None:
        return "it has a gradient, which something else may hold"
    if id(parameter) in awaited:
        return "a backward that has not run yet was compiled for it as it lies"
    return "an optimizer keeps state that lies as it does" if id(parameter) in with_state else None


def _in_compiled_backwards() -> frozenset[int]:
    """Parameters of compiled programs whose backward may still be called, by `id`: Inductor's asks for the strides that
    they had in the forward (torch 2.15)."""
    # The nodes of autograd that are written in Python are the only ones that can be found.
    kinds = [kind for kind in BackwardCFunction.__subclasses__() if kind.__name__ == "CompiledFunctionBackward"]
    ends = [end for node in instances(*kinds) for end, _ in node.next_functions]
    return frozenset(id(end.variable) for end in ends if hasattr(end, "variable"))


def _with_optimizer_state(parameters: Sequence[nn.Parameter]) -> frozenset[int]:
    """Those that an optimizer has updated already, by `id`: fused ones go through a parameter's memory and that of
    their averages side by side (seen with Adam on a CPU, torch 2.15)."""
    tables = referring_dicts(parameters)
    return frozenset(
        id(key) for table in tables for key, state in list(table.items()) if isinstance(state, dict) and state
    )


def _users(tensor: torch.Tensor) -> int:
    # Private: nothing public tells how many tensors have one memory.
    users: int = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return users


def store(parameter: nn.Parameter, order: Order) -> None:
    """Give the parameter's values other strides, in place."""
    keep_steps_right()
    with torch.no_grad():
        parameter.data = in_order(parameter.data, order)


def _subject(graph: CapturedGraph, inner: str) -> RewriteSubject:
    subject = RewriteSubject(
        facts=build_graph_facts(graph),
        # Forward and backward are in one graph here, each convolution with its own times.
        phase=Phase.BACKWARD if graph.train else Phase.FORWARD,
        inner="inductor" if inner == "inductor" else "eager",
        visible=frozenset(graph.outputs_visible),
    )
    return with_measured_times(subject, prepared=True)
