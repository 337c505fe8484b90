"""Which operators Inductor writes loops for, by its own decompositions and lowerings."""

import functools
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from operator_samples.observation import sample_calls
from operator_samples.sample import OperatorSample
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._inductor import lowering
from torch._inductor.decomposition import select_decomp_table
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

from frx_graph.capture.stride_table import CallClass, load_stride_table
from frx_graph.facts.operator_overload import find_overload
from frx_graph.rules.layout_operator import DimensionMap, Keeps, LayoutOperator, load_layout_operators

FALLS_BACK_INSIDE = {"aten.sort", "aten.bernoulli_"}
"""Lowered, but to a call of eager's kernel, always on the CPU."""
ROWS = [
    row
    for row in load_layout_operators().values()
    if row.only_on is None and row.dimensions is not DimensionMap.NONE and row.operator not in FALLS_BACK_INSIDE
]


@functools.cache
def first_calls() -> Mapping[str, OperatorSample]:
    return {operator: calls[0] for operator, calls in sample_calls("cpu").items()}


@functools.cache
def decompositions() -> Mapping[OpOverload, Any]:
    return select_decomp_table()


def decomposed(sample: OperatorSample) -> set[Any]:
    """The operators that are left of a call when Inductor has taken it apart."""
    leaves, spec = pytree.tree_flatten(sample.args)
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def run(*tensors: Tensor) -> Any:
        given = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        return sample.run(pytree.tree_unflatten(given, spec))

    with torch.no_grad(), enable_python_dispatcher():
        traced = make_fx(run, decomposition_table=dict(decompositions()), tracing_mode="fake")(
            *(leaves[place] for place in places)
        )
    return {node.target for node in traced.graph.nodes if isinstance(node.target, OpOverload)}


@pytest.mark.skipif(torch.__version__ < "2.15", reason="which operators Inductor has lowerings for is as of torch 2.15")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.operator.removeprefix("aten."))
def test_inductor_generates_loops_as_the_row_states(row: LayoutOperator) -> None:
    sample = first_calls()[row.operator]
    own = find_overload(sample.target)
    left = decomposed(sample)
    called = own in left and (own in lowering.fallbacks or own not in lowering.lowerings)
    library = any(target.overloadpacket in flop_registry for target in left)
    assert row.generated == (not called and not library)


@pytest.mark.parametrize(
    "row", [row for row in load_layout_operators().values() if not row.generated], ids=lambda row: row.operator
)
def test_called_kernels_whose_fakes_lose_channels_last_are_marked(row: LayoutOperator) -> None:
    agreed = [kinds for name, kinds in load_stride_table().differ.items() if name.startswith(f"{row.operator}.")]
    lost = row.keeps is Keeps.CHANNELS_LAST and any(CallClass.CHANNELS_LAST not in kinds for kinds in agreed)
    assert row.misdescribed == lost
