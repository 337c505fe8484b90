"""Group norms stay plain where torch's kernel for channels-last images keeps fewer digits, and only there."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import frx_graph
from frx_graph.capture.captured_graph import Phase
from frx_graph.compiler.eager import EagerPlan
from frx_graph.compiler.plans import make_current_plan
from frx_graph.compiler.rewrite_pipeline import RewrittenGraph

REASON = "torch computes group norms less exactly in channels-last"


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(8, 8), nn.SiLU(), nn.Conv2d(8, 8, 3)).eval()


def far_from_zero(dtype: torch.dtype = torch.float32) -> Tensor:
    torch.manual_seed(1)
    return (torch.randn(2, 3, 10, 9) + 300).to(dtype)


def norm_of(rewrite: Any, model: nn.Module, x: Tensor) -> tuple[int, bool, tuple[str, ...]]:
    """The channel stride of the image that the norm reads; whether the reason was given; what was applied."""
    graph = rewrite(model, x).graph(Phase.FORWARD)
    (norm,) = graph.after.find_nodes(op="call_function", target=torch.ops.aten.native_group_norm.default)
    stride = norm.args[0].meta["val"].stride(1)
    refused = any(refusal.reason == REASON for refusal in graph.done.refused)
    return stride, refused, tuple(candidate.rewrite for candidate in graph.done.applied)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_norm_stays_plain_between_converted_convolutions(rewrite: Any, dtype: torch.dtype) -> None:
    stride, refused, applied = norm_of(rewrite, network().to(dtype), far_from_zero(dtype))
    assert (stride, refused) == (8 * 7, True)
    assert "propagate_layout" in applied


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_its_place_in_a_region_is_its_neighbours(dtype: torch.dtype) -> None:
    """Where rounding is coarser than what the kernel loses."""
    torch._dynamo.reset()
    model, x = network().to(dtype), torch.randn(2, 3, 10, 9, dtype=dtype)
    done: list[RewrittenGraph] = []
    plan = EagerPlan(make_current_plan("all"), done.append, fail)
    with torch.no_grad():
        torch.compile(model, backend=plan)(x)
    (layout,) = (candidate for candidate in done[0].applied if candidate.rewrite == "propagate_layout")
    assert "native_group_norm" in layout.nodes
    assert not any(refusal.reason == REASON for refusal in done[0].refused)


def fail(error: Exception) -> None:
    raise error


def test_the_programs_own_channels_last_is_kept(rewrite: Any) -> None:
    model = network().to(memory_format=torch.channels_last)
    # Not far from zero: there what the kernel loses depends on the last bits of what it is given.
    image = torch.randn(2, 3, 10, 9).contiguous(memory_format=torch.channels_last)
    stride, _, _ = norm_of(rewrite, model, image)
    assert stride == 1


def off(compiled: Any, model: nn.Module, x: Tensor) -> float:
    with torch.no_grad():
        return float((compiled(x) - copy.deepcopy(model).double()(x.double())).abs().max())


@pytest.mark.parametrize("how", ["backend", "compile"])
@pytest.mark.parametrize("inner", ["eager", pytest.param("inductor", marks=pytest.mark.integration)])
def test_it_is_as_exact_as_in_eager(how: str, inner: str) -> None:
    torch._dynamo.reset()
    model, x = network(), far_from_zero()
    options = {"inner": inner, "plan": "all"}
    eager = off(model, model, x)
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)
    assert off(last, model, x.contiguous(memory_format=torch.channels_last)) > 20 * eager, "or there is nothing to test"
    if how == "backend":
        compiled = torch.compile(model, backend="frx", options=options)
    else:
        compiled = frx_graph.compile(copy.deepcopy(model), options=options)
    assert off(compiled, model, x) < 4 * eager
