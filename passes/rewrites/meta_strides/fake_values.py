"""Running operators of a graph again on the fake tensors that it carries."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from frx_graph.capture.tracing_context import without_guards
from frx_graph.errors import RewriteError


def fake_mode_of(graph: fx.Graph) -> FakeTensorMode:
    """The mode of the graph's fake tensors. Raises `RewriteError` where it carries none."""
    for node in graph.nodes:
        if isinstance(value := node.meta.get("val"), FakeTensor):
            return value.fake_mode
    raise RewriteError("the graph carries no fake tensors")


@contextlib.contextmanager
def running_fakes(mode: FakeTensorMode) -> Iterator[None]:
    """Where operators of AOTAutograd's graphs are run on fakes of `mode`, as they were traced: symbolic sizes stay so,
    since Python's kernels go before those that take numbers only. No guard is added, and nothing is differentiated."""
    with without_guards(mode), enable_python_dispatcher(), torch.no_grad():
        yield


def run_on_fakes(node: fx.Node) -> Any:
    """What the node's operator makes of the fake tensors that its operands carry; the caller has entered their mode."""
    args, kwargs = pytree.tree_map_only(fx.Node, lambda n: n.meta["val"], (node.args, node.kwargs))
    assert callable(node.target)
    return node.target(*args, **kwargs)
