"""What a graph did before the weights that it is given, or holds itself, were stored anew."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn

from frx_graph.capture.graph_outcome import GraphOutcome, InputTensor, graph_inputs, graph_outcome
from frx_graph.weights_stored_anew import Stored


@dataclass(frozen=True)
class GraphBefore:
    """`inputs` are a graph's inputs with parameters that lie as they did when the program was given to us, `outcome`
    is what it makes of them; `inputs_now` are those that it is given. `stored` are the weights that were stored anew,
    of which it may hold some itself (`holds_any`)."""

    inputs_now: tuple[Any, ...]
    inputs: tuple[Any, ...]
    outcome: GraphOutcome
    stored: Stored
    holds_any: bool

    @property
    def differs(self) -> bool:
        """Whether anything that the graph reads was stored anew."""
        return self.holds_any or self.inputs != self.inputs_now


def graph_before(dynamo: fx.GraphModule, example_inputs: Sequence[Any], stored: Stored) -> GraphBefore:
    """Raises what the graph raises on fakes, and `ValueError` for tensors of other layouts than strided."""
    now = graph_inputs(example_inputs)
    inputs = tuple(_as_it_was(value, stored) for value in now)
    with constants_as_they_were(dynamo, stored) as holds_any:
        return GraphBefore(now, inputs, graph_outcome(dynamo, inputs), stored, holds_any)


def _as_it_was(value: Any, stored: Stored) -> Any:
    weight = stored.get(value.identity) if isinstance(value, InputTensor) else None
    return replace(value, strides=weight.before) if weight is not None else value


@contextlib.contextmanager
def constants_as_they_were(dynamo: fx.GraphModule, stored: Stored) -> Iterator[bool]:
    """Inside, the weights that the graph holds itself, as where it is frozen, have the strides that they had when the
    program was given to us, and no values; False where it holds none that was stored anew."""
    held: list[tuple[nn.Module, str, nn.Parameter]] = []
    for target in dict.fromkeys(str(node.target) for node in dynamo.graph.find_nodes(op="get_attr")):
        path, _, name = target.rpartition(".")
        owner = dynamo.get_submodule(path)
        value = getattr(owner, name, None)
        if id(value) in stored and isinstance(value, nn.Parameter):
            held.append((owner, name, value))
    try:
        for owner, name, value in held:
            like = torch.empty_strided(value.shape, stored[id(value)].before, dtype=value.dtype, device=value.device)
            setattr(owner, name, nn.Parameter(like, requires_grad=value.requires_grad))
        yield bool(held)
    finally:
        for owner, name, value in held:
            setattr(owner, name, value)
