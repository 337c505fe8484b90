"""Kernels, fakes and decompositions are compared in many strides."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

from frx_graph.capture.stride_table import CallClass, load_stride_table
from frx_graph.measure.operators.contract_cases import Case, Operand
from frx_graph.measure.operators.contract_table import STRIDE_CASES
from frx_graph.measure.operators.operator_database import OverloadCall, collect_case_calls, is_comparable
from frx_graph.measure.operators.stride_comparison import (
    ComparedCall,
    compare_strides,
    summarize_comparison,
    vary_strides,
)


def make_call(target: str, *args: object) -> OverloadCall:
    namespace, packet, overload = target.split(".")
    leaves, spec = pytree.tree_flatten((args, {}))
    return OverloadCall(getattr(getattr(getattr(torch.ops, namespace), packet), overload), tuple(leaves), spec)


def test_a_kernel_that_follows_its_operand_and_a_fake_that_does_not() -> None:
    seen = summarize_comparison(
        compare_strides([make_call("aten.channel_shuffle.default", torch.randn(2, 4, 3, 3), 2)])
    )
    kinds = seen["aten.channel_shuffle.default"]
    assert (kinds[CallClass.PLAIN], kinds[CallClass.CHANNELS_LAST]) == (True, False)


def test_a_kernel_like_its_fake() -> None:
    seen = summarize_comparison(compare_strides([make_call("aten.sin.default", torch.randn(2, 4, 3, 3))]))
    assert set(seen["aten.sin.default"].values()) == {True}


def test_a_decomposition_that_differs_counts() -> None:
    """`fmax` of a transposed operand: its fake is right, what Inductor decomposes it to is not (torch 2.15)."""
    call = make_call("aten.fmax.default", torch.randn(5, 10, 5), torch.randn(10, 5))
    compared = list(compare_strides([call]))
    assert any(not each.agrees for each in compared)
    assert all(each.fake == each.kernel for each in compared if each.operands[0] == (50, 1, 10))


@pytest.mark.parametrize(
    ("shape", "fake", "agrees"), [((2, 1, 3), (3, 3, 1), True), ((2, 2, 3), (6, 1, 2), False), ((0, 2), (9, 9), True)]
)
def test_dimensions_of_size_one_and_no_elements_do_not_count(
    shape: tuple[int, ...], fake: tuple[int, ...], agrees: bool
) -> None:
    kernel = tuple(torch.empty(shape).stride())
    if shape == (2, 1, 3):
        fake = (3, 1, 1)
    compared = ComparedCall("aten.sin.default", ((1,),), CallClass.OTHER, (shape,), (kernel,), (fake,))
    assert compared.agrees is agrees


def test_tensors_are_varied_one_by_one_and_together_with_their_values() -> None:
    one, two = torch.randn(3, 4), torch.randn(3, 4)
    varied = list(vary_strides([one, 7, two]))
    assert all(torch.equal(leaves[0], one) and leaves[1] == 7 and torch.equal(leaves[2], two) for leaves in varied)
    strides = {(leaves[0].stride(), leaves[2].stride()) for leaves in varied}
    assert {((4, 1), (4, 1)), ((1, 3), (4, 1)), ((4, 1), (1, 3)), ((1, 3), (1, 3))} <= strides


def test_refused_calls_are_left_out() -> None:
    assert list(compare_strides([make_call("aten.channel_shuffle.default", torch.randn(2, 3, 3, 3), 2)])) == []


def test_cases_of_another_torch_are_left_out() -> None:
    assert list(collect_case_calls([Case("aten.no_such_operator.default", "any", (Operand((2, 3)),))], "cpu")) == []


@pytest.mark.parametrize(
    ("overload", "comparable"),
    [
        (torch.ops.aten.sin.default, True),
        (torch.ops.aten.sin_.default, False),
        (torch.ops.aten.view.default, False),
        (torch.ops.aten.empty_like.default, False),
        (torch.ops.prims.fma.default, False),
    ],
)
def test_operators_that_can_be_compared(overload: torch._ops.OpOverload, comparable: bool) -> None:
    assert is_comparable(overload) is comparable


def list_small_cases() -> list[Case]:
    return [case for case in STRIDE_CASES if case.target in load_stride_table().differ]


@pytest.mark.parametrize("case", list_small_cases(), ids=lambda case: f"{case.target} {case.name}")
def test_the_shipped_table_says_what_is_measured_here(case: Case) -> None:
    compared = list(compare_strides(collect_case_calls([case], "cpu")))
    assert compared
    agreed = load_stride_table().differ[case.target] - {CallClass.OTHER}
    assert all(call.agrees for call in compared if call.kind in agreed)
