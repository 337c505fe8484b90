"""What would happen to strides if an operand were stored differently: an operator run again on tensors without data.

torch itself answers, through its meta kernels. An answer is given only where those kernels reproduce the strides that
the captured graph has, so that a meta kernel that differs from the device's own is never believed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from frx_graph.facts.graph_facts import Argument, GraphFacts, OpFacts, ValueRef
from frx_graph.passes.view_chain import ViewChain

Strides = tuple[int, ...]


def replay(op: OpFacts, facts: GraphFacts, changed: Mapping[str, Strides]) -> tuple[Strides, ...] | None:
    """The strides of `op`'s results when the operands named in `changed` have those strides instead of their own.

    None where the operator cannot run on them (a view that would need a copy), or where its meta kernel is not known to
    tell the truth.
    """
    overload = _overload(op.target)
    if overload is None or not set(op.inputs) & set(changed):
        return None
    recorded = tuple(facts.values[name].strides for name in op.outputs)
    if _run(overload, op, facts, {}) != recorded:
        return None
    return _run(overload, op, facts, changed)


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


def _overload(target: str) -> OpOverload | None:
    namespace, _, rest = target.partition(".")
    packet, _, name = rest.rpartition(".")
    found = getattr(getattr(getattr(torch.ops, namespace, None), packet, None), name, None)
    return found if isinstance(found, OpOverload) else None


def _run(
    overload: OpOverload, op: OpFacts, facts: GraphFacts, changed: Mapping[str, Strides]
) -> tuple[Strides, ...] | None:
    def value(argument: Argument) -> Any:
        if isinstance(argument, ValueRef):
            known = facts.values[argument.name]
            strides = changed.get(known.name, known.strides)
            return torch.empty_strided(known.shape, strides, dtype=known.dtype, device="meta")
        if isinstance(argument, tuple):
            return [value(item) for item in argument]
        return torch.device("meta") if isinstance(argument, torch.device) else argument

    try:
        with torch.no_grad():
            result = overload(*(value(a) for a in op.args), **{key: value(a) for key, a in op.kwargs.items()})
    # A meta kernel says "not on these strides" with whatever it likes; KeyError is an operand without facts.
    except (RuntimeError, ValueError, TypeError, NotImplementedError, IndexError, KeyError):
        return None
    results = result if isinstance(result, (tuple, list)) else (result,)
    return tuple(tuple(r.stride()) for r in results if isinstance(r, Tensor))
