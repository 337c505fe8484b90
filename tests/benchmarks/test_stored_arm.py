"""Which gradients may lie otherwise where weights were stored anew."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from stored_arm import gradients_that_follow

PLAIN = (12, 6, 6, 1)
ONE_OTHERWISE, OTHERWISE = (12, 6, 12, 1), (12, 1, 12, 2)
WEIGHT, OTHER, INPUT, OUTPUT = (
    "gradient of parameter m0.weight",
    "gradient of parameter m1.weight",
    "gradient of input 0",
    "output 0",
)


def observed(name: str, strides: tuple[int, ...]) -> SimpleNamespace:
    step = SimpleNamespace(values={name: torch.empty(2, 2, 1, 6)}, facts={f"strides of {name}": strides})
    return SimpleNamespace(steps=[step])


@pytest.mark.parametrize(
    ("name", "strides", "excused"),
    [
        (WEIGHT, OTHERWISE, True),
        (OTHER, ONE_OTHERWISE, True),
        (OTHER, OTHERWISE, False),
        (INPUT, ONE_OTHERWISE, True),
        (INPUT, OTHERWISE, False),
        (OUTPUT, ONE_OTHERWISE, False),
    ],
)
def test_excused_are_weights_stored_anew_and_strides_that_mean_nothing(
    name: str, strides: tuple[int, ...], excused: bool
) -> None:
    stored = frozenset({"m0.weight"})
    said = gradients_that_follow(observed(name, PLAIN), observed(name, strides), stored)
    assert said == ({f"strides of {name} in step 0"} if excused else set())
    assert gradients_that_follow(observed(name, PLAIN), observed(name, strides), frozenset()) == set()
