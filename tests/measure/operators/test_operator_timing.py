"""Times of two layouts: rounds that must agree, and operands that stay in the caches."""

from __future__ import annotations

import itertools

import pytest
import torch

from frx_graph.facts.operator_signature import OperatorSignature, TensorSpec
from frx_graph.measure.operators.operator_call import make_argument_sets
from frx_graph.measure.operators.operator_inputs import OperandPool
from frx_graph.measure.operators.operator_measurement import LayoutTimes
from frx_graph.measure.operators.operator_timing import compare_rounds


@pytest.mark.parametrize(
    ("plain", "channels_last", "steady"),
    [
        ([2.0, 2.1], [1.0, 1.0], True),
        ([2.0, 0.9], [1.0, 1.0], False),
        ([1.9, 1.1], [1.0, 1.0], False),
        ([1.0, 1.0], [1.0, 1.0], False),
        ([1.0, 1.0], [2.0, 2.1], True),
    ],
)
def test_rounds_must_agree_by_more_than_they_differ(
    plain: list[float], channels_last: list[float], steady: bool
) -> None:
    found = compare_rounds([[each] * 3 for each in plain], [[each] * 3 for each in channels_last])
    assert found.steady is steady


def test_one_round_proves_nothing() -> None:
    assert not compare_rounds([[2.0] * 9], [[1.0] * 9]).steady


def test_disturbed_runs_do_not_count() -> None:
    found = compare_rounds([[1.0, 1.0, 9.0], [1.0, 1.0]], [[2.0, 2.0], [2.0, 2.0, 30.0]])
    assert found == LayoutTimes(1.0, 2.0, steady=True)


def test_unsteady_times_show_no_difference() -> None:
    dropped = LayoutTimes(1.0, 3.0, steady=False).drop_unsteady()
    assert (dropped.plain_seconds, dropped.channels_last_seconds) == (2.0, 2.0)
    assert LayoutTimes(1.0, 3.0).drop_unsteady() == LayoutTimes(1.0, 3.0)
    assert LayoutTimes(None, 3.0, steady=False).drop_unsteady() == LayoutTimes(None, 3.0, steady=False)


def test_sums_are_as_steady_as_their_parts() -> None:
    assert LayoutTimes(1.0, 2.0) + LayoutTimes(3.0, None, steady=False) == LayoutTimes(4.0, None, steady=False)


@pytest.mark.parametrize("resident", [False, True])
def test_operands_of_a_program_that_fits_into_the_caches_are_used_again(resident: bool) -> None:
    spec = TensorSpec((4, 4), (4, 1), torch.float32, "cpu")
    pool = OperandPool(1 << 16)
    sets = make_argument_sets(OperatorSignature("aten.mm.default", (spec, spec)), pool, resident=resident)
    weights = {args[1].data_ptr() for args, _ in itertools.islice(sets, 8)}
    assert (len(weights) == 1) is resident
