"""What kernels are called in their source, whoever writes their names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.passes.comparison.base_name import base_name

UNNAMED = "_GLOBAL__N__0f3f8a4c_4_k_cu_8a3e9b7c"
"""As nvcc calls an unnamed namespace."""


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("scale", "scale"),
        ("_Z5scalePf", "scale"),
        ("_ZL5scalePf", "scale"),
        ("_Z12nested_loopsILi32EEvPKdPdi", "nested_loops"),
        ("_ZN2ns5innerL5scaleIfEEvPT_", "scale"),
        ("void ns::scale<float, (int)4>(float *, std::pair<int, int>)", "scale"),
        ("void <unnamed>::scale(float *)", "scale"),
        ("void (anonymous namespace)::scale<(bool)1>(T1 *)", "scale"),
        ("std::enable_if<true, void>::type ns::scale<float>(float *)", "scale"),
        (f"_ZN{len(UNNAMED)}{UNNAMED}6kernelEv", "kernel"),
        ("_Z", "_Z"),
        ("_Z9999scale", "_Z9999scale"),
        ("<>", "<>"),
    ],
)
def test_base_names(name: str, base: str) -> None:
    assert base_name(name) == base


@given(st.one_of(st.text(max_size=40), st.from_regex(r"_ZN?L?(\d{1,8}[a-zIE]{0,9}){0,4}", fullmatch=True)))
def test_anything_has_a_base_name(name: str) -> None:
    assert bool(base_name(name)) is bool(name)
