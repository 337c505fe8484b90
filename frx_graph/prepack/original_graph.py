"""What a graph did before the weights that it is given, or holds itself, were stored anew."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn

from frx_graph.capture.graph_outcome import GraphOutcome, InputTensor, graph_inputs, graph_outcome
from frx_graph.errors import first_line
from frx_graph.prepack.registry import Stored


@dataclass(frozen=True)
class GraphBefore:
    """`inputs` are a graph's inputs with parameters that lie as they did when the program was given to us; `inputs_now`
    are those that it is given. `outcome` is what it makes of `inputs`; None where it cannot be run on fakes, for
    `failure`. `stored` are the weights that were stored anew, of which it may hold some itself (`holds_any`)."""

    inputs_now: tuple[Any, ...]
    inputs: tuple[Any, ...]
    outcome: GraphOutcome | None
    failure: str
    stored: Stored
    holds_any: bool

    @property
    def differs(self) -> bool:
        """Whether anything that the graph reads was stored anew."""
        return self.holds_any or self.inputs != self.inputs_now


def graph_before(dynamo: fx.GraphModule, example_inputs: Sequence[Any], stored: Stored) -> GraphBefore:
    """Raises `ValueError` for tensors of other layouts than strided."""
    now = graph_inputs(example_inputs)
    inputs = tuple(_as_it_was(value, stored) for value in now)
    outcome, failure = None, ""
    with constants_as_they_were(dynamo, stored):
        try:
            outcome = graph_outcome(dynamo, inputs)
        except Exception as error:  # noqa: BLE001 - an operator may refuse fakes with whatever it likes
            failure = first_line(error)
    return GraphBefore(now, inputs, outcome, failure, stored, bool(held_weights(dynamo, stored)))


def _as_it_was(value: Any, stored: Stored) -> Any:
    weight = stored.get(value.identity) if isinstance(value, InputTensor) else None
    return replace(value, strides=weight.before) if weight is not None else value


def held_weights(dynamo: fx.GraphModule, stored: Stored) -> dict[str, nn.Parameter]:
    """The weights that the graph holds itself, as where it is frozen, and that were stored anew: by their names."""
    held: dict[str, nn.Parameter] = {}
    for target in dict.fromkeys(str(node.target) for node in dynamo.graph.find_nodes(op="get_attr")):
        path, _, name = target.rpartition(".")
        value = getattr(dynamo.get_submodule(path), name, None)
        if isinstance(value, nn.Parameter) and id(value) in stored:
            held[target] = value
    return held


@contextlib.contextmanager
def constants_as_they_were(dynamo: fx.GraphModule, stored: Stored) -> Iterator[None]:
    """Inside, the weights that the graph holds itself have the strides that they had when the program was given to us,
    and no values."""
    held = held_weights(dynamo, stored)
    try:
        for target, value in held.items():
            like = torch.empty_strided(value.shape, stored[id(value)].before, dtype=value.dtype, device=value.device)
            _set(dynamo, target, nn.Parameter(like, requires_grad=value.requires_grad))
        yield
    finally:
        for target, value in held.items():
            _set(dynamo, target, value)


def _set(dynamo: fx.GraphModule, target: str, value: nn.Parameter) -> None:
    path, _, name = target.rpartition(".")
    setattr(dynamo.get_submodule(path), name, value)
