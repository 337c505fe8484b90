"""What a trial goes by, from the policy."""

from __future__ import annotations

import math

import pytest

from frx_graph.trials.policy import TUNE_POLICY, TrialPolicy
from frx_graph.trials.protocol import make_protocol


def test_thresholds_are_logarithms_of_ratios() -> None:
    rule = make_protocol(TrialPolicy(minimum_speedup=0.25, process_bias=0.01, pair_agreement="minimum"))
    assert rule.minimum == rule.agreement == math.log(1.25)
    assert rule.process_bias == 0.01
    assert rule.alpha == 0.001


def test_pairs_may_have_to_agree_by_half_or_in_direction_only() -> None:
    half, direction = make_protocol(TrialPolicy()), make_protocol(TUNE_POLICY)
    assert (half.minimum, half.agreement) == (math.log1p(0.03), math.log1p(0.03) / 2)
    assert (direction.minimum, direction.agreement) == (math.log1p(0.08), 0.0)


def test_a_trial_takes_432_steps_in_36_quads() -> None:
    assert (make_protocol(TrialPolicy()).quads, make_protocol(TrialPolicy()).steps) == (36, 432)


def test_extra_pairs_are_added_once_with_half_the_error() -> None:
    rule = make_protocol(TrialPolicy())
    extended = rule.extend()
    assert extended is not None
    assert (rule.process_pairs, extended.process_pairs, extended.added_pairs) == (6, 12, 6)
    assert (extended.alpha, extended.pairs_alpha) == (rule.alpha / 2, rule.pairs_alpha / 2)
    assert extended.extend() is None


def test_one_process_has_no_extra_pairs() -> None:
    assert make_protocol(TrialPolicy(), in_process=True).extend() is None
    assert make_protocol(TrialPolicy(extra_process_pairs=0)).extend() is None


def test_alpha_is_divided_by_the_candidates() -> None:
    assert make_protocol(TrialPolicy(), candidates=12).alpha == 0.001 / 12
    with pytest.raises(ValueError, match="0 candidates"):
        make_protocol(TrialPolicy(), candidates=0)


def test_one_process_measures_as_many_quads_under_a_higher_threshold() -> None:
    apart, together = make_protocol(TrialPolicy()), make_protocol(TrialPolicy(), in_process=True)
    assert together.process_pairs == 1
    assert together.quads == apart.quads
    assert together.minimum == 2 * together.agreement == math.log1p(0.03 + 0.10)
    assert together.process_bias == 0.0  # the extra stands for it
