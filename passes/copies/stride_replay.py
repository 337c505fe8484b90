"""What would happen to strides if an operand were stored differently: an operator run again on tensors without data.

torch itself answers, through fake tensors of the operator's own device (the meta device would answer for no device:
its convolutions forget channels-last). An answer is given only where the fake operator reproduces the strides that the
captured graph has.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from frx_graph.facts.graph_facts import GraphFacts, OpFacts
from frx_graph.facts.layout import CHANNELS_LAST_ORDER, strides_for_order
from frx_graph.facts.operator_overload import find_overload
from frx_graph.facts.operator_signature import OperatorSignature, SpecArgument, TensorSpec, signature_of
from frx_graph.passes.copies.view_chain import ViewChain, view_chain
from frx_graph.support.torch_internals import FakeTensorMode

Strides = tuple[int, ...]


def replay(op: OpFacts, facts: GraphFacts, changed: Mapping[str, Strides]) -> tuple[Strides, ...] | None:
    """The strides of `op`'s results when the operands named in `changed` have those strides instead of their own.

    None where the operator cannot run on them (a view that would need a copy), or where its fake is not known to tell
    the truth.
    """
    if _result_strides(signature_of(op, facts)) != tuple(facts.values[name].strides for name in op.outputs):
        return None
    return _result_strides(signature_of(op, facts, changed))


def replay_chain(facts: GraphFacts, chain: ViewChain, base_strides: Strides) -> Strides | None:
    """The strides that a value would have if the base of its views were stored with `base_strides`; None where one of
    the views could then be none."""
    name, strides = chain.base, base_strides
    results_taken = (*(view.inputs[0] for view in chain.views[1:]), chain.value)
    for view, result in zip(chain.views, results_taken, strict=False):
        results = replay(view, facts, {name: strides})
        if results is None:
            return None
        name, strides = result, results[view.outputs.index(result)]
    return strides


def order_that_gives(facts: GraphFacts, value: str, wanted: Strides) -> tuple[int, ...] | None:
    """The order in which the memory behind `value` could be stored so that, through the same views, its strides are
    `wanted`: channels-last, or the last two dimensions swapped. None where neither does it."""
    chain = view_chain(facts, value)
    shape = facts.values[chain.base].shape
    rank = len(shape)
    if not chain.views or rank < 2:
        return None
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    for order in dict.fromkeys((CHANNELS_LAST_ORDER.get(rank, swapped), swapped)):
        strides = replay_chain(facts, chain, strides_for_order(shape, order))
        if strides is not None and same_strides(facts.values[value].shape, strides, wanted):
            return order
    return None


def same_strides(shape: tuple[int, ...], first: Strides, second: Strides) -> bool:
    """Equal but for dimensions of size 1, whose strides mean nothing."""
    return all(n == 1 or a == b for n, a, b in zip(shape, first, second, strict=True))


@functools.lru_cache(maxsize=8192)
def _result_strides(signature: OperatorSignature) -> tuple[Strides, ...] | None:
    """What the fake operator says; None where it refuses. Cached: a model's layers ask the same questions."""
    overload = find_overload(signature.target)
    if overload is None:
        return None
    try:
        with _fake_mode(), torch.no_grad():
            result = overload(
                *(_fake(argument) for argument in signature.args),
                **{name: _fake(argument) for name, argument in signature.kwargs},
            )
    # A fake operator says "not on these strides" with whatever it likes.
    except (RuntimeError, ValueError, TypeError, NotImplementedError, IndexError, AssertionError):
        return None
    results = result if isinstance(result, (tuple, list)) else (result,)
    return tuple(tuple(r.stride()) for r in results if isinstance(r, Tensor))


@functools.cache
def _fake_mode() -> FakeTensorMode:
    return FakeTensorMode()


def _fake(argument: SpecArgument) -> Any:
    if isinstance(argument, TensorSpec):
        return torch.empty_strided(argument.shape, argument.strides, dtype=argument.dtype, device=argument.device)
    return [_fake(item) for item in argument] if isinstance(argument, tuple) else argument
