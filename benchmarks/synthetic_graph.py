"""Captured graphs of any size, made without a model: what the analysis is timed on."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx._lazy_graph_module import _LazyGraphModule

from frx_graph.capture.call_site import UNKNOWN_SITE, CallSite
from frx_graph.capture.captured_graph import Capture, CapturedGraph, GraphInput, InputKind, Phase

aten = torch.ops.aten

BATCH, CHANNELS, SIDE, HEADS = 2, 64, 14, 4
LENGTH = SIDE * SIDE


def synthetic_capture(nodes: int) -> Capture:
    """One inference graph of at least `nodes` nodes: blocks of a convolution, an NHWC round trip, a layer norm, and
    attention with copied heads.

    Every second block has source lines of its own, as unrolled code has; the others share theirs, as a loop does.
    """
    builder = _Builder()
    with FakeTensorMode():
        x = builder.input("x", (BATCH, CHANNELS, SIDE, SIDE), InputKind.ARGUMENT)
        block = 0
        while len(builder.graph.nodes) < nodes:
            x = builder.block(x, block)
            block += 1
        builder.graph.output((x,))
    graph = CapturedGraph(
        graph_id="0/0",
        origin="synthetic",
        train=False,
        # Lazy, because generating Python for 100,000 nodes would take more time and memory than their analysis.
        aten=_LazyGraphModule(nn.Module(), builder.graph),
        inputs=tuple(builder.inputs),
        sites=builder.sites,
        phases=dict.fromkeys(builder.sites, Phase.FORWARD),
        outputs_visible=(x.name,),
    )
    return Capture(graphs=(graph,))


class _Builder:
    """An FX graph whose values are computed as they are added, under the fake mode that is active."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.inputs: list[GraphInput] = []
        self.sites: dict[str, CallSite] = {}
        self._last_input: fx.Node | None = None
        self._module = "model"
        self._line = 0

    def block(self, x: fx.Node, number: int) -> fx.Node:
        """One block of about thirty operators on the image `x`, which it returns changed."""
        self._module = f"model.blocks.{number}"
        self._line = 1000 * number if number % 2 else 0
        width = CHANNELS // HEADS
        kernel, shift = self.weight(CHANNELS, CHANNELS, 3, 3), self.weight(CHANNELS)
        y = self.call(aten.convolution.default, x, kernel, shift, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        y = self.call(aten.relu.default, y)
        y = self.call(aten.permute.default, y, [0, 2, 3, 1])
        y = self.copy(y)
        normed = self.call(
            aten.native_layer_norm.default, y, [CHANNELS], self.weight(CHANNELS), self.weight(CHANNELS), 1e-5
        )
        y = self.call(operator.getitem, normed, 0)
        rows = self.call(aten.view.default, y, [BATCH * LENGTH, CHANNELS])
        qkv = self.linear(rows, 3 * CHANNELS)
        qkv = self.call(aten.view.default, qkv, [BATCH, LENGTH, 3, HEADS, width])
        qkv = self.call(aten.permute.default, qkv, [2, 0, 3, 1, 4])
        heads = [self.copy(self.call(aten.select.int, qkv, 0, index)) for index in range(3)]
        query, key, value = (self.call(aten.view.default, head, [-1, LENGTH, width]) for head in heads)
        scores = self.call(aten.bmm.default, query, self.call(aten.transpose.int, key, 1, 2))
        weights = self.call(aten._softmax.default, self.call(aten.mul.Tensor, scores, 0.25), -1, False)
        mixed = self.call(aten.view.default, self.call(aten.bmm.default, weights, value), [BATCH, HEADS, LENGTH, width])
        mixed = self.copy(self.call(aten.transpose.int, mixed, 1, 2))
        rows = self.call(aten.gelu.default, self.linear(self.call(aten.view.default, mixed, [-1, CHANNELS]), CHANNELS))
        image = self.call(aten.view.default, rows, [BATCH, SIDE, SIDE, CHANNELS])
        return self.call(aten.add.Tensor, x, self.call(aten.permute.default, image, [0, 3, 1, 2]))

    def input(self, name: str, shape: tuple[int, ...], kind: InputKind) -> fx.Node:
        """A placeholder, before all operators as tracing leaves them."""
        with self.graph.inserting_after(self._last_input) if self._last_input else contextlib.nullcontext():
            node = self.graph.placeholder(name)
        self._last_input = node
        node.meta["val"] = torch.empty(shape)
        path = f"{self._module}.{node.name}" if kind is InputKind.PARAMETER else f"args[{name!r}]"
        self.inputs.append(GraphInput(node.name, path, kind))
        self.sites[node.name] = UNKNOWN_SITE
        return node

    def weight(self, *shape: int) -> fx.Node:
        """A parameter."""
        return self.input("weight", shape, InputKind.PARAMETER)

    def linear(self, rows: fx.Node, width: int) -> fx.Node:
        """`nn.Linear` as eager dispatches it."""
        transposed = self.call(aten.t.default, self.weight(width, CHANNELS))
        return self.call(aten.addmm.default, self.weight(width), rows, transposed)

    def copy(self, value: fx.Node) -> fx.Node:
        """`.contiguous()`, as eager dispatches it on a tensor that is not."""
        return self.call(aten.clone.default, value, memory_format=torch.contiguous_format)

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        """One operator at the next line, with its value."""
        node = self.graph.call_function(target, args, kwargs)
        node.meta["val"] = target(*fx.map_arg(args, lambda argument: argument.meta["val"]), **kwargs)
        self._line += 1
        self.sites[node.name] = CallSite("model.py", self._line, "forward", self._module)
        return node
