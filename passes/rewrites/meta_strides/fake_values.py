"""Run operators of a graph on the fake tensors that it carries, and compare these."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq

from frx_graph.capture.tracing_context import disable_guards
from frx_graph.errors import RewriteError
from frx_graph.support.torch_internals import (
    FakeTensor,
    FakeTensorMode,
    enable_python_dispatcher,
    get_storage_id,
    pytree,
)


def find_fake_mode(graph: fx.Graph) -> FakeTensorMode:
    """Return the mode of the graph's fake tensors. Raises `RewriteError` if it carries none."""
    for node in graph.nodes:
        if isinstance(value := node.meta.get("val"), FakeTensor):
            return value.fake_mode
    raise RewriteError("the graph carries no fake tensors")


@contextlib.contextmanager
def run_fakes_unguarded(mode: FakeTensorMode) -> Iterator[None]:
    """Run operators of AOTAutograd's graphs on fakes of `mode`, as they were traced: no guards, no gradients.

    Symbolic sizes stay symbolic, since Python's kernels go before those that take numbers only.
    """
    with disable_guards(mode), enable_python_dispatcher(), torch.no_grad():
        yield


def run_on_fakes(node: fx.Node) -> Any:
    """Return the operator's result for its operands' fake tensors. The caller has entered their mode."""
    args, kwargs = pytree.tree_map_only(fx.Node, lambda n: n.meta["val"], (node.args, node.kwargs))
    assert callable(node.target)
    return node.target(*args, **kwargs)


def call_op(graph: fx.Graph, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """Add a call at the graph's insertion point, with its value in `meta["val"]`. The caller has entered the mode."""
    node = graph.call_function(target, args, kwargs)
    node.meta["val"] = run_on_fakes(node)
    return node


def identify_storage(value: Any) -> int | None:
    """Return what identifies the memory of a tensor; None for another value."""
    return get_storage_id(value.untyped_storage()) if isinstance(value, Tensor) else None


def number_storages(storages: Iterable[int | None]) -> list[int | None]:
    """Number memories in order of appearance, so that two lists are equal if the same entries share memory."""
    numbers: dict[int, int] = {}
    return [None if storage is None else numbers.setdefault(storage, len(numbers)) for storage in storages]


def have_equal_strides(first: fx.Node, second: fx.Node) -> bool:
    """Return True if two tensors have the same strides for every size, not only for those of the example."""
    one, other = first.meta["val"], second.meta["val"]
    return (
        isinstance(one, Tensor)
        and isinstance(other, Tensor)
        and one.layout is torch.strided
        and bool(statically_known_true(sym_eq(tuple(one.stride()), tuple(other.stride()))))
    )


def has_fixed_sizes(value: Tensor) -> bool:
    """Return True if shape and strides are numbers, not symbols."""
    return all(isinstance(n, int) for n in (*value.shape, *value.stride()))
