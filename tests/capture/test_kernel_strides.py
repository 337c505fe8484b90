"""Traced results have the strides of their kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from frx_graph.capture.kernel_strides import (
    KernelStrides,
    correct_strides,
    knows_result_strides,
    measure_results,
    merge_forced_strides,
    restride_fake,
)
from frx_graph.support.torch_internals import load_force_strides

FORCED = load_force_strides()


def image(*shape: int) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(shape or (2, 8, 6, 6)).contiguous(memory_format=torch.channels_last)


def layer_norm_gradients(gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    _, mean, deviation = torch.ops.aten.native_layer_norm.default(x, [x.shape[-1]], weight, weight, 1e-5)
    found: tuple[Tensor, ...] = torch.ops.aten.native_layer_norm_backward.default(
        gradient, x, [x.shape[-1]], mean, deviation, weight, weight, [True, True, True]
    )
    return found


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "channel shuffle": (lambda x: torch.ops.aten.channel_shuffle.default(x, 2), (image(),)),
    "copysign of a broadcast": (lambda x: torch.copysign(x.t(), torch.ones(6, 1)), (torch.randn(5, 6),)),
    "roll": (lambda x: torch.roll(x, 1, 0), (image(),)),
    "floor divide": (lambda x: torch.floor_divide(x, torch.tensor(3.0)), (torch.randn(5, 6).t(),)),
    "batch norm of a permuted image": (
        lambda x: torch.ops.aten.native_batch_norm.default(x, None, None, None, None, True, 0.1, 1e-5)[0],
        (torch.randn(2, 3, 4, 5).permute(3, 2, 1, 0),),
    ),
    "layer norm's gradients": (
        layer_norm_gradients,
        (torch.randn(2, 8, 3).transpose(1, 2), torch.randn(2, 3, 8), torch.randn(8)),
    ),
}


def trace(program: Callable[..., Any], args: tuple[Tensor, ...], mode: str = "fake") -> fx.GraphModule:
    with KernelStrides():
        graph: fx.GraphModule = make_fx(program, tracing_mode=mode)(*args)
    return graph


def list_outputs(graph: fx.GraphModule) -> list[fx.Node]:
    (outputs,) = graph.graph.output_node().args
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def list_tensors(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_traced_result_has_the_strides_of_its_kernel(name: str) -> None:
    program, args = PROGRAMS[name]
    real = list_tensors(program(*args))
    plain = make_fx(program, tracing_mode="fake")(*args)
    assert [node.meta["val"].stride() for node in list_outputs(plain)] != [value.stride() for value in real]
    graph = trace(program, args)
    assert [node.meta["val"].stride() for node in list_outputs(graph)] == [value.stride() for value in real]
    merge_forced_strides(graph.graph)
    graph.graph.lint()
    graph.recompile()
    assert graph.graph.find_nodes(op="call_function", target=FORCED) == []
    assert [node.meta["val"].stride() for node in list_outputs(graph)] == [value.stride() for value in real]
    for ours, value in zip(list_tensors(graph(*args)), real, strict=True):
        assert torch.equal(ours, value)
        assert ours.stride() == value.stride()


def test_the_operator_carries_the_corrected_values() -> None:
    program, args = PROGRAMS["layer norm's gradients"]
    graph = trace(program, args)
    merge_forced_strides(graph.graph)
    (call,) = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.native_layer_norm_backward.default)
    assert [value.stride() for value in call.meta["val"]] == [value.stride() for value in program(*args)]


@pytest.mark.parametrize("args", [(torch.randn(2, 8, 6, 6),), (image(2, 8, 1, 1),)], ids=["plain", "one pixel"])
def test_what_fakes_are_right_about_is_left_alone(args: tuple[Tensor, ...]) -> None:
    graph = trace(lambda x: F.channel_shuffle(x, 2).sin(), args)
    assert graph.graph.find_nodes(op="call_function", target=FORCED) == []


def test_the_order_holds_for_symbolic_sizes() -> None:
    program, args = PROGRAMS["channel shuffle"]
    graph = trace(program, args, "symbolic")
    (output,) = list_outputs(graph)
    assert output.meta["val"].is_contiguous(memory_format=torch.channels_last)
    merge_forced_strides(graph.graph)
    graph.recompile()
    other = image(3, 4, 5, 7)
    assert torch.equal(graph(other), program(other))
    assert graph(other).stride() == program(other).stride()


def test_real_tensors_are_not_corrected() -> None:
    x = image()
    with KernelStrides():
        shuffled = F.channel_shuffle(x, 2)
    assert shuffled.stride() == x.stride()


def test_a_copy_that_the_program_makes_stays() -> None:
    graph = trace(lambda x: nn.functional.relu(x).transpose(0, 1).contiguous(), (torch.randn(3, 4),))
    merge_forced_strides(graph.graph)
    assert len(graph.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)) == 1


def test_strides_that_a_program_forces_stay() -> None:
    graph = make_fx(lambda x: FORCED(x.sin(), x.t().contiguous().t().stride()), tracing_mode="fake")(torch.randn(3, 4))
    merge_forced_strides(graph.graph)
    assert len(graph.graph.find_nodes(op="call_function", target=FORCED)) == 1


def test_random_operators_are_measured_without_drawing() -> None:
    before = torch.random.get_rng_state()
    measure_results(torch.ops.aten.normal.Tensor_Tensor, (torch.zeros(3, 4), torch.ones(4, 3).t()), {})
    assert torch.equal(torch.random.get_rng_state(), before)
    generator = torch.Generator()
    args = (torch.zeros(3, 4), torch.ones(4, 3).t())
    assert measure_results(torch.ops.aten.normal.Tensor_Tensor, args, {"generator": generator}) is None


def test_a_call_that_cannot_be_run_keeps_its_fake() -> None:
    call = torch.ops.aten.channel_shuffle.default
    args = (image(2, 8, 6, 6).to(torch.bool), 3)
    assert not knows_result_strides(call, args, {})
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(args[0])
        assert correct_strides(call, (fake, 3), {}, fake, restride_fake) is fake


def test_a_result_whose_size_depends_on_values_keeps_its_fake() -> None:
    """Rows are chosen by a mask, which is made up."""
    x, mask = torch.randn(4, 6).t(), torch.tensor([True, False, True, False, False, False])
    call = torch.ops.aten.index.Tensor
    result = call(x, [mask])
    assert correct_strides(call, (x, [mask]), {}, result, restride_fake) is result


def test_sparse_operands_are_left_alone() -> None:
    with FakeTensorMode() as mode, KernelStrides():
        divided = torch.floor_divide(mode.from_tensor(torch.eye(4).to_sparse()), 2)
    assert divided.layout is torch.sparse_coo


def test_operands_that_are_too_large_are_not_made() -> None:
    call = torch.ops.aten.roll.default
    with FakeTensorMode():
        large = torch.empty(1, 4, 1 << 15, 1 << 15).contiguous(memory_format=torch.channels_last)
    assert measure_results(call, (large, [1], [2]), {}) is None
    assert not knows_result_strides(call, (large, [1], [2]), {})


def test_sizes_that_depend_on_data_keep_their_fakes() -> None:
    def program(x: Tensor, mask: Tensor) -> Tensor:
        chosen = torch.index_select(x, 1, torch.nonzero(mask).squeeze(1))
        return torch.fmax(chosen, chosen * 2)

    graph = trace(program, (torch.randn(4, 10, 8), torch.arange(10) % 2 == 0), "symbolic")
    assert graph.graph.find_nodes(op="call_function", target=FORCED) == []


def test_a_failure_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    call, args = torch.ops.aten.roll.default, (image(3, 4, 5, 6), [1], [2])

    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("full")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "full", fail)
        assert measure_results(call, args, {}) is None
    assert measure_results(call, args, {}) is not None
