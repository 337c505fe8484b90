"""`frx_graph.prepare`: store weights in the memory format in which their convolutions are measured to be fastest."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from frx_graph.capture.captured_graph import Capture, CapturedGraph, Phase
from frx_graph.capture.model import capture_model
from frx_graph.capture.model_call import check_call
from frx_graph.compiler.operator_times import add_measured_times
from frx_graph.errors import PrepareError
from frx_graph.facts.build import build_graph_facts
from frx_graph.options import check_inner
from frx_graph.passes.layouts.dimension_map import Order
from frx_graph.passes.rewrites import preconvert_weights
from frx_graph.passes.rewrites.layout.conversion import MEMORY_FORMATS
from frx_graph.passes.rewrites.preconvert_weights import StoredWeight
from frx_graph.passes.rewrites.rewrite import RewriteSubject
from frx_graph.records import Refusal
from frx_graph.support.garbage_collection import find_referring_dicts
from frx_graph.support.torch_internals import count_storage_users
from frx_graph.support.user_warning import warn_user

_ROOT = "model."
_NAMED = 2
"""Weights that the warning names."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The parameters that were stored in another memory format, and those that could not be, with the reason.

    `converted` maps names to the dimensions in memory, from the outermost to the innermost. A weight that is fastest as
    it is appears in neither.
    """

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
    """Store convolution weights in channels-last if measured times favour it, as `Module.to(memory_format=...)` does.

    Outputs may come channels-last from now on, and `view(-1)` of such a weight or its gradient raises, as after
    `model.to(memory_format=torch.channels_last)`. A warning says so, and names the weights.

    Parameters stay the same objects with the same values, and their gradients follow. A weight in channels-last that is
    faster plain is stored plain. The model runs once, to be captured: `model(*args, **kwargs)`, with a backward if
    `train`; its buffers and the random state are put back. Prepare a model before its optimizer's first step, and
    before it is compiled, since strides that change compile it again. `train` and the backend `inner` say how the model
    will run.

    Raises:
        PrepareError: a weight that times favour cannot be stored in another format, or the model has lazy parameters.
            No parameter was changed then.
        TargetError: the arguments are not a valid call, or the model itself raises.
        CaptureError: nothing of the model could be captured.
        OptionError: `inner` is unknown.

    """
    check_inner(inner)
    check_call(model, args, kwargs, "prepare")
    if not isinstance(model, nn.Module):
        return Prepared({}, (Refusal(preconvert_weights.NAME, "a function has no parameters: give the module itself"),))
    if any(map(is_lazy, model.parameters())):
        raise PrepareError("the model has lazy parameters, which its first call makes", "call the model once before")
    # Tensors that are made in inference mode, such as what the capture puts back, could not be trained with.
    with torch.inference_mode(mode=False):
        return _prepare(model, capture_model(model, args, kwargs, train=train, as_eager=inner == "eager"), inner)


def _prepare(model: nn.Module, capture: Capture, inner: str) -> Prepared:
    orders, refused = _choose_orders(capture.graphs, inner)
    parameters = {name: parameter for name, parameter in model.named_parameters() if f"{_ROOT}{name}" in orders}
    _check_storable(parameters)
    for name, parameter in parameters.items():
        _store(parameter, orders[f"{_ROOT}{name}"])
    if parameters:
        named = ", ".join(list(parameters)[:_NAMED]) + (" and others" if len(parameters) > _NAMED else "")
        warn_user(
            f"frx_graph.prepare has stored weights in another memory format ({named}), and their gradients follow: "
            "where `view` of such a tensor raises 'view size is not compatible', use `reshape`"
        )
    failures = (Refusal(preconvert_weights.NAME, failure.reason) for failure in capture.failures)
    return Prepared({name: orders[f"{_ROOT}{name}"] for name in parameters}, (*failures, *refused))


def _choose_orders(graphs: Sequence[CapturedGraph], inner: str) -> tuple[dict[str, Order], list[Refusal]]:
    """Return the order to store each weight in, by path, and the refusals: one in any graph holds for all."""
    outcomes = [outcome for graph in graphs for outcome in preconvert_weights.propose(_make_subject(graph, inner))]
    refused = [outcome for outcome in outcomes if isinstance(outcome, Refusal)]
    wanted: dict[str, set[Order]] = {}
    for outcome in outcomes:
        if isinstance(outcome, StoredWeight):
            wanted.setdefault(outcome.path, set()).add(outcome.order)
    refused.extend(
        Refusal(path, "the graphs that read it are fastest with different orders")
        for path, orders in wanted.items()
        if len(orders) > 1
    )
    left = {refusal.subject for refusal in refused}
    return {path: orders.pop() for path, orders in wanted.items() if path not in left}, refused


def _make_subject(graph: CapturedGraph, inner: str) -> RewriteSubject:
    subject = RewriteSubject(
        facts=build_graph_facts(graph),
        # Forward and backward are in one graph here, each convolution with its own times.
        phase=Phase.BACKWARD if graph.train else Phase.FORWARD,
        inner="inductor" if inner == "inductor" else "eager",
        observable_outputs=frozenset(graph.outputs_visible),
    )
    return add_measured_times(subject, prepared=True)


def _check_storable(parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise `PrepareError` if something would not follow one of the parameters to other memory."""
    if parameters and dist.is_available() and dist.is_initialized():
        # `DistributedDataParallel` reduces gradients by the memory order at its construction. The next step's gradients
        # were wrong, and all were if processes had stored weights differently (torch 2.15, gloo).
        raise PrepareError(
            "processes may reduce the gradients by how the weights are stored",
            "convert all weights in every process with model.to(memory_format=...), before DistributedDataParallel",
        )
    with_state = _find_optimizer_state(list(parameters.values()))
    for name, parameter in parameters.items():
        if type(parameter) is not nn.Parameter:
            reason = f"it is a {type(parameter).__name__}, a tensor of another kind"
            hint = "prepare the model before its parameters are wrapped"
        elif _shares_memory(parameter) or (parameter.grad is not None and _shares_memory(parameter.grad)):
            reason = "something else uses its memory, or its gradient's"
            hint = "release it, such as a state_dict(), or prepare the model first"
        elif id(parameter) in with_state:
            # Fused ones go through a parameter and its averages side by side in memory (Adam on a CPU, torch 2.15).
            reason = "an optimizer keeps state for it, which would not follow"
            hint = "prepare the model before the optimizer's first step"
        else:
            continue
        raise PrepareError(f"{name} cannot be stored in another memory format: {reason}", hint)


def _shares_memory(tensor: Tensor) -> bool:
    storage = tensor.untyped_storage()
    part = storage.nbytes() != tensor.numel() * tensor.element_size()
    in_other_processes = tensor.device.type == "cpu" and tensor.is_shared()
    return part or in_other_processes or count_storage_users(tensor) != count_storage_users(torch.empty(1))


def _find_optimizer_state(parameters: Collection[nn.Parameter]) -> frozenset[int]:
    """Return the parameters that any optimizer has updated already, by `id`: they are keys of optimizer states."""
    tables = find_referring_dicts(list(parameters))
    return frozenset(
        id(key) for table in tables for key, state in list(table.items()) if isinstance(state, dict) and state
    )


def _store(parameter: nn.Parameter, order: Order) -> None:
    plain = order == tuple(range(len(order)))
    memory_format = torch.contiguous_format if plain else MEMORY_FORMATS[len(order)]
    with torch.no_grad():
        parameter.data = parameter.data.to(memory_format=memory_format)
        if parameter.grad is not None:
            parameter.grad.data = parameter.grad.data.to(memory_format=memory_format)
