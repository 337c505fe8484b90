from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from frx_graph.trials.numerics import Difference, Multipliers, describe, value_difference

ALLOWED = Multipliers(full=2.0, half=3.0)


def drawn(seed: int = 0, *, scale: float = 1.0, count: int = 1000) -> Tensor:
    return scale * torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def found(exact: Tensor, ours: Tensor, theirs: Tensor) -> str | None:
    return value_difference(ours, theirs, exact, ALLOWED)


def rounded(exact: Tensor, seed: int, error: float = 1e-7) -> Tensor:
    """As a kernel that is off by about `error` of each value would compute it, in fp32."""
    return (exact * (1 + error * drawn(seed, count=exact.numel()))).float()


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_another_order_of_the_same_sums_is_as_good(scale: float) -> None:
    exact = drawn(scale=scale)
    assert found(exact, rounded(exact, 1), rounded(exact, 2)) is None


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_an_error_of_a_thousandth_is_found_whatever_the_magnitude(scale: float) -> None:
    exact = drawn(scale=scale)
    assert "root mean square" in str(found(exact, rounded(exact, 1), rounded(exact * 1.001, 2)))


def test_one_wrong_element_of_a_million_is_found() -> None:
    exact = drawn(count=10**6)
    wrong = rounded(exact, 2)
    wrong[7] += 0.01
    assert "largest" in str(found(exact, rounded(exact, 1), wrong))


def test_half_precision_may_be_as_wrong_as_the_baseline_is() -> None:
    exact = drawn()
    ours = exact.bfloat16()
    assert found(exact, ours, (exact * (1 + 4e-3 * drawn(3))).bfloat16()) is None
    assert found(exact, ours, (exact * 1.05).bfloat16()) is not None


@pytest.mark.parametrize(("value", "kind"), [(torch.nan, "NaN"), (torch.inf, "+Inf"), (-torch.inf, "-Inf")])
def test_what_is_not_finite_is_so_in_both_or_in_neither(value: float, kind: str) -> None:
    exact = drawn()
    ours, theirs = rounded(exact, 1), rounded(exact, 2)
    theirs[3] = value
    assert str(found(exact, ours, theirs)).startswith(f"{kind} in 1 values")
    ours[3] = value
    assert found(exact, ours, theirs) is None


def test_integers_and_truth_values_are_equal_or_not() -> None:
    ours, theirs = torch.arange(5), torch.tensor([0, 1, 2, 4, 3])
    assert value_difference(ours, ours.clone(), None, ALLOWED) is None
    assert value_difference(ours, theirs, None, ALLOWED) == "2 of 5 values differ"
    assert value_difference(ours > 2, theirs > 2, None, ALLOWED) is None


@pytest.mark.parametrize("other", [torch.zeros(3, dtype=torch.float64), torch.zeros(4)])
def test_another_shape_or_type_is_another_result(other: Tensor) -> None:
    assert "instead of (3,) float32" in str(value_difference(torch.zeros(3), other, None, ALLOWED))


def test_without_float64_both_may_differ_by_the_tolerance() -> None:
    ours = drawn().float()
    assert value_difference(ours, ours * (1 + 1e-5), None, ALLOWED) is None
    assert value_difference(ours, ours * (1 + 1e-3), None, ALLOWED) is not None


def test_complex_values() -> None:
    exact = torch.complex(drawn(1), drawn(2))
    ours = exact.to(torch.complex64)
    assert found(exact, ours, ours * 1.00000012) is None
    assert found(exact, ours, ours.conj()) is not None


def test_nothing_is_as_good_as_nothing() -> None:
    assert value_difference(torch.empty(0), torch.empty(0), torch.empty(0), ALLOWED) is None


@given(st.integers(0, 2**31), st.floats(1e-8, 1e6))
def test_a_result_is_as_good_as_itself(seed: int, scale: float) -> None:
    exact = drawn(seed, scale=scale, count=20)
    ours = exact.float()
    assert found(exact, ours, ours.clone()) is None


def test_many_differences_are_counted() -> None:
    differences = tuple(Difference(f"output {n}", 1, "wrong") for n in range(5))
    assert list(describe(differences)) == [
        "output 0, draw 1: wrong",
        "output 1, draw 1: wrong",
        "output 2, draw 1: wrong",
        "and 2 more",
    ]
