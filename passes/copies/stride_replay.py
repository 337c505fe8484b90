"""Compute strides after a change of operand strides, by running operators on tensors without data.

Fake tensors of the operator's own device give the answer (meta tensors forget channels-last in convolutions). It counts
only if the fake operator reproduces the strides of the captured graph.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
from torch import Tensor

from frx_graph.capture.kernel_strides import correct_strides, restride_fake
from frx_graph.facts.graph_facts import GraphFacts, OpFacts
from frx_graph.facts.layout import CHANNELS_LAST_ORDER, make_ordered_strides
from frx_graph.facts.operator_overload import find_overload
from frx_graph.facts.operator_signature import OperatorSignature, TensorSpec, build_signature
from frx_graph.passes.copies.view_chain import ViewChain, trace_views
from frx_graph.support.torch_internals import FakeTensorMode

Strides = tuple[int, ...]


def replay_operator(op: OpFacts, facts: GraphFacts, changed: Mapping[str, Strides]) -> tuple[Strides, ...] | None:
    """Return the strides of `op`'s results if the operands named in `changed` have those strides.

    None if the operator cannot run on them (a view that would need a copy), or if its fake is not reliable.
    """
    if _compute_result_strides(build_signature(op, facts)) != tuple(facts.values[name].strides for name in op.outputs):
        return None
    return _compute_result_strides(build_signature(op, facts, changed))


def replay_chain(facts: GraphFacts, chain: ViewChain, base_strides: Strides) -> Strides | None:
    """Return the strides of a value if its base had `base_strides`; None if one of the views were then impossible."""
    name, strides = chain.base, base_strides
    results_taken = (*(view.inputs[0] for view in chain.views[1:]), chain.value)
    for view, result in zip(chain.views, results_taken, strict=False):
        results = replay_operator(view, facts, {name: strides})
        if results is None:
            return None
        name, strides = result, results[view.outputs.index(result)]
    return strides


def find_order_for_strides(facts: GraphFacts, value: str, wanted: Strides) -> tuple[int, ...] | None:
    """Return the storage order of the memory behind `value` that gives it the strides `wanted` through the same views:
    channels-last, or the last two dimensions swapped. None if neither does."""
    chain = trace_views(facts, value)
    shape = facts.values[chain.base].shape
    rank = len(shape)
    if not chain.views or rank < 2:
        return None
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    for order in dict.fromkeys((CHANNELS_LAST_ORDER.get(rank, swapped), swapped)):
        strides = replay_chain(facts, chain, make_ordered_strides(shape, order))
        if strides is not None and have_same_strides(facts.values[value].shape, strides, wanted):
            return order
    return None


def have_same_strides(shape: tuple[int, ...], first: Strides, second: Strides) -> bool:
    """Return True if strides are equal, ignoring dimensions of size 1."""
    return all(n == 1 or a == b for n, a, b in zip(shape, first, second, strict=True))


@functools.lru_cache(maxsize=8192)
def _compute_result_strides(signature: OperatorSignature) -> tuple[Strides, ...] | None:
    """Return the strides of the fake operator's results; None if it refuses. Cached, since layers repeat."""
    overload = find_overload(signature.target)
    if overload is None:
        return None
    try:
        with _get_fake_mode(), torch.no_grad():
            args, kwargs = signature.make_arguments(_make_fake)
            result = correct_strides(overload, args, kwargs, overload(*args, **kwargs), restride_fake)
    # A fake operator may refuse strides with any exception.
    except (RuntimeError, ValueError, TypeError, NotImplementedError, IndexError, AssertionError):
        return None
    results = result if isinstance(result, (tuple, list)) else (result,)
    return tuple(tuple(r.stride()) for r in results if isinstance(r, Tensor))


@functools.cache
def _get_fake_mode() -> FakeTensorMode:
    return FakeTensorMode()


def _make_fake(spec: TensorSpec) -> Tensor:
    return torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype, device=spec.device)
