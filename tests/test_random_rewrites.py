"""Random programs compute the same after rewriting: values, gradients, strides, aliases and mutations."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis_profiles import FEW_EXAMPLES
from random_program import RandomProgram
from random_programs import programs
from rewrite_oracle import CHOSEN, FROZEN, STORED, Outcome, check_program
from smallest_program import smallest

_SETTINGS = {
    "database": None,
    # Programs are cut down by `smallest`.
    "phases": [Phase.generate],
    "suppress_health_check": list(HealthCheck),
}


def _check(program: RandomProgram, inner: str) -> None:
    verdict = check_program(program, inner)
    if verdict.outcome is not Outcome.WRONG:
        return
    small = smallest(program, lambda other: check_program(other, inner).outcome is Outcome.WRONG, most_runs=40)
    pytest.fail(f"{'; '.join(check_program(small, inner).problems or verdict.problems)}\n\n{small.source}")


@pytest.mark.parametrize("part", range(7))
@settings(FEW_EXAMPLES, max_examples=max(1, FEW_EXAMPLES.max_examples * 4 // 7), **_SETTINGS)
@given(data=st.data())
def test_rewritten_programs_are_the_same_programs(part: int, data: st.DataObject) -> None:
    _check(data.draw(programs(max_lines=8, part=part)), "eager")


@pytest.mark.integration
@pytest.mark.parametrize("part", range(2))
@settings(FEW_EXAMPLES, **_SETTINGS)
@given(data=st.data())
def test_rewritten_programs_with_frozen_weights_are_the_same(part: int, data: st.DataObject) -> None:
    _check(data.draw(programs(max_lines=8, part=7 + part)), FROZEN)


@pytest.mark.integration
@settings(FEW_EXAMPLES, **_SETTINGS)
@given(program=programs(max_lines=8, part=10))
def test_rewritten_programs_with_weights_chosen_to_be_frozen_are_the_same(program: RandomProgram) -> None:
    _check(program, CHOSEN)


@pytest.mark.integration
@settings(FEW_EXAMPLES, **_SETTINGS)
@given(program=programs(max_lines=8, part=9))
def test_rewritten_programs_with_prepacked_weights_are_the_same(program: RandomProgram) -> None:
    _check(program, STORED)


@pytest.mark.integration
@settings(FEW_EXAMPLES, **_SETTINGS)
@given(program=programs(max_lines=8, part=11))
def test_rewritten_programs_under_aot_eager_are_the_same(program: RandomProgram) -> None:
    _check(program, "aot_eager")


@pytest.mark.integration
@settings(FEW_EXAMPLES, **_SETTINGS)
@given(program=programs(max_lines=16, part=6))
def test_rewritten_programs_under_inductor_are_the_same(program: RandomProgram) -> None:
    _check(program, "inductor")
