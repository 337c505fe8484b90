"""Names of kernels for a person."""

from __future__ import annotations

import pytest

from frx_graph.evidence.kernel_name import shorten_signature


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("void <unnamed>::gemm<64>(const float *, int)", "gemm<64>"),
        ("unnamed>::naive(const float *, float *)", "naive"),
        ("(anonymous namespace)::copy(int (*)(float), int)", "copy"),
        ("void at::native::reduce<512, Ops<float (float)>>(Ops)", "reduce<512, Ops<float (float)>>"),
        ("void format::native::run<int>(float *)", "format::native::run<int>"),
        ("void vec<my_unnamed>::run(int)", "vec<my_unnamed>::run"),
        ("void at::native::(anonymous namespace)::copy<4>(int)", "copy<4>"),
        ("outer(int)::{lambda()#1}", "outer(int)::{lambda()#1}"),
        ("void f<g(Base &)::[lambda() (instance 3)]>(int)", "f<g(Base &)::[lambda() (instance 3)]>"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
        ("()", "()"),
        ("a)", "a)"),
        ("", ""),
    ],
)
def test_a_name_without_its_signature(name: str, shown: str) -> None:
    assert shorten_signature(name) == shown
