from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from frx_graph.trials.numerics import (
    Difference,
    Errors,
    Multipliers,
    compute_least_sizes,
    describe_differences,
    is_repeated,
    judge_value,
    measure_rounding_noise,
)

ALLOWED = Multipliers(full=2.0, half=3.0)


def value_difference(*values: Any) -> str | None:
    return judge_value(*values).difference


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
    assert list(describe_differences(differences)) == [
        "output 0, draw 1: wrong",
        "output 1, draw 1: wrong",
        "output 2, draw 1: wrong",
        "and 2 more",
    ]


def test_a_result_that_rounding_decides_excuses_itself_only() -> None:
    chaotic, calm = torch.randn(50), torch.randn(50)
    reference = {"output 0": chaotic.double(), "output 1": calm.double()}
    runs = [{"output 0": torch.randn(50), "output 1": calm * (1 + 1e-6)} for _ in range(3)]
    noise = measure_rounding_noise(reference, runs)
    allowed = Multipliers(2.0, 3.0)
    assert value_difference(chaotic, torch.randn(50), reference["output 0"], allowed, noise["output 0"]) is None
    wrong = calm + 0.01 * torch.randn(50)
    assert value_difference(calm, wrong, reference["output 1"], allowed, noise["output 1"]) is not None


def test_a_gradient_that_rounding_decides_excuses_others_a_little() -> None:
    chaotic, calm = torch.randn(50), torch.randn(50)
    reference = {"gradient of a": chaotic.double(), "gradient of b": calm.double()}
    runs = [{"gradient of a": torch.randn(50), "gradient of b": calm * (1 + 1e-6)}]
    noise = measure_rounding_noise(reference, runs)
    size = float(calm.square().mean().sqrt())
    assert noise["gradient of b"].mean == pytest.approx(0.02 * size, rel=1e-3)
    allowed = Multipliers(2.0, 3.0)
    for by, fine in ((0.03, True), (0.06, False)):
        other = calm + by * size * torch.ones(50)
        found = value_difference(calm, other, reference["gradient of b"], allowed, noise["gradient of b"])
        assert (found is None) is fine


def test_half_precision_shows_by_itself_what_rounding_does() -> None:
    exact = drawn()
    ours, wrong = exact.bfloat16(), (exact * 1.05).bfloat16()
    assert value_difference(ours, wrong, exact, ALLOWED, Errors(1.0, 1.0)) is not None
    # Unless it is off by far more.
    assert value_difference(ours, wrong, exact + 9, ALLOWED, Errors(0.1, 0.1)) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_error_that_rounding_does_not_make_excuses_nothing(dtype: torch.dtype) -> None:
    exact = drawn()
    ours, wrong = exact.to(dtype), (exact + 0.5).to(dtype)
    assert "more than rounding explains" in str(value_difference(ours, wrong, exact + 9, ALLOWED))
    assert "more than rounding explains" in str(value_difference(ours, wrong, exact + 9, ALLOWED, Errors(1e-2, 1e-1)))
    assert value_difference(ours, ours * 1, exact + 9, ALLOWED) is None
    # One element is enough.
    other = exact.clone()
    other[3] += 9
    one = ours.clone()
    one[3] += 9
    assert "more than rounding explains" in str(value_difference(ours, one, other, ALLOWED))


def test_a_reference_that_is_not_finite_excuses_nothing() -> None:
    exact = drawn()
    ours = rounded(exact, 1)
    for other in (torch.full_like(exact, torch.nan), exact[:-1]):
        assert "not finite in float64, or of another shape" in str(value_difference(ours, ours + 0.5, other, ALLOWED))
        assert value_difference(ours, rounded(exact, 2), other, ALLOWED) is None


def test_an_error_that_rounding_makes_is_one() -> None:
    exact = drawn()
    ours, theirs = rounded(exact, 1, error=0.01), rounded(exact, 2, error=0.01)
    assert found(exact, ours, theirs) is not None
    assert value_difference(ours, theirs, exact, ALLOWED, Errors(0.01, 0.05)) is None


def test_what_is_small_beside_others_may_be_rounding() -> None:
    exact = drawn(scale=1e-9)
    ours, theirs = drawn(1, scale=1e-8).float(), drawn(2, scale=1e-8).float()
    sizes = compute_least_sizes({"gradient of a": torch.ones(3), "gradient of b": exact, "output 0": exact})
    assert sizes == {"gradient of a": 1.0, "gradient of b": 1.0}
    assert value_difference(ours, theirs, exact, ALLOWED, None, sizes["gradient of b"]) is None
    assert value_difference(ours, theirs, exact, ALLOWED) is not None


@pytest.mark.parametrize(
    ("by", "dtype", "same"),
    [
        (1e-3, torch.float32, True),
        (0.05, torch.float32, False),
        (0.05, torch.bfloat16, True),
        (0.3, torch.bfloat16, False),
    ],
)
def test_two_runs_are_the_same_but_for_the_order_of_sums(by: float, dtype: torch.dtype, same: bool) -> None:
    first = drawn()
    assert is_repeated(first.to(dtype), (first + by * drawn(1)).to(dtype)) is same
    assert is_repeated(1e-9 * first.to(dtype), 1e-9 * drawn(1).to(dtype))


def test_integers_and_what_is_not_finite_repeat_exactly() -> None:
    assert is_repeated(torch.arange(3), torch.arange(3))
    assert not is_repeated(torch.arange(3), torch.tensor([0, 1, 3]))
    assert is_repeated(torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.nan]))
    assert not is_repeated(torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.inf]))


def test_what_overflows_by_rounding_excuses_nothing() -> None:
    x = torch.randn(8)
    found = measure_rounding_noise({"output 0": x.double()}, [{"output 0": torch.full((8,), math.inf)}])
    assert found["output 0"].largest == 0.0
