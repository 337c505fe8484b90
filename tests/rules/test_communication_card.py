"""Kernels of each library communicate, and others with similar names do not."""

from __future__ import annotations

import re

import pytest

from frx_graph.analyzers.trace.kernel_names import KernelFamily, classify_kernel_family, extract_qualified_name
from frx_graph.errors import ContractError
from frx_graph.rules.card_file import parse_card
from frx_graph.rules.communication_card import CommunicationCard, load_communication

NAMES = [(card.id, name) for card in load_communication() for name in card.names]


@pytest.mark.parametrize(("library", "name"), NAMES)
def test_the_names_of_each_card_communicate(library: str, name: str) -> None:
    assert classify_kernel_family(name) is KernelFamily.COMMUNICATION
    assert classify_kernel_family(name.replace("(anonymous namespace)", "<unnamed>")) is KernelFamily.COMMUNICATION


def test_every_pattern_finds_a_name_of_its_card() -> None:
    for card in load_communication():
        for pattern in card.functions:
            assert any(re.search(pattern, extract_qualified_name(name)) for name in card.names), (card.id, pattern)


@pytest.mark.parametrize(
    "name",
    [
        "void cutlass::device_kernel<nccl::Fused>(int)",
        "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)",
        "void moe::dispatch_kernel<float>(float*)",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(x)",
        "void at::native::multi_tensor_apply_kernel<4>(int)",
        "triton_red_fused_all_reduce_0",
        "my_barrier_kernel_helper(int)",
        "void combine<float>(float*)",
    ],
)
def test_other_kernels_do_not(name: str) -> None:
    assert classify_kernel_family(name) is not KernelFamily.COMMUNICATION


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("triton_poi_fused_addmm_relu_0", KernelFamily.ELEMENTWISE),
        ("triton_red_fused_convolution_mean_1", KernelFamily.REDUCTION),
        ("triton_per_fused__scaled_dot_product_attention_2", KernelFamily.REDUCTION),
        ("triton_for_fused_mm_3", KernelFamily.ELEMENTWISE),
        ("triton_tem_fused_mm_4", KernelFamily.GEMM),
        ("triton_poi_fused_clone_5", KernelFamily.COPY),
    ],
)
def test_generated_loops_are_what_they_are_not_what_they_fused(name: str, family: KernelFamily) -> None:
    assert classify_kernel_family(name) is family


def test_a_pattern_that_is_none_is_refused() -> None:
    card = 'id: x\ntitle: X\nfunctions: ["("]\nsource: here\nnames: [a]\n'
    with pytest.raises(ContractError, match="cannot be compiled"):
        parse_card(card, "x.yaml", CommunicationCard, "id")
