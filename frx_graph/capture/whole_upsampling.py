"""Keep upsampling one operator while AOTAutograd traces a graph that is to run in eager."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator

import torch
from torch import SymInt, Tensor, fx

from frx_graph.capture.graph_signature import is_torch_function
from frx_graph.capture.tracing_context import disable_guards
from frx_graph.support.torch_internals import (
    DispatchKey,
    OpOverload,
    clear_dispatch_cache,
    make_contiguous_strides_for,
    pytree,
)

_KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)
_UPSAMPLING = re.compile("interpolate|upsample")


@contextlib.contextmanager
def keep_upsampling_whole() -> Iterator[None]:
    """Trace the upsampling operators that eager runs.

    Torch's Python kernels decompose them into indexing and arithmetic (`torch/_decomp/decompositions.py`), which a
    compiler fuses into one loop; run as they are they take several times as long as the operator.
    """
    taken = [
        (operator, key, operator.py_kernels.pop(key))
        for operator in _list_upsampling_overloads()
        for key in _KEYS
        if key in operator.py_kernels
    ]
    _clear_dispatch_caches()
    try:
        yield
    finally:
        for operator, key, kernel in taken:
            operator.py_kernels[key] = kernel
        _clear_dispatch_caches()


def can_upsample_whole(dynamo: fx.GraphModule) -> bool:
    """Return False for a graph whose upsampling must not be traced whole.

    That is a graph with symbolic sizes, which whole operators would fix, or with a tensor without elements, whose fakes
    raise a `TypeError` (torch 2.15, `_meta_registrations.upsample_nearest2d`). It is also a graph whose whole operators
    make other strides than Dynamo's fakes, since the program may have read those. Nested graphs, such as those of
    checkpoints, count; code that is not torch's own may upsample unseen.
    """
    graphs = (module.graph for module in dynamo.modules() if isinstance(module, fx.GraphModule))
    nodes = [node for graph in graphs for node in graph.nodes]
    values = pytree.tree_leaves([node.meta.get("example_value") for node in nodes])
    sizes = [size for value in values if isinstance(value, Tensor) for size in value.shape]
    symbolic = any(isinstance(size, SymInt) for size in (*values, *sizes))
    return not symbolic and 0 not in sizes and all(map(_keeps_strides_whole, nodes))


def _keeps_strides_whole(node: fx.Node) -> bool:
    """Return False for an upsampling that, traced whole, may make other strides than Dynamo's fakes."""
    called = node.target
    if node.op == "call_module" or (node.op == "call_function" and not is_torch_function(called)):
        return False
    if node.op != "call_function" or not _UPSAMPLING.search(getattr(called, "__name__", "")):
        return True
    assert callable(called)
    try:
        args, kwargs = pytree.tree_map_only(fx.Node, lambda n: n.meta["example_value"], (node.args, node.kwargs))
        image = next(leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
        predicted = node.meta["example_value"]
        if 1 in (*image.shape[1:], *predicted.shape[1:]) and image.stride() != make_contiguous_strides_for(image.shape):
            # Fakes and kernels follow different rules for values that have both orders at once.
            return False
        with disable_guards(predicted.fake_mode), torch.no_grad(), keep_upsampling_whole(), warnings.catch_warnings():
            # The function's warnings were already shown while Dynamo traced it.
            warnings.simplefilter("ignore")
            return bool(called(*args, **kwargs).stride() == predicted.stride())
    except Exception:  # noqa: BLE001 - the program will say what is wrong with a call, if anything is
        return False


def _clear_dispatch_caches() -> None:
    for operator in _list_upsampling_overloads():
        clear_dispatch_cache(operator)


def _list_upsampling_overloads() -> Iterator[OpOverload]:
    for name in dir(torch.ops.aten):
        if name.startswith(("upsample_", "_upsample_")) and not name.endswith("_backward"):
            packet = getattr(torch.ops.aten, name)
            yield from (getattr(packet, overload) for overload in packet.overloads())
